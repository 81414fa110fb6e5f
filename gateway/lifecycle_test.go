package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sourcegraph/conc"
	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/api/openai"
	"github.com/tokenrouter/tokenrouter/gateway/session"
	"github.com/tokenrouter/tokenrouter/gateway/session/sessiontest"
)

func readAll(t *testing.T, resp *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// eventually waits for a condition that other goroutines bring about.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("never: %s", what)
		}
	}
}

// TestDisconnect closes the connection in every phase, streamed and not (B63).
func TestDisconnect(t *testing.T) {
	never := make(chan struct{})
	for _, tc := range []struct {
		name, fields string
		entry        *sessiontest.Entry
		read         int // events to read first
	}{
		{"stream, before a token", `,"stream":true`, &sessiontest.Entry{Gate: waitFor(never)}, 0},
		{"stream, after three", `,"stream":true`, &sessiontest.Entry{Gate: func(ctx context.Context, at int) error {
			if at < 3 {
				return nil
			}
			return waitFor(never)(ctx, at)
		}}, 3},
		{"body", ``, &sessiontest.Entry{Gate: waitFor(never)}, 0},
		{"before admission", `,"stream":true`, &sessiontest.Entry{}, -1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := tc.entry
			e.ID, e.Script = "e1", sessiontest.Words(10)
			var waiting atomic.Int64
			if tc.read < 0 {
				e.Edit = func(_ *generate.Request, at int, ev *generate.Event) ([]*generate.Event, error) {
					waiting.Add(1)
					<-never
					return sessiontest.Pass(ev)
				}
				// The fake does not look at its context here, so let it go at the end.
				defer close(never)
			}
			f := start(t, nil, e)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var client conc.WaitGroup
			defer client.Wait()
			read := make(chan struct{})
			client.Go(func() {
				req, err := http.NewRequestWithContext(ctx, "POST", f.server.URL+chatPath, strings.NewReader(`{`+hi+tc.fields+`}`))
				if err != nil {
					return
				}
				resp, err := f.server.Client().Do(req)
				if err != nil {
					return
				}
				defer func() { _ = resp.Body.Close() }()
				lines := bufio.NewScanner(resp.Body)
				for n := 0; n < tc.read && lines.Scan(); {
					if strings.HasPrefix(lines.Text(), "data: ") {
						n++
					}
				}
				close(read)
				_, _ = io.Copy(io.Discard, resp.Body)
			})
			eventually(t, "the entry works", func() bool { return e.Active.Load() == 1 })
			if tc.read > 0 {
				<-read
			}
			cancel()
			eventually(t, "the entry's context ends", func() bool { return e.Active.Load() == 0 })
			if tc.read >= 0 {
				eventually(t, "nothing is in flight", func() bool { return f.metric("trctl_gateway_in_flight") == 0 })
				eventually(t, "status 499 is counted", func() bool { return f.metric("trctl_gateway_requests_total", "code=499") == 1 })
			}
		})
	}
}

// TestManyClientsCutStreams has 500 clients that close their streams at random
// points (B64). Afterwards nothing runs, and the next request is served.
func TestManyClientsCutStreams(t *testing.T) {
	e := &sessiontest.Entry{ID: "e1", Script: sessiontest.Words(60)}
	e.Gate = func(ctx context.Context, _ int) error {
		timer := time.NewTimer(time.Duration(rand.IntN(300)) * time.Microsecond)
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	f := start(t, nil, e)
	var cut atomic.Int64
	clients := pool.New().WithMaxGoroutines(50)
	for i := range 500 {
		clients.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			stream := `,"stream":true`
			if i%7 == 0 {
				stream = ""
				timer := time.AfterFunc(time.Duration(rand.IntN(3000))*time.Microsecond, cancel)
				defer timer.Stop()
			}
			req, err := http.NewRequestWithContext(ctx, "POST", f.server.URL+chatPath, strings.NewReader(`{`+hi+stream+`}`))
			if err != nil {
				t.Error(err)
				return
			}
			resp, err := f.server.Client().Do(req)
			if err != nil {
				cut.Add(1)
				return
			}
			defer func() { _ = resp.Body.Close() }()
			lines := bufio.NewScanner(resp.Body)
			for n := rand.IntN(100); n > 0 && lines.Scan(); n-- {
			}
			if lines.Scan() {
				cut.Add(1)
			}
		})
	}
	clients.Wait()
	if cut.Load() < 100 {
		t.Errorf("only %d streams were cut", cut.Load())
	}
	eventually(t, "all entry contexts end", func() bool { return e.Active.Load() == 0 })
	eventually(t, "nothing is in flight", func() bool { return f.metric("trctl_gateway_in_flight") == 0 })
	if n := len(e.Requests()); n < 400 {
		t.Errorf("only %d requests reached the entry", n)
	}
	e.Gate = nil
	if _, body := f.post(chatPath, `{`+hi+`}`); !strings.Contains(body, `"finish_reason":"stop"`) {
		t.Errorf("the next request: %s", body)
	}
}

// recorder is a response writer for use in a bubble: it never blocks.
type recorder struct {
	*httptest.ResponseRecorder
	deadlines atomic.Int64
}

func (r *recorder) SetWriteDeadline(time.Time) error { r.deadlines.Add(1); return nil }
func (r *recorder) SetReadDeadline(time.Time) error  { return nil }

// bubble runs one request in fake time.
func bubble(t *testing.T, change func(*Config), e *sessiontest.Entry, body string) string {
	t.Helper()
	cfg := Config{Deployments: []session.Deployment{deploy(e)}}
	if change != nil {
		change(&cfg)
	}
	g, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w := &recorder{ResponseRecorder: httptest.NewRecorder()}
	g.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "POST", chatPath, strings.NewReader(body)))
	return w.Body.String()
}

// after is a gate that takes d for every token.
func after(d time.Duration) func(context.Context, int) error {
	return func(ctx context.Context, _ int) error {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func TestKeepAlive(t *testing.T) {
	for every, want := range map[time.Duration]int{0: 2 * 3, 10 * time.Second: 3 * 3, -1: 0} {
		synctest.Test(t, func(t *testing.T) {
			body := bubble(t, func(c *Config) { c.KeepAlive = every; c.Session.StallAfter = -1 }, &sessiontest.Entry{ID: "e1", Script: sessiontest.Words(3), Gate: after(39 * time.Second)}, `{`+hi+`,"stream":true}`)
			if got := strings.Count(body, openai.KeepAlive); got != want {
				t.Errorf("every %s: %d comments\n%s", every, got, body)
			}
			if joined(events(t, body), 0) != " w0 w1 w2" {
				t.Errorf("text: %s", body)
			}
		})
	}
}

func TestRequestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &sessiontest.Entry{ID: "e1", Script: sessiontest.Words(9), Gate: after(time.Minute)}
		limit := func(c *Config) { c.RequestTimeout = 150 * time.Second; c.Session.StallAfter = -1 }
		if body := bubble(t, limit, slow, `{`+hi+`}`); !strings.Contains(body, `"code":"timeout"`) {
			t.Errorf("body: %s", body)
		}
		chunks := events(t, bubble(t, limit, slow, `{`+hi+`,"stream":true}`))
		if last := chunks[len(chunks)-1]; last.Error == nil || *last.Error.Code != "timeout" || joined(chunks, 0) != " w0 w1" {
			t.Errorf("stream: %+v", chunks)
		}
	})
}

// TestBackoff checks the pauses of an entry that is alone and dead: none grows
// over its bound, and the whole takes less than the sum.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dead := &sessiontest.Entry{ID: "e1", Script: sessiontest.Words(1), Refuse: func(*generate.Request) error { return sessiontest.ErrKilled }}
		start := time.Now()
		body := bubble(t, func(c *Config) { c.Session.MaxAttempts = 4; c.Session.Backoff = 100 * time.Millisecond }, dead, `{`+hi+`}`)
		if took := time.Since(start); took < 350*time.Millisecond || took > 700*time.Millisecond || !strings.Contains(body, "model_unavailable") {
			t.Errorf("took %s: %s", took, body)
		}
	})
}

// TestPanicInEntry checks that a panic ends its own request alone.
func TestPanicInEntry(t *testing.T) {
	e := &sessiontest.Entry{ID: "e1", Script: sessiontest.Words(3)}
	e.Edit = func(r *generate.Request, at int, ev *generate.Event) ([]*generate.Event, error) {
		if at == 1 && r.Messages[0].Content == "boom" {
			panic("boom")
		}
		return sessiontest.Pass(ev)
	}
	f := start(t, nil, e)
	resp, body := f.post(chatPath, `{"model":"tiny","messages":[{"role":"user","content":"boom"}]}`)
	wantError(t, "panic", resp, body, 500, "internal_error", "")
	if _, body := f.post(chatPath, `{`+hi+`}`); !strings.Contains(body, " w0 w1 w2") {
		t.Errorf("the next request: %s", body)
	}
	eventually(t, "the entry's context ends", func() bool { return e.Active.Load() == 0 })
}

// run is a gateway that Run serves on a listener of its own.
func run(t *testing.T, cfg Config) (url string, stop context.CancelFunc, ended <-chan error) {
	t.Helper()
	g, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	var wg conc.WaitGroup
	wg.Go(func() { done <- g.Run(ctx, ln) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return "http://" + ln.Addr().String(), cancel, done
}

func TestDrain(t *testing.T) {
	block := make(chan struct{})
	e := &sessiontest.Entry{ID: "e1", Script: sessiontest.Words(4), Gate: waitFor(block)}
	url, stop, ended := run(t, Config{Deployments: []session.Deployment{deploy(e)}})
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	resp, err := client.Post(url+chatPath, "application/json", strings.NewReader(`{`+hi+`,"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	stop()
	// The gateway closes connections that are idle: who uses one at that moment is cut off.
	asks := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	var late *http.Response
	eventually(t, "the gateway refuses", func() bool {
		if late, err = asks.Post(url+chatPath, "application/json", strings.NewReader(`{`+hi+`,"max_tokens":0}`)); err != nil {
			t.Fatal(err)
		}
		_ = late.Body.Close()
		if late, err = asks.Get(url + pathReadyz); err != nil {
			t.Fatal(err)
		}
		_ = late.Body.Close()
		return late.StatusCode == http.StatusServiceUnavailable
	})
	if late, err = client.Post(url+chatPath, "application/json", strings.NewReader(`{`+hi+`}`)); err != nil {
		t.Fatal(err)
	}
	wantError(t, "draining", late, readAll(t, late), 503, "draining", "")
	_ = late.Body.Close()
	if !late.Close {
		t.Error("the connection stays open")
	}
	close(block)
	if got := joined(events(t, readAll(t, resp)), 0); got != e.Script.Text() {
		t.Errorf("the stream in flight: %q", got)
	}
	if err := <-ended; err != nil {
		t.Errorf("Run: %v", err)
	}
}

func TestDrainDeadline(t *testing.T) {
	e := &sessiontest.Entry{ID: "e1", Script: sessiontest.Words(4), Gate: waitFor(make(chan struct{}))}
	url, stop, ended := run(t, Config{Deployments: []session.Deployment{deploy(e)}, DrainTimeout: 20 * time.Millisecond})
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	resp, err := client.Post(url+chatPath, "application/json", strings.NewReader(`{`+hi+`,"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	stop()
	chunks := events(t, readAll(t, resp))
	if last := chunks[len(chunks)-1]; last.Error == nil || *last.Error.Code != "draining" {
		t.Errorf("stream: %+v", chunks)
	}
	if err := <-ended; err != nil {
		t.Errorf("Run: %v", err)
	}
	eventually(t, "the entry's context ends", func() bool { return e.Active.Load() == 0 })
}

// TestRunFails checks that Run reports a listener that cannot be used.
func TestRunFails(t *testing.T) {
	g, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = ln.Close()
	if err := g.Run(t.Context(), ln); err == nil {
		t.Error("no error")
	}
}

// TestSlowBody checks that a body that stops is answered with 408.
func TestSlowBody(t *testing.T) {
	if testing.Short() {
		t.Skip("takes the grace of a slow body")
	}
	f := start(t, nil)
	conn, err := net.Dial("tcp", f.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{", chatPath); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, "slow body", resp, readAll(t, resp), 408, "body_too_slow", "")
	_ = resp.Body.Close()
}

// TestSlowReader checks that a client that does not read is given up after
// WriteTimeout, and that its entry stops.
func TestSlowReader(t *testing.T) {
	s := &sessiontest.Script{Finish: generate.FinishStop}
	for range 500 {
		s.Tokens = append(s.Tokens, generate.TokenEvent{ID: 1, Text: strings.Repeat("x", generate.MaxText)})
	}
	e := &sessiontest.Entry{ID: "e1", Script: s}
	f := start(t, func(c *Config) { c.SlowAfter, c.WriteTimeout = 50*time.Millisecond, 20*time.Millisecond }, e)
	resp, err := f.server.Client().Post(f.server.URL+chatPath, "application/json", strings.NewReader(`{`+hi+`,"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	eventually(t, "the slow client is counted", func() bool { return f.metric("trctl_gateway_requests_total", "code=408") == 1 })
	eventually(t, "the entry's context ends", func() bool { return e.Active.Load() == 0 })
}

// TestChunkedBody sends bodies without a length, under and over the limit.
func TestChunkedBody(t *testing.T) {
	f := start(t, func(c *Config) { c.MaxBody = 1000 }, &sessiontest.Entry{ID: "e1", Script: sessiontest.Words(1)})
	for pad, status := range map[int]int{100: http.StatusOK, 2000: http.StatusRequestEntityTooLarge} {
		body := io.MultiReader(strings.NewReader(`{`+hi+`,"x":"`), strings.NewReader(strings.Repeat("a", pad)), strings.NewReader(`"}`))
		resp, err := f.server.Client().Post(f.server.URL+chatPath, "application/json", body)
		if err != nil {
			t.Fatal(err)
		}
		if got := readAll(t, resp); resp.StatusCode != status {
			t.Errorf("%d bytes more: %d %s", pad, resp.StatusCode, got)
		}
		_ = resp.Body.Close()
	}
}
