package gateway

import (
	"context"
	"crypto/sha256"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/gateway/session/sessiontest"
)

// ask sends one request to the handler as if it came in through an address.
func ask(f *fixture, over net.Addr, method, host string, header http.Header) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "http://"+host+chatPath, strings.NewReader(`{`+hi+`}`))
	r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, over))
	r.Host = host
	for k, v := range header {
		r.Header[k] = v
	}
	w := httptest.NewRecorder()
	f.Handler().ServeHTTP(w, r)
	return w
}

// TestHost checks the names under which a server on loopback answers, so that a
// page whose name was rebound to 127.0.0.1 does not reach it.
func TestHost(t *testing.T) {
	f := start(t, func(c *Config) { c.AllowHosts = []string{"llm.example.org"} }, &sessiontest.Entry{ID: "e1", Script: sessiontest.Words(1)})
	loopback := []net.Addr{&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8000}, &net.TCPAddr{IP: net.IPv6loopback, Port: 8000}}
	public := &net.TCPAddr{IP: net.IPv4(10, 1, 2, 3), Port: 8000}
	for host, ok := range map[string]bool{
		"127.0.0.1:8000": true, "127.9.9.9": true, "localhost:8000": true, "LOCALHOST": true, "[::1]:8000": true, "app.localhost:1": true,
		"llm.example.org": true, "LLM.example.org:443": true,
		"evil.example:8000": false, "localhost.evil.example": false, "notlocalhost": false, "10.1.2.3:8000": false, "0.0.0.0:8000": false, "127.0.0.1.evil.example": false,
	} {
		for _, over := range loopback {
			w := ask(f, over, "POST", host, nil)
			if got := w.Code == http.StatusOK; got != ok {
				t.Errorf("%s over %s: %d", host, over, w.Code)
			}
			if !ok && !strings.Contains(w.Body.String(), "host_not_allowed") {
				t.Errorf("%s: %s", host, w.Body)
			}
		}
		if w := ask(f, public, "POST", host, nil); w.Code != http.StatusOK {
			t.Errorf("%s over %s: %d", host, public, w.Code)
		}
	}
}

func TestOrigins(t *testing.T) {
	over := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8000}
	for _, tc := range []struct {
		name    string
		allowed []string
		origin  string
		ok      bool
	}{
		{"none", nil, "", true},
		{"own page", nil, "http://localhost:8000", true},
		{"another port", nil, "http://localhost:3000", false},
		{"foreign", nil, "https://evil.example", false},
		{"file", nil, "null", false},
		{"allowed", []string{"http://localhost:3000", "https://chat.example.org"}, "http://localhost:3000", true},
		{"allowed, other scheme", []string{"https://chat.example.org"}, "http://chat.example.org", false},
		{"all", []string{"*"}, "https://evil.example", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := start(t, func(c *Config) {
				c.AllowOrigins = tc.allowed
				c.Keys = hashedKeys{sha256.Sum256([]byte("tr-one"))}
			}, &sessiontest.Entry{ID: "e1", Script: sessiontest.Words(1)})
			h := http.Header{"Authorization": {"Bearer tr-one"}}
			if tc.origin != "" {
				h.Set("Origin", tc.origin)
			}
			w := ask(f, over, "POST", "localhost:8000", h)
			want, status := tc.origin, http.StatusOK
			if !tc.ok {
				want, status = "", http.StatusForbidden
			}
			if w.Code != status || w.Header().Get("Access-Control-Allow-Origin") != want {
				t.Errorf("%d, allowed origin %q: %s", w.Code, w.Header().Get("Access-Control-Allow-Origin"), w.Body)
			}
			if tc.origin == "" {
				return
			}
			pre := ask(f, over, "OPTIONS", "localhost:8000", http.Header{
				"Origin": {tc.origin}, "Access-Control-Request-Method": {"POST"}, "Access-Control-Request-Headers": {"authorization,content-type,x-stainless-os"},
			})
			names := pre.Header().Get("Access-Control-Allow-Headers")
			if tc.ok && (pre.Code != http.StatusNoContent || !strings.Contains(names, "x-stainless-os") || !strings.Contains(pre.Header().Get("Access-Control-Allow-Methods"), "POST")) ||
				!tc.ok && pre.Code != http.StatusForbidden {
				t.Errorf("preflight: %d, %v", pre.Code, pre.Header())
			}
			// A preflight opens nothing: the request itself still needs its key.
			h.Del("Authorization")
			if w := ask(f, over, "POST", "localhost:8000", h); tc.ok && w.Code != http.StatusUnauthorized {
				t.Errorf("without a key: %d", w.Code)
			}
		})
	}
	for _, bad := range []string{"localhost", "http://", "http://a/b", "http://a?b", "//a"} {
		if _, err := New(Config{AllowOrigins: []string{bad}}); !errors.Is(err, ErrConfig) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
