package http1

import "math"

// field is a set of headers that a request has at most once.
type field uint8

const (
	fieldHost field = 1 << iota
	fieldLength
	fieldEncoding
	fieldAuthorization
	fieldContentType
	fieldOrigin

	// formal are those whose values have a grammar here.
	formal = fieldHost | fieldLength | fieldEncoding
)

// maxName is the length of the longest name that fieldOf knows.
const maxName = len("transfer-encoding")

// fieldOf is the field of a name in lower case; 0 for one that is not judged.
func fieldOf(name []byte) field {
	switch string(name) {
	case "host":
		return fieldHost
	case "content-length":
		return fieldLength
	case "transfer-encoding":
		return fieldEncoding
	case "authorization":
		return fieldAuthorization
	case "content-type":
		return fieldContentType
	case "origin":
		return fieldOrigin
	}
	return 0
}

// addName takes one more byte of a name.
func (s *scanner) addName(c byte) {
	if int(s.n) < maxName {
		s.name[s.n] = lower(c)
	}
	if int(s.n) <= maxName {
		s.n++
	}
}

// endName is at the colon after a name.
func (s *scanner) endName() Reason {
	s.state, s.part, s.field = inValue, before, 0
	if int(s.n) <= maxName {
		s.field = fieldOf(s.name[:s.n])
	}
	s.n = 0
	if s.field == 0 {
		return 0
	}
	if s.trailer {
		return Trailer
	}
	if s.seen&s.field != 0 && s.field != fieldAuthorization { // of keys the API says itself that there are two
		return Repeated
	}
	s.seen |= s.field
	const framing = fieldLength | fieldEncoding
	switch {
	case s.seen&framing == framing:
		return Both
	case s.field == fieldEncoding && s.minor == 0:
		return Encoding
	}
	return 0
}

// part is where in a value with a grammar a byte stands.
type part uint8

const (
	before  part = iota // spaces before it
	inside              // the number, the word, the name of a host
	after               // spaces after it
	escape1             // the digits of an escaped byte of a host
	escape2
	address  // an IPv6 address in brackets
	zone     // its zone
	bracket  // after the bracket
	hostPort // the digits after the colon
)

// value takes one byte of a value, or the CR after it.
func (s *scanner) value(c byte) Reason {
	why := Control
	switch {
	case s.field == fieldHost:
		if why = Host; s.hostByte(c) {
			return 0
		}
	case s.field == fieldLength:
		if why = Length; s.lengthByte(c) {
			return 0
		}
	case s.field == fieldEncoding:
		if why = Encoding; s.encodingByte(c) {
			return 0
		}
	case c == '\r':
		s.state = afterValue
		return 0
	}
	return bad(c, why)
}

// around takes what may stand before and after the value of a field with a grammar: spaces, and the CR
// if the value may end here.
func (s *scanner) around(c byte, mayEnd bool) bool {
	switch {
	case c == ' ' || c == '\t':
		if mayEnd {
			s.part = after
		}
		return mayEnd || s.part == before
	case c == '\r' && mayEnd:
		s.state = afterValue
		return true
	}
	return false
}

func (s *scanner) lengthByte(c byte) bool {
	if s.part == after || !isDigit(c) {
		return s.around(c, s.part != before)
	}
	s.part = inside
	return addDigit(&s.length, c, math.MaxInt64)
}

func (s *scanner) encodingByte(c byte) bool {
	const chunked = "chunked"
	if int(s.n) < len(chunked) && lower(c) == chunked[s.n] {
		s.part = inside
		s.n++
		return true
	}
	return s.around(c, int(s.n) == len(chunked))
}

// hostByte takes a byte of uri-host [ ":" port ] (RFC 9110, section 7.2), which may not be empty.
func (s *scanner) hostByte(c byte) bool {
	const maxPort = 1<<16 - 1
	switch s.part {
	case before, inside:
		switch {
		case isHost(c):
			s.part = inside
		case c == '%':
			s.part = escape1
		case c == '[' && s.part == before:
			s.part = address
		case c == ':' && s.part == inside:
			s.part, s.number = hostPort, 0
		default:
			return s.around(c, s.part == inside)
		}
		return true
	case escape1, escape2:
		_, ok := hex(c)
		if s.part++; s.part > escape2 {
			s.part = inside
		}
		return ok
	case address, zone:
		return s.addressByte(c)
	case bracket:
		if c == ':' {
			s.part, s.number = hostPort, 0
			return true
		}
	case hostPort:
		if isDigit(c) {
			return addDigit(&s.number, c, maxPort)
		}
	}
	return s.around(c, true)
}

// addressByte takes a byte of an IPv6 address, perhaps with a zone, or the bracket after it.
// Which addresses there are is not judged.
func (s *scanner) addressByte(c byte) bool {
	_, isHex := hex(c)
	switch {
	case c == ']' && s.n >= 2:
		s.part = bracket
	case s.part == zone && (isUnreserved(c) || c == '%'):
	case c == '%' && s.n >= 2:
		s.part = zone
	case s.part == address && (isHex || c == ':' || c == '.'):
		s.n = min(s.n+1, 2)
	default:
		return false
	}
	return true
}

// addDigit appends a digit to a decimal number. It reports whether that is at most maximum.
func addDigit(n *uint64, c byte, maximum uint64) bool {
	digit := uint64(c - '0')
	if *n > (maximum-digit)/10 {
		return false
	}
	*n = *n*10 + digit
	return true
}
