package gateway

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/tokenrouter/tokenrouter/api/openai"
	"github.com/tokenrouter/tokenrouter/gateway/session"
)

// headerRequestID names a request. A client's own value is only echoed and
// logged; nothing is looked up by it.
const headerRequestID = "X-Request-Id"

// maxRequestID bounds an echoed id, in bytes.
const maxRequestID = 128

// outcome is how a request ended, for the access log.
type outcome struct {
	id     string
	call   *call // nil for routes that generate nothing, and for bad requests
	cause  session.Cause
	err    error
	status int // 0 means that of the response
	// holder has the key of the request; nil without keys.
	holder *Holder
}

// outcomeKey is where a request's outcome is kept in its context.
const outcomeKey = "outcome"

// outcomeOf returns the outcome that identify has put in the context.
func outcomeOf(c echo.Context) *outcome {
	o, ok := c.Get(outcomeKey).(*outcome)
	if !ok {
		o = new(outcome)
	}
	return o
}

// identify gives every answer a request id.
func (g *Gateway) identify(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		id := c.Request().Header.Get(headerRequestID)
		if !saneID(id) {
			id = newRequestID()
		}
		c.Response().Header().Set(headerRequestID, id)
		c.Set(outcomeKey, &outcome{id: id})
		return next(c)
	}
}

func newRequestID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return fmt.Sprintf("req-%x", b)
}

// saneID accepts ids of letters, digits and a few marks.
func saneID(id string) bool {
	if id == "" || len(id) > maxRequestID {
		return false
	}
	for _, c := range []byte(id) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("-_.:/+=", c) >= 0:
		default:
			return false
		}
	}
	return true
}

// record counts and logs every request when it has ended.
func (g *Gateway) record(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		start := time.Now()
		o := outcomeOf(c)
		if err := next(c); err != nil {
			o.cause = causeOf(err)
			c.Error(err)
		}
		if o.status == 0 {
			o.status = c.Response().Status
		}
		if o.cause == "" {
			o.cause = session.CauseDone
		}
		route := c.Path()
		if !g.paths[route] {
			route = "other"
		}
		g.metrics.requests.WithLabelValues(route, strconv.Itoa(o.status)).Inc()
		if generates := route == pathChat || route == pathCompletions; generates && c.Request().Method == http.MethodPost {
			deployment := ""
			if o.call != nil {
				deployment = o.call.d.Name
			}
			g.cfg.Session.Metrics.Ended(deployment, o.cause)
			if o.call != nil {
				g.cfg.Session.Metrics.Answered(deployment, o.cause, o.call.usage().Prompt, time.Since(o.call.arrived).Seconds())
			}
		}
		g.logEnd(c, o, route, time.Since(start))
		return nil
	}
}

// logEnd writes the one line that every request gets. It never holds text of a
// prompt or an answer.
func (g *Gateway) logEnd(c echo.Context, o *outcome, route string, took time.Duration) {
	level := slog.LevelInfo
	attrs := []slog.Attr{
		slog.String("request", o.id), slog.String("route", route), slog.Int("status", o.status),
		slog.String("cause", string(o.cause)), slog.Duration("took", took),
	}
	if o.holder != nil {
		attrs = append(attrs, slog.String("key", o.holder.ID))
	}
	if call := o.call; call != nil {
		u := call.usage()
		share, epoch := 0.0, uint32(0)
		for _, ch := range call.choices {
			share += ch.extension.LargeShare() * float64(ch.usage.Completion)
			epoch = max(epoch, ch.extension.Epoch)
		}
		if u.Completion > 0 {
			share /= float64(u.Completion)
		}
		attrs = append(attrs,
			slog.String("id", call.id), slog.String("deployment", call.d.Name), slog.Bool("stream", call.options.Stream), slog.Int("choices", len(call.choices)),
			slog.Int("prompt_tokens", u.Prompt), slog.Int("completion_tokens", u.Completion),
			slog.Float64("large_share", math.Round(share*1e4)/1e4), slog.Uint64("epoch", uint64(epoch)), slog.Duration("first_token", call.firstToken))
	} else if o.status < http.StatusBadRequest || isProbe(route) {
		level = slog.LevelDebug // probes, scrapes and lists
	}
	if o.err != nil {
		attrs = append(attrs, slog.Any("err", o.err))
	}
	if o.status >= http.StatusInternalServerError && !isProbe(route) { // a probe's 503 is its answer
		level = slog.LevelWarn
	}
	g.cfg.Logger.LogAttrs(c.Request().Context(), level, "request ended", attrs...)
}

// recover turns a panic into a 500, with the stack in the log alone.
func (g *Gateway) recover(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) (err error) {
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if p == http.ErrAbortHandler {
				panic(p)
			}
			g.cfg.Logger.Error("panic in a handler", "request", outcomeOf(c).id, "err", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = session.ErrPanic
		}()
		return next(c)
	}
}

// authenticate wants a known key for everything but the probes and a browser's
// preflight. It runs before the router.
func (g *Gateway) authenticate(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		if g.cfg.Keys == nil || r.Method == http.MethodOptions || isProbe(r.URL.Path) {
			return next(c)
		}
		holder, err := g.holder(r.Header)
		if err == nil {
			outcomeOf(c).holder = holder
			setRates(c.Response().Header(), holder)
			return next(c)
		}
		outcomeOf(c).err = err
		if errors.Is(err, ErrKeysUnknown) {
			return serverError(http.StatusServiceUnavailable, "not_ready", "this server is starting; try again")
		}
		c.Response().Header().Set("WWW-Authenticate", "Bearer")
		return &openai.Error{
			Status: http.StatusUnauthorized, Type: openai.TypeAuthentication, Code: "invalid_api_key",
			Message: "a valid API key is required: Authorization: Bearer KEY",
		}
	}
}

func isProbe(path string) bool {
	return path == pathHealthz || path == pathHealth || path == pathReadyz
}
