package openai

import (
	"fmt"
	"net/http"
	"unicode/utf8"
)

// Types of Error.
const (
	TypeInvalidRequest = "invalid_request_error"
	TypeAuthentication = "authentication_error"
	TypeRateLimit      = "rate_limit_error"
	TypeServer         = "server_error"
)

// Codes of Error that stem from the request itself. They are strings, because
// SDKs decode them as such.
const (
	CodeInvalidJSON        = "invalid_json"
	CodeInvalidType        = "invalid_type"
	CodeInvalidValue       = "invalid_value"
	CodeMissing            = "missing_required_parameter"
	CodeUnsupported        = "unsupported_parameter"
	CodeUnsupportedContent = "unsupported_content"
	CodeTooLarge           = "request_too_large"
	CodeModelNotFound      = "model_not_found"
	codeContextLength      = "context_length_exceeded"
)

// Error is a failure as a client sees it. It is safe to show: it repeats at
// most 64 bytes of what the client sent.
type Error struct {
	// Status is the HTTP status if no byte of the answer has left yet.
	Status  int
	Message string
	Type    string
	Param   string // empty means null
	Code    string // empty means null
	// RetryAfter is after how many seconds the same may succeed; 0 leaves it to the status.
	RetryAfter int
}

func (e *Error) Error() string { return e.Code + ": " + e.Message }

// AppendJSON appends {"error":{…}} to dst. The result is valid UTF-8.
func (e *Error) AppendJSON(dst []byte) []byte {
	dst = append(dst, `{"error":{"message":`...)
	dst = appendString(dst, e.Message)
	dst = append(dst, `,"type":`...)
	dst = appendString(dst, e.Type)
	dst = append(dst, `,"param":`...)
	dst = appendNullable(dst, e.Param)
	dst = append(dst, `,"code":`...)
	dst = appendNullable(dst, e.Code)
	return append(dst, `}}`...)
}

func appendNullable(dst []byte, s string) []byte {
	if s == "" {
		return append(dst, "null"...)
	}
	return appendString(dst, s)
}

// invalid returns a 400 for a value out of range.
func invalid(param, format string, args ...any) *Error {
	return badRequest(CodeInvalidValue, param, format, args...)
}

// wrongType returns a 400 that says what type was wanted.
func wrongType(param, want string) *Error {
	return badRequest(CodeInvalidType, param, "'%s' must be %s", param, want)
}

// unsupported returns a 400 for a known parameter that would have an effect.
func unsupported(param string) *Error {
	return badRequest(CodeUnsupported, param, "'%s' is not supported with this value; leave it out", param)
}

func missing(param string) *Error {
	return badRequest(CodeMissing, param, "'%s' is required", param)
}

func badRequest(code, param, format string, args ...any) *Error {
	return &Error{
		Status: http.StatusBadRequest, Type: TypeInvalidRequest, Code: code, Param: param,
		Message: fmt.Sprintf(format, args...),
	}
}

// Excerpt returns at most 64 bytes of s, cut between characters.
func Excerpt(s string) string {
	if len(s) <= maxEcho {
		return s
	}
	n := maxEcho
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}
