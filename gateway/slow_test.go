package gateway

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/gateway/session/sessiontest"
)

// fat is a script whose answer fills every buffer on the way to a client.
func fat(n int) *sessiontest.Script {
	s := &sessiontest.Script{Finish: generate.FinishStop}
	for range n {
		s.Tokens = append(s.Tokens, generate.TokenEvent{ID: 1, Text: strings.Repeat("x", 32<<10)})
	}
	return s
}

// stopped opens a stream and reads nothing of it.
func stopped(t *testing.T, addr net.Addr) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	body := `{` + hi + `,"stream":true}`
	r, err := http.NewRequest("POST", "http://localhost"+chatPath, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Write(conn); err != nil {
		t.Fatal(err)
	}
	return conn
}

// TestStoppedReadersDelayNobody has many clients that read nothing. Their
// entries must be held back at a bounded number of tokens, and other clients
// must get their answers as if they were alone.
func TestStoppedReadersDelayNobody(t *testing.T) {
	slow, fast := 500, 50
	if testing.Short() {
		slow, fast = 50, 10
	}
	stuck := &sessiontest.Entry{ID: "stuck", Script: fat(500)}
	quick := &sessiontest.Entry{ID: "quick", Script: sessiontest.Words(200)}
	f := start(t, func(c *Config) {
		d := deploy(quick)
		d.Name = "quick"
		c.Deployments = append(c.Deployments, d)
	}, stuck)
	for range slow {
		stopped(t, f.server.Listener.Addr())
	}
	eventually(t, "all are admitted", func() bool { return int(stuck.Active.Load()) == slow })
	var read atomic.Int64
	clients := pool.New().WithErrors().WithMaxGoroutines(fast)
	for range fast {
		clients.Go(func() error {
			resp, err := f.server.Client().Post(f.server.URL+chatPath, "application/json",
				strings.NewReader(`{"model":"quick","messages":[{"role":"user","content":"hi"}],"stream":true}`))
			if err != nil {
				return err
			}
			defer func() { _ = resp.Body.Close() }()
			lines := bufio.NewScanner(resp.Body)
			for lines.Scan() {
				if strings.HasPrefix(lines.Text(), "data: {") {
					read.Add(1)
				}
			}
			return lines.Err()
		})
	}
	if err := clients.Wait(); err != nil {
		t.Fatal(err)
	}
	if got, want := read.Load(), int64(fast*201); got != want {
		t.Errorf("fast clients read %d events, want %d", got, want)
	}
	if got := int(stuck.Active.Load()); got != slow {
		t.Errorf("%d of %d stopped streams are still there", got, slow)
	}
	// Sockets hold some of it; the gateway no more than its bound.
	if got, most := stuck.Sent.Load(), int64(slow)*40; got > most {
		t.Errorf("%d tokens of %d were read from the entries", got, slow*500)
	}
}

// TestTooSlowIsTold has a client that wakes up after it was given up: its entry
// was let go long before, and what it reads ends with the reason.
func TestTooSlowIsTold(t *testing.T) {
	e := &sessiontest.Entry{ID: "e1", Script: fat(500)}
	f := start(t, func(c *Config) { c.SlowAfter, c.WriteTimeout = 30*time.Millisecond, 20*time.Second }, e)
	conn := stopped(t, f.server.Listener.Addr())
	eventually(t, "the request runs", func() bool { return len(e.Requests()) == 1 })
	eventually(t, "the entry is let go", func() bool { return e.Active.Load() == 0 })
	if err := conn.(*net.TCPConn).SetReadBuffer(4 << 20); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	chunks := events(t, string(body))
	if last := chunks[len(chunks)-1]; last.Error == nil || *last.Error.Code != "client_too_slow" {
		t.Errorf("the last of %d events: %+v", len(chunks), last)
	}
	eventually(t, "the cause is counted", func() bool { return f.metric("trctl_gateway_ended_total", "cause=too_slow") == 1 })
}

// late is a response writer whose deadline has passed.
type late struct{ *recorder }

func (late) Write([]byte) (int, error) { return 0, fmt.Errorf("write: %w", os.ErrDeadlineExceeded) }

// A client that does not read is too slow, and has not gone, also when the deadline of the
// write comes before the watchdog, as it may on a machine that was held up.
func TestDeadlineBeforeWatchdog(t *testing.T) {
	cfg := Config{SlowAfter: time.Hour, WriteTimeout: time.Hour}
	c := newClient(late{&recorder{ResponseRecorder: httptest.NewRecorder()}}, &cfg)
	c.watch(func() { t.Error("the watchdog has fired") })
	if err := c.write([]byte("x")); !errors.Is(err, errTooSlow) {
		t.Errorf("error %v, want %v", err, errTooSlow)
	}
	c.told = true // it may not read that either, and then it is let go
	if err := c.write([]byte("x")); !errors.Is(err, errClientGone) {
		t.Errorf("error %v, want %v", err, errClientGone)
	}
}
