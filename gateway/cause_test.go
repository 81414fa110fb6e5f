package gateway

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/gateway/session"
	"github.com/tokenrouter/tokenrouter/gateway/session/sessiontest"
)

// TestEveryEndIsLogged ends requests in every way. Each must leave exactly one
// line with its cause, and be counted under it.
func TestEveryEndIsLogged(t *testing.T) {
	refuse := func(err error) func(*generate.Request) error {
		return func(*generate.Request) error { return err }
	}
	never := make(chan struct{})
	for _, tc := range []struct {
		cause  session.Cause
		fields string
		entry  *sessiontest.Entry
		change func(*Config)
	}{
		{session.CauseStop, ``, &sessiontest.Entry{}, nil},
		{session.CauseStop, `,"stop":["w2"],"n":2`, &sessiontest.Entry{}, nil},
		{session.CauseLength, `,"max_tokens":2`, &sessiontest.Entry{}, nil},
		{session.CauseBadRequest, `,"n":0`, &sessiontest.Entry{}, nil},
		{session.CauseBadRequest, ``, &sessiontest.Entry{Refuse: refuse(&generate.Error{Code: generate.CodeContextLength})}, nil},
		{session.CauseShed, ``, &sessiontest.Entry{Refuse: refuse(&generate.Error{Code: generate.CodeQueueFull})}, nil},
		{session.CauseWorkerLost, ``, &sessiontest.Entry{Refuse: refuse(errors.New("refused"))}, nil},
		{session.CauseInternal, ``, &sessiontest.Entry{Refuse: refuse(&generate.Error{Code: generate.CodeInternal})}, nil},
		{session.CauseDeadline, ``, &sessiontest.Entry{Gate: waitFor(never)}, func(c *Config) { c.RequestTimeout = 20 * time.Millisecond }},
		{session.CauseClientClosed, ``, &sessiontest.Entry{Gate: waitFor(never)}, nil},
	} {
		t.Run(string(tc.cause)+tc.fields, func(t *testing.T) {
			var log bytes.Buffer
			tc.entry.ID, tc.entry.Script = "e1", sessiontest.Words(5)
			f := start(t, func(c *Config) {
				c.Logger = slog.New(slog.NewJSONHandler(&log, nil))
				if tc.change != nil {
					tc.change(c)
				}
			}, tc.entry)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if tc.cause == session.CauseClientClosed {
				tc.entry.Submit = func(context.Context) error { cancel(); return nil }
			}
			r, err := http.NewRequestWithContext(ctx, "POST", f.server.URL+chatPath, strings.NewReader(`{`+hi+tc.fields+`}`))
			if err != nil {
				t.Fatal(err)
			}
			if resp, err := f.server.Client().Do(r); err == nil {
				_ = resp.Body.Close()
			}
			eventually(t, "the end is counted", func() bool { return f.metric("trctl_gateway_ended_total", "cause="+string(tc.cause)) == 1 })
			f.server.Close() // waits for the handlers
			ends := strings.Count(log.String(), `"msg":"request ended"`)
			if ends != 1 || !strings.Contains(log.String(), `"cause":"`+string(tc.cause)+`"`) {
				t.Errorf("%d ends: %s", ends, log.String())
			}
			if got := f.metric("trctl_gateway_ended_total"); got != 1 {
				t.Errorf("%g ends were counted", got)
			}
		})
	}
}
