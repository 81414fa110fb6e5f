package http1

import "math"

// state is what the next byte belongs to.
type state uint8

const (
	atMethod     state = iota // the first byte of a request
	inMethod                  // or the space after it
	atTarget                  // its first byte
	inTarget                  // or the space after it
	inVersion                 // "HTTP/1.", a digit and CR
	afterVersion              // LF
	atField                   // the first byte of a header, or the CR of the empty line
	inName                    // or the colon
	inValue                   // or CR
	afterValue                // LF
	afterFields               // the LF of the empty line
	inBody                    // of known length
	atSize                    // the first digit of a chunk's size
	inSize                    // or ";" or CR
	inExtension               // or CR
	afterSize                 // LF
	inChunk
	afterChunk   // CR
	afterChunkCR // LF
)

// maxSizeDigits bounds the digits of a chunk's size, with leading zeros.
const maxSizeDigits = 16

// scanner follows the requests of one connection. The zero scanner is at the beginning
// of the first.
type scanner struct {
	state state
	minor uint8 // of HTTP/1.minor
	// trailer says that the fields are those after the last chunk.
	trailer bool
	// field is the one whose value is being read, part where in its grammar.
	field field
	part  part
	seen  field // union of those of this request
	// n counts the bytes of the version, a name, the word "chunked", the host, or a
	// chunk's size. It stops growing at its maximum.
	n    uint8
	name [maxName]byte // the beginning of a name, in lower case
	// length is the Content-Length; number is a port or a chunk's size.
	length, number uint64
	left           uint64 // bytes of the body or the chunk that are still to come
}

// scan follows p. It returns how many bytes are well-formed, and if they are not all, why
// the next one is refused; the scanner must not be used then.
func (s *scanner) scan(p []byte) (int, Reason) {
	for i := 0; ; i++ {
		i += s.skip(p[i:])
		if i == len(p) {
			return i, 0
		}
		if why := s.step(p[i]); why != 0 {
			return i, why
		}
	}
}

// skip passes over bytes that change no state, and returns how many.
func (s *scanner) skip(p []byte) (i int) {
	switch s.state {
	case inBody, inChunk:
		return s.skipData(p)
	case inMethod:
		for i < len(p) && isToken(p[i]) {
			i++
		}
	case inTarget:
		for i < len(p) && isTarget(p[i]) {
			i++
		}
	case inName:
		for i < len(p) && isToken(p[i]) {
			s.addName(p[i])
			i++
		}
	case inValue:
		if s.field&formal != 0 {
			return 0
		}
		for i < len(p) && isText(p[i]) {
			i++
		}
	case inExtension:
		for i < len(p) && isText(p[i]) {
			i++
		}
	}
	return i
}

// skipData passes over a body or a chunk, and perhaps ends it.
func (s *scanner) skipData(p []byte) int {
	n := min(s.left, uint64(len(p)))
	if s.left -= n; s.left == 0 {
		if s.state == inBody {
			*s = scanner{}
		} else {
			s.state = afterChunk
		}
	}
	return int(n)
}

// step takes one byte.
func (s *scanner) step(c byte) Reason {
	switch {
	case s.state < atField:
		return s.requestLine(c)
	case s.state < inBody:
		return s.fields(c)
	}
	return s.chunks(c)
}

func (s *scanner) requestLine(c byte) Reason {
	switch {
	case s.state == atMethod && isToken(c):
		s.state = inMethod
	case s.state == inMethod && c == ' ':
		s.state = atTarget
	case s.state == atTarget && isTarget(c):
		s.state = inTarget
	case s.state == inTarget && c == ' ':
		s.state, s.n = inVersion, 0
	case s.state == inVersion:
		return s.version(c)
	case s.state == afterVersion:
		return s.lineFeed(c, atField)
	default:
		return bad(c, Line)
	}
	return 0
}

// version takes a byte of "HTTP/1.1" and the CR after it.
func (s *scanner) version(c byte) Reason {
	const prefix = "HTTP/1."
	switch {
	case int(s.n) < len(prefix):
		if c != prefix[s.n] {
			if prefix[s.n] == '1' && isDigit(c) {
				return Version
			}
			return bad(c, Line)
		}
	case int(s.n) == len(prefix):
		if !isDigit(c) {
			return bad(c, Line)
		}
		s.minor = c - '0'
	case c == '\r':
		s.state = afterVersion
	default:
		return bad(c, Line)
	}
	s.n++
	return 0
}

func (s *scanner) fields(c byte) Reason {
	switch s.state {
	case atField:
		switch {
		case c == '\r':
			s.state = afterFields
		case c == ' ' || c == '\t':
			return Fold
		case isToken(c):
			s.state, s.n = inName, 0
			s.addName(c)
		default:
			return bad(c, Name)
		}
		return 0
	case inName:
		switch c {
		case ':':
			return s.endName()
		case ' ', '\t':
			return Space
		}
		return bad(c, Name)
	case inValue:
		return s.value(c)
	case afterValue:
		return s.lineFeed(c, atField)
	}
	if c != '\n' {
		return BareCR
	}
	return s.endFields()
}

// endFields is at the LF of the empty line, which it must not pass on if the request is
// refused.
func (s *scanner) endFields() Reason {
	switch {
	case s.trailer:
		*s = scanner{}
	case s.minor > 0 && s.seen&fieldHost == 0:
		return NoHost
	case s.seen&fieldEncoding != 0:
		s.state = atSize
	case s.length > 0:
		s.state, s.left = inBody, s.length
	default:
		*s = scanner{}
	}
	return 0
}

func (s *scanner) chunks(c byte) Reason {
	switch s.state {
	case atSize, inSize:
		return s.size(c)
	case inExtension:
		if c != '\r' {
			return bad(c, Chunk)
		}
		s.state = afterSize
	case afterSize:
		if s.number == 0 {
			s.trailer = true
			return s.lineFeed(c, atField)
		}
		s.left = s.number
		return s.lineFeed(c, inChunk)
	case afterChunk:
		if c != '\r' {
			return bad(c, Chunk)
		}
		s.state = afterChunkCR
	case afterChunkCR:
		return s.lineFeed(c, atSize)
	}
	return 0
}

// size takes a byte of the line that has a chunk's size.
func (s *scanner) size(c byte) Reason {
	digit, ok := hex(c)
	switch {
	case ok:
		if s.state == atSize {
			s.state, s.n, s.number = inSize, 0, 0
		}
		s.n++
		s.number = s.number<<4 | uint64(digit)
		if s.n > maxSizeDigits || s.number > math.MaxInt64 {
			return Size
		}
	case s.state == inSize && c == ';':
		s.state = inExtension
	case s.state == inSize && c == '\r':
		s.state = afterSize
	default:
		return bad(c, Chunk)
	}
	return 0
}

// lineFeed wants the LF after a CR.
func (s *scanner) lineFeed(c byte, next state) Reason {
	if c != '\n' {
		return BareCR
	}
	s.state = next
	return 0
}

// bad is why a byte is refused where none of its kind may stand.
func bad(c byte, why Reason) Reason {
	switch {
	case c == '\n':
		return BareLF
	case c != '\r' && why != Chunk && why != Line && isControl(c):
		return Control
	}
	return why
}
