package http1

import "net/http"

// Reason is why a request is refused. The zero Reason refuses nothing.
type Reason uint8

// Reasons.
const (
	// BareLF is a line that ends in LF alone.
	BareLF Reason = iota + 1
	// BareCR is a CR without LF.
	BareCR
	// Line is a request line that is not METHOD SP TARGET SP VERSION, each in characters
	// that it may have.
	Line
	// Version is a protocol other than HTTP/1.
	Version
	// Name is a header whose name is empty or has other characters than a token, or a
	// line without a colon.
	Name
	// Space is a space before the colon.
	Space
	// Fold is a header that goes on in a second line.
	Fold
	// Control is a control character in a header's value.
	Control
	// Repeated is a second header of a kind that a request has once.
	Repeated
	// NoHost is HTTP/1.1 without Host.
	NoHost
	// Host is one that is no host with perhaps a port.
	Host
	// Length is a Content-Length that is not a number below 2⁶³.
	Length
	// Encoding is a Transfer-Encoding other than "chunked", or one in HTTP/1.0.
	Encoding
	// Both is a Content-Length beside a Transfer-Encoding.
	Both
	// Chunk is a chunk whose size is no hexadecimal number, or which does not end where
	// its size says.
	Chunk
	// Size is the size of a chunk with more than 16 digits, or of 2⁶³ and above.
	Size
	// Trailer is a header after a body that has no business there.
	Trailer
)

// String says it to the client.
func (r Reason) String() string {
	switch r {
	case BareLF:
		return "a line ends in LF without CR"
	case BareCR:
		return "a CR stands without LF"
	case Line:
		return "the request line is malformed"
	case Version:
		return "the protocol is not HTTP/1"
	case Name:
		return "the name of a header is malformed"
	case Space:
		return "a header has a space before its colon"
	case Fold:
		return "a header is folded over several lines"
	case Control:
		return "a header has a control character"
	case Repeated:
		return "a header that may come once comes twice"
	case NoHost:
		return "the Host header is missing"
	case Host:
		return "the Host header is malformed"
	case Length:
		return "the Content-Length is no length"
	case Encoding:
		return "the Transfer-Encoding is not supported"
	case Both:
		return "Content-Length and Transfer-Encoding exclude each other"
	case Chunk:
		return "a chunk of the body is malformed"
	case Size:
		return "a chunk of the body is too long"
	case Trailer:
		return "a header must not come after the body"
	}
	return "the request is malformed"
}

// status is the one that the refusal is answered with.
func (r Reason) status() int {
	if r == Version {
		return http.StatusHTTPVersionNotSupported
	}
	return http.StatusBadRequest
}
