package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tokenrouter/tokenrouter/internal/memconn"
)

// act is one thing that a scripted server does: it waits, then writes.
type act struct {
	wait  time.Duration
	write string
}

const endMark = "data: [DONE]\n\n"

// token is a chunk of one token.
func token(text string) string {
	return fmt.Sprintf("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":%q},\"finish_reason\":null}]}\n\n", text)
}

// stop is the chunk that ends an answer.
const stop = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"

func usage(prompt, completion int) string {
	return fmt.Sprintf("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":%d,\"completion_tokens\":%d}}\n\n", prompt, completion)
}

// script answers with the acts, as a stream of status 200.
func script(acts ...act) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then the server notices that the client has gone
		w.Header().Set("Content-Type", "text/event-stream")
		for _, a := range acts {
			if !wait(r.Context(), a.wait) {
				return
			}
			_, _ = io.WriteString(w, a.write)
			_ = http.NewResponseController(w).Flush()
		}
	}
}

// wait is over after d of the bubble's time.
func wait(ctx context.Context, d time.Duration) bool { return pause(ctx, d) }

// cut ends the connection in the middle of an answer.
func cut(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

func then(first http.HandlerFunc, second http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		first(w, r)
		second(w, r)
	}
}

// inBubble runs f with a server in a synctest bubble: its clock stands still
// while somebody computes, so that times are exact.
func inBubble(t *testing.T, handler http.Handler, f func(t *testing.T, transport http.RoundTripper)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		listener := memconn.Listen()
		server := &http.Server{Handler: handler}
		var serving sync.WaitGroup
		serving.Go(func() {
			if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
				t.Errorf("serve: %v", err)
			}
		})
		transport := &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return listener.Dial(ctx) },
		}
		f(t, transport)
		transport.CloseIdleConnections()
		_ = server.Close()
		serving.Wait()
	})
}

func prompts(t *testing.T) Prompts {
	t.Helper()
	p, err := ParsePrompts([]byte(`{"prompt":"one"}`+"\n"+`{"question":"two"}`), Chat, "two lines")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// plain is a closed loop of one worker and one request.
func plain(t *testing.T, transport http.RoundTripper) Config {
	return Config{URL: "http://server", Model: "m", Endpoint: Chat, Prompts: prompts(t), Concurrency: 1, Requests: 1, Stream: true, Transport: transport}
}

func runBench(t *testing.T, cfg Config) *Report {
	t.Helper()
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r, err := b.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// same compares two numbers that were computed on different ways.
func same(t *testing.T, name string, got, want float64) {
	t.Helper()
	if d := got - want; d > 1e-6 || d < -1e-6 {
		t.Errorf("%s = %v, want %v", name, got, want)
	}
}

func spreadOf(t *testing.T, name string, s *Spread) *Spread {
	t.Helper()
	if s == nil {
		t.Fatalf("%s has no samples", name)
	}
	return s
}

// readAll is the body of a request.
func readAll(t *testing.T, r *http.Request) string {
	t.Helper()
	var b strings.Builder
	if _, err := io.Copy(&b, r.Body); err != nil {
		t.Error(err)
	}
	return b.String()
}

// refuser is a network on which nobody listens.
type refuser struct{}

func (*refuser) dial(context.Context, string, string) (net.Conn, error) {
	return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
}
