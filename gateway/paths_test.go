package gateway

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/openai"
	"github.com/tokenrouter/tokenrouter/gateway/session/sessiontest"
)

// Clients write one path in several ways, and are told what they may have meant by
// those that do not exist.
func TestPaths(t *testing.T) {
	f := start(t, func(c *Config) { c.Version = "1.2" }, &sessiontest.Entry{ID: "e1", Script: sessiontest.Words(1)})
	for _, path := range []string{"/v1/chat/completions/", "//v1/chat/completions", "/v1//chat/completions//"} {
		if resp, body := f.post(path, `{`+hi+`}`); resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", path, body)
		}
	}
	eventually(t, "3 requests of the one path", func() bool { return f.metric("trctl_gateway_requests_total", "route="+chatPath) == 3 })
	for path, want := range map[string]string{
		"/v1/models/": `"object":"list"`, "/v1/models/tiny/": `"id":"tiny"`, "/v1/models/t%69ny/": `"id":"tiny"`, "/health/": "ok", "//version": `{"version":"1.2"}`,
	} {
		if resp, body := f.send("GET", path, "", nil); resp.StatusCode != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", path, resp.StatusCode, body)
		}
		if resp, body := f.send("HEAD", path, "", nil); resp.StatusCode != http.StatusOK || body != "" {
			t.Errorf("HEAD %s: %d %s", path, resp.StatusCode, body)
		}
	}
	for path, want := range map[string]string{
		"/chat/completions": "did you mean " + chatPath + "?", "/v1/v1/completions": "did you mean " + textPath + "?",
		"/openai/v1/chat/completions/": "did you mean " + chatPath + "?", "/models": "did you mean /v1/models?", "/v1/embeddings": chatPath,
	} {
		resp, body := f.post(path, `{}`)
		wantError(t, path, resp, body, 404, "not_found", "")
		if !strings.Contains(body, want) {
			t.Errorf("%s: %s", path, body)
		}
	}
	if _, body := f.send("GET", chatPath, "", nil); !strings.Contains(body, "but to OPTIONS, POST") {
		t.Errorf("a method that is not allowed: %s", body)
	}
	if _, body := f.send("GET", "/v1/models/gpt", "", nil); !strings.Contains(body, "there are tiny") {
		t.Errorf("no names: %s", body)
	}
}

// A preflight, or a request for the methods of a path, is no generation.
func TestOptionsEndNothing(t *testing.T) {
	f := start(t, nil, &sessiontest.Entry{ID: "e1", Script: sessiontest.Words(1)})
	if resp, _ := f.send("OPTIONS", chatPath, "", nil); resp.StatusCode != http.StatusNoContent {
		t.Errorf("status %d", resp.StatusCode)
	}
	if got := f.metric("trctl_gateway_ended_total"); got != 0 {
		t.Errorf("%g generations ended", got)
	}
}

// A client that sends a body which is too large can send all of it, and then reads why
// it was refused. One that asks before it sends is not made to.
func TestTooLargeIsHeard(t *testing.T) {
	f := start(t, nil, &sessiontest.Entry{ID: "e1", Script: sessiontest.Words(1)})
	const size = openai.MaxBody + 3<<20
	for _, tc := range []struct{ name, header, body string }{
		{"length", fmt.Sprintf("Content-Length: %d\r\n\r\n", size), strings.Repeat(" ", size)},
		{"chunks", "Transfer-Encoding: chunked\r\n\r\n", fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", size, strings.Repeat(" ", size))},
		{"expect", fmt.Sprintf("Content-Length: %d\r\nExpect: 100-continue\r\n\r\n", size), ""},
	} {
		c, err := net.Dial("tcp", f.server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		_, err = c.Write([]byte("POST " + chatPath + " HTTP/1.1\r\nHost: localhost\r\n" + tc.header + tc.body))
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		if resp.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("%s: status %d", tc.name, resp.StatusCode)
		}
		_ = resp.Body.Close()
		_ = c.Close()
	}
}
