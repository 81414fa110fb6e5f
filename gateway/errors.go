package gateway

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/api/openai"
)

var (
	// errNoCapacity says that a deployment has no entry at the moment.
	errNoCapacity = errors.New("no replica of the entry model")
	// errEntriesLost says that every try to serve a request failed.
	errEntriesLost = errors.New("no entry could serve the request")
	// errClientGone says that the client closed its connection or does not read.
	errClientGone = errors.New("the client has gone")
	// errDraining says that the gateway stops before the request has ended.
	errDraining = errors.New("the gateway is stopping")
	// errTimeout says that a request took longer than Config.RequestTimeout.
	errTimeout = errors.New("the request took too long")
	// errPanic says that serving a request panicked; the log has the stack.
	errPanic = errors.New("panic while serving the request")
)

// statusClientGone is logged and counted, never sent.
const statusClientGone = 499

// publicError is the one place where an error becomes what a client sees.
func publicError(err error) *openai.Error {
	var refused *generate.Error
	var public *openai.Error
	switch {
	case errors.As(err, &public):
		return public
	case errors.As(err, &refused):
		return fromEntry(refused)
	case errors.Is(err, errClientGone), errors.Is(err, context.Canceled):
		return &openai.Error{Status: statusClientGone, Type: openai.TypeInvalidRequest, Code: "client_closed", Message: "the client closed the request"}
	case errors.Is(err, errTimeout), errors.Is(err, context.DeadlineExceeded):
		return serverError(http.StatusGatewayTimeout, "timeout", "the request took too long")
	case errors.Is(err, errNoCapacity):
		return serverError(http.StatusServiceUnavailable, "no_capacity", "no worker can serve this model at the moment")
	case errors.Is(err, errDraining):
		return serverError(http.StatusServiceUnavailable, "draining", "this server is shutting down; try again")
	case errors.Is(err, errEntriesLost):
		return serverError(http.StatusServiceUnavailable, generate.CodeUnavailable, "the workers of this model failed; try again")
	}
	return serverError(http.StatusInternalServerError, generate.CodeInternal, "internal error")
}

func serverError(status int, code, message string) *openai.Error {
	return &openai.Error{Status: status, Type: openai.TypeServer, Code: code, Message: message}
}

// fromEntry maps an entry's error. Its message is safe to show by contract;
// that of an internal error is not trusted to be.
func fromEntry(e *generate.Error) *openai.Error {
	out := &openai.Error{Status: e.HTTPStatus(), Code: e.Code, Message: e.Message, Param: e.Param}
	switch {
	case out.Status == http.StatusTooManyRequests:
		out.Type = openai.TypeRateLimit
	case out.Status < http.StatusInternalServerError && out.Status != http.StatusConflict:
		out.Type = openai.TypeInvalidRequest
	case out.Status == http.StatusServiceUnavailable:
		out.Type = openai.TypeServer
	default:
		return serverError(http.StatusInternalServerError, generate.CodeInternal, "internal error")
	}
	return out
}

// modelNotFound names deployments that the client may have meant.
func modelNotFound(t *table, name string) *openai.Error {
	message := "the model \"" + openai.Excerpt(name) + "\" does not exist"
	if near := t.near(name); len(near) > 0 {
		message += "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return &openai.Error{
		Status: http.StatusNotFound, Type: openai.TypeInvalidRequest,
		Code: openai.CodeModelNotFound, Param: "model", Message: message,
	}
}

// tooMany is the answer when MaxInFlight is reached.
func tooMany() *openai.Error {
	return &openai.Error{
		Status: http.StatusTooManyRequests, Type: openai.TypeRateLimit, Code: generate.CodeQueueFull,
		Message: "too many requests are in flight; try again",
	}
}

// setRetryHeaders tells clients when to come back, and when not to.
func setRetryHeaders(h http.Header, e *openai.Error) {
	switch {
	case e.Code == generate.CodeKVExhausted:
		h.Set("X-Should-Retry", "false")
	case e.Status == http.StatusTooManyRequests || e.Status == http.StatusServiceUnavailable:
		h.Set("Retry-After", "1")
	}
	if e.Code == "draining" || e.Status == http.StatusRequestTimeout || e.Status == http.StatusRequestEntityTooLarge {
		h.Set("Connection", "close")
	}
}
