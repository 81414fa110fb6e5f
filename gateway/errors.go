package gateway

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/api/openai"
	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/gateway/session"
)

var (
	// errClientGone says that the client closed its connection.
	errClientGone = errors.New("the client has gone")
	// errTooSlow says that the client took nothing for Config.SlowAfter.
	errTooSlow = errors.New("the client does not read")
	// errDraining says that the gateway stops before the request has ended.
	errDraining = errors.New("the gateway is stopping")
	// errTimeout says that a request took longer than Config.RequestTimeout.
	errTimeout = errors.New("the request took too long")
)

// statusClientGone is logged and counted, never sent.
const statusClientGone = 499

// publicError is the one place where an error becomes what a client sees.
func publicError(err error) *openai.Error {
	var refused *generate.Error
	var public *openai.Error
	var field *sampling.FieldError
	switch {
	case errors.As(err, &public):
		return public
	case errors.Is(err, session.ErrSettings) && errors.As(err, &field):
		return &openai.Error{
			Status: http.StatusBadRequest, Type: openai.TypeInvalidRequest, Code: openai.CodeInvalidValue,
			Param: field.Field, Message: "'" + field.Field + "': " + field.Problem,
		}
	case errors.Is(err, errTooSlow):
		return &openai.Error{Status: http.StatusRequestTimeout, Type: openai.TypeInvalidRequest, Code: "client_too_slow", Message: "the answer was not read for too long"}
	case errors.As(err, &refused):
		return fromEntry(refused)
	case errors.Is(err, errClientGone), errors.Is(err, context.Canceled):
		return &openai.Error{Status: statusClientGone, Type: openai.TypeInvalidRequest, Code: "client_closed", Message: "the client closed the request"}
	case errors.Is(err, errTimeout), errors.Is(err, context.DeadlineExceeded):
		return serverError(http.StatusGatewayTimeout, "timeout", "the request took too long")
	case errors.Is(err, session.ErrNoCapacity):
		return serverError(http.StatusServiceUnavailable, "no_capacity", "no worker can serve this model at the moment")
	case errors.Is(err, errDraining):
		return serverError(http.StatusServiceUnavailable, "draining", "this server is shutting down; try again")
	case errors.Is(err, session.ErrLost), errors.Is(err, session.ErrChanged):
		return serverError(http.StatusServiceUnavailable, generate.CodeUnavailable, "the workers of this model failed; try again")
	}
	return serverError(http.StatusInternalServerError, generate.CodeInternal, "internal error")
}

// causeOf is the cause of an error for log and metrics.
func causeOf(err error) session.Cause {
	var public *openai.Error
	var routed *echo.HTTPError
	switch {
	case errors.Is(err, errTooSlow):
		return session.CauseTooSlow
	case errors.Is(err, errClientGone):
		return session.CauseClientClosed
	case errors.Is(err, errTimeout):
		return session.CauseDeadline
	case errors.Is(err, errDraining):
		return session.CauseShed
	case errors.As(err, &public):
		switch {
		case public.Status == http.StatusTooManyRequests, public.Status == http.StatusServiceUnavailable:
			return session.CauseShed
		case public.Status < http.StatusInternalServerError:
			return session.CauseBadRequest
		}
		return session.CauseInternal
	case errors.As(err, &routed):
		return session.CauseBadRequest
	}
	return session.CauseOfError(err)
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
	case out.Status == http.StatusServiceUnavailable, e.Code == generate.CodePolicy:
		out.Type = openai.TypeServer
	default:
		return serverError(http.StatusInternalServerError, generate.CodeInternal, "internal error")
	}
	return out
}

// fewModels are so few that an error names all of them.
const fewModels = 8

// modelNotFound names deployments that the client may have meant, or all of a few, as
// far as its key may know them.
func modelNotFound(t *session.Table, name string, holder *Holder) *openai.Error {
	message := "the model \"" + openai.Excerpt(name) + "\" does not exist"
	unknown := func(name string) bool { return !holder.mayAsk(name) }
	var all []string
	for d := range t.All() {
		all = append(all, d.Name)
	}
	all = slices.DeleteFunc(all, unknown)
	switch near := slices.DeleteFunc(t.Near(name), unknown); {
	case len(near) > 0:
		message += "; did you mean " + strings.Join(near, " or ") + "?"
	case len(all) > 0 && len(all) <= fewModels:
		message += "; there are " + strings.Join(all, ", ")
	default:
		message += "; GET " + pathModels + " lists those that do"
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

// tooManyAtOnce is the answer to a request that alone exceeds MaxInFlight.
func tooManyAtOnce(prompts bool) *openai.Error {
	param := "n"
	if prompts {
		param = "prompt"
	}
	return &openai.Error{
		Status: http.StatusBadRequest, Type: openai.TypeInvalidRequest, Code: openai.CodeInvalidValue, Param: param,
		Message: "'" + param + "' asks for more answers than this server computes at a time",
	}
}

// setRetryHeaders tells clients when to come back, and when not to.
func setRetryHeaders(h http.Header, e *openai.Error) {
	switch {
	case e.Code == generate.CodeKVExhausted:
		h.Set("X-Should-Retry", "false")
	case e.Status == http.StatusTooManyRequests || e.Status == http.StatusServiceUnavailable:
		h.Set("Retry-After", strconv.Itoa(max(1, e.RetryAfter)))
	}
	if e.Code == "draining" || e.Status == http.StatusRequestTimeout || e.Status == http.StatusRequestEntityTooLarge {
		h.Set("Connection", "close")
	}
}
