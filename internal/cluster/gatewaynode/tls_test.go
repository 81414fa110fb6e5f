package gatewaynode

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/internal/cluster/clustertest"
)

// TestTLS speaks every protocol to a public port that is TLS.
func TestTLS(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	files := t.TempDir()
	writeCertificate(t, files)
	dir, saved := clustertest.Identity(r.Cluster, cluster.Gateway, "gateway-1")
	g := r.gatewayIn(dir, saved, func(c *Config) { c.TLSCert, c.TLSKey = files+"/crt", files+"/key" })
	addr := g.Addr().String()

	for version, transport := range map[int]*http.Transport{
		2: {TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true},
		1: {TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
	} {
		resp, err := (&http.Client{Transport: transport}).Get("https://" + addr + "/healthz")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK || resp.ProtoMajor != version || resp.TLS == nil {
			t.Errorf("HTTP/%d: %s %s %q, %v", version, resp.Proto, resp.Status, body, err)
		}
		_ = resp.Body.Close()
		transport.CloseIdleConnections()
	}

	const strict, sloppy = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", "GET /healthz HTTP/1.1\nHost: localhost\r\n\r\n"
	for _, c := range []struct {
		protocols []string
		say, want string
	}{
		{nil, strict, "HTTP/1.1 200 "},
		{nil, sloppy, "HTTP/1.1 400 "},
		{[]string{"http/1.1"}, strict, "HTTP/1.1 200 "},
		{[]string{"http/1.1"}, sloppy, "HTTP/1.1 400 "},
		{[]string{"http/1.1"}, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/1.1 505 "},
	} {
		conn, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true, NextProtos: c.protocols})
		if err != nil {
			t.Fatal(err)
		}
		if got := exchange(t, conn, c.say); !strings.HasPrefix(got, c.want) {
			t.Errorf("%q, %q: %q", c.protocols, c.say, got)
		}
	}
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	if got := exchange(t, conn, strict); got != notTLS {
		t.Errorf("without TLS: %q", got)
	}
	if err := g.end(); err != nil {
		t.Errorf("Run: %v", err)
	}
	// Another test may have the port's number by now, so it is not dialled.
	if _, err := g.public.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the port is still open: %v", err)
	}
}

// exchange writes a text and returns what comes back until the other side is done.
func exchange(t *testing.T, conn net.Conn, say string) string {
	t.Helper()
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, say); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(conn)
	if err != nil {
		t.Errorf("%q: %v", say, err)
	}
	return string(got)
}
