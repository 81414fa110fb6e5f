package gateway

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tokenrouter/tokenrouter/gateway/session"
	"github.com/tokenrouter/tokenrouter/gateway/session/sessiontest"
)

// raw writes bytes to a server and returns all that comes back until it ends the connection,
// which the client does not.
func raw(t *testing.T, url, in string) string {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil { // where it is not ended, it hangs
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, in); err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// keyed is a request for an answer to a prompt, with a valid key and more headers.
func keyed(prompt, headers string) string {
	body := `{"model":"tiny","messages":[{"role":"user","content":"` + prompt + `"}]}`
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer k\r\n%sContent-Length: %d\r\n\r\n%s", chatPath, headers, len(body), body)
}

// TestSmuggling hides a request, complete with a key, where lenient parsers find one and
// others do not. It must reach no entry.
func TestSmuggling(t *testing.T) {
	const post = "POST " + chatPath + " HTTP/1.1\r\n"
	hidden := keyed("smuggled", "")
	for name, in := range map[string]string{
		"length and encoding":      post + "Host: localhost\r\nContent-Length: " + fmt.Sprint(5+len(hidden)) + "\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden,
		"encoding and length":      post + "Host: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n" + fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(hidden), hidden),
		"space before the colon":   post + "Host: localhost\r\nTransfer-Encoding : chunked\r\nContent-Length: " + fmt.Sprint(5+len(hidden)) + "\r\n\r\n0\r\n\r\n" + hidden,
		"folded length":            post + "Host: localhost\r\nX: a\r\n Content-Length: " + fmt.Sprint(len(hidden)) + "\r\n\r\n" + hidden,
		"two lengths":              post + "Host: localhost\r\nContent-Length: 0\r\nContent-Length: " + fmt.Sprint(len(hidden)) + "\r\n\r\n" + hidden,
		"head that ends in LF":     post + "Host: localhost\r\nContent-Length: " + fmt.Sprint(len(hidden)) + "\n\n" + hidden,
		"LF after a chunk's size":  post + "Host: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\n\r\n" + hidden,
		"LF in an extension":       post + "Host: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2;\nxx\r\n0\r\n\r\n" + hidden,
		"behind an empty line":     "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n\r\n" + hidden,
		"behind a second host":     "GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n" + hidden,
		"behind a header's NUL":    "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: \x00\r\n\r\n" + hidden,
		"with a second key":        keyed("smuggled", "Authorization: Bearer other\r\nConnection: close\r\n"),
		"as HTTP/1.0 with a chunk": "POST " + chatPath + " HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n" + hidden,
	} {
		for _, before := range []string{"", keyed("first", "")} {
			e := &sessiontest.Entry{ID: "e1", Script: sessiontest.Words(2)}
			url, stop, _ := run(t, Config{Deployments: []session.Deployment{deploy(e)}, Keys: holders{"k": {ID: "k"}}})
			out := raw(t, url, before+in)
			stop()
			for _, r := range e.Requests() {
				if r.Messages[0].Content != "first" {
					t.Errorf("%s: an entry got %q: %q", name, r.Messages[0].Content, out)
				}
			}
			want := 0
			if before != "" {
				want = 1
			}
			if n := strings.Count(out, " w0 w1"); n != want || len(e.Requests()) != want {
				t.Errorf("%s: %d answers and %d requests, want %d: %q", name, n, len(e.Requests()), want, out)
			}
		}
	}
}

// TestPipelined has two requests with keys and one without in one stretch.
func TestPipelined(t *testing.T) {
	e := &sessiontest.Entry{ID: "e1", Script: sessiontest.Words(2)}
	url, _, _ := run(t, Config{Deployments: []session.Deployment{deploy(e)}, Keys: holders{"k": {ID: "k"}}})
	stranger := strings.Replace(keyed("c", "Connection: close\r\n"), "Bearer k", "Bearer x", 1)
	out := raw(t, url, keyed("a", "")+keyed("b", "")+stranger)
	if n := strings.Count(out, " w0 w1"); n != 2 || len(e.Requests()) != 2 || strings.Count(out, "HTTP/1.1 401 ") != 1 {
		t.Errorf("%d answers: %q", n, out)
	}
}

// TestMalformed checks what clients, counters and readers of logs are told.
func TestMalformed(t *testing.T) {
	registry := prometheus.NewRegistry()
	var log strings.Builder
	url, stop, ended := run(t, Config{Metrics: registry, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	f := &fixture{t: t, registry: registry}
	for _, c := range []struct {
		in, code string
		status   int
	}{
		{"GET /healthz HTTP/1.1\nHost: localhost\n\n", "malformed_request", 400},
		{"GET /healthz HTTP/1.1\r\n\r\n", "malformed_request", 400},
		{"GET http://[ HTTP/1.1\r\nHost: localhost\r\n\r\n", "malformed_request", 400},
		{"GET /healthz HTTP/3.0\r\n\r\n", "malformed_request", 505},
		{"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + strings.Repeat("x", 64<<10) + "\r\n\r\n", "headers_too_large", 431},
	} {
		was := f.metric("trctl_gateway_requests_total", "route=other", fmt.Sprintf("code=%d", c.status))
		head, body, _ := strings.Cut(raw(t, url, c.in), "\r\n\r\n")
		var got struct {
			Error struct{ Message, Type, Code string }
		}
		if err := json.Unmarshal([]byte(body), &got); err != nil {
			t.Fatalf("%q: %q: %v", c.in, body, err)
		}
		if !strings.HasPrefix(head, fmt.Sprintf("HTTP/1.1 %d %s\r\n", c.status, http.StatusText(c.status))) ||
			!strings.Contains(head, "\r\nConnection: close") || got.Error.Code != c.code || got.Error.Type != "invalid_request_error" || got.Error.Message == "" {
			t.Errorf("%.40q: %s: %+v", c.in, head, got)
		}
		eventually(t, fmt.Sprintf("%.40q is counted", c.in), func() bool {
			return f.metric("trctl_gateway_requests_total", "route=other", fmt.Sprintf("code=%d", c.status)) == was+1
		})
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := strings.Count(log.String(), `msg="request refused" remote=127.0.0.1:`); n != 5 {
		t.Errorf("logged %d times: %s", n, log.String())
	}
}
