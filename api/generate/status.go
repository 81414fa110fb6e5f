package generate

import "net/http"

// HTTPStatus is the status that goes with the error's code, both between entry
// and gateway and towards the client. An unknown code is a 500.
func (e *Error) HTTPStatus() int {
	switch e.Code {
	case CodeInvalid, CodeContextLength, CodeTemplate:
		return http.StatusBadRequest
	case CodeNotFound:
		return http.StatusNotFound
	case CodeQueueFull, CodeKVExhausted:
		return http.StatusTooManyRequests
	case CodeUnavailable:
		return http.StatusServiceUnavailable
	case CodeVersion:
		return http.StatusNotAcceptable
	case CodeStaleEpoch:
		return http.StatusConflict
	}
	return http.StatusInternalServerError
}
