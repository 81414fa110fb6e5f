package unwelcome

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
)

func TestLog(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	var l Log
	for i, step := range []struct {
		peer, why, level string
		count            int
	}{
		{"a", "version 3", "WARN", 1},
		{"a", "version 3", "DEBUG", 2},
		{"b", "version 3", "WARN", 1},
		{"a", "version 3", "DEBUG", 3},
		{"a", "version 4", "WARN", 1},
		{"a", "version 4", "DEBUG", 2},
		{"a", "version 3", "DEBUG", 4},
		{"", "", "", 0}, // a is let in
		{"a", "version 4", "WARN", 1},
		{"b", "version 3", "DEBUG", 2},
	} {
		out.Reset()
		if step.peer == "" {
			l.Forget("a")
			continue
		}
		l.Note(log, "peer refused", step.peer, errors.New(step.why), "addr", "x:1")
		want := fmt.Sprintf("level=%s msg=\"peer refused\" peer=%s err=%q count=%d addr=x:1\n", step.level, step.peer, step.why, step.count)
		if got := out.String(); !strings.HasSuffix(got, want) {
			t.Errorf("step %d: %s, want %s", i, got, want)
		}
	}
}

func TestLogForgets(t *testing.T) {
	var l Log
	for i := range 3 * maxPeers {
		l.Note(slog.New(slog.DiscardHandler), "refused", fmt.Sprint(i), errors.New("no"))
	}
	if len(l.seen) != maxPeers {
		t.Errorf("%d peers are remembered, want %d", len(l.seen), maxPeers)
	}
	for i := range 3 * maxCauses {
		l.Note(slog.New(slog.DiscardHandler), "refused", "one", errors.New(fmt.Sprint(i)))
	}
	if list := l.seen["one"]; len(list) != maxCauses || list[maxCauses-1].why != fmt.Sprint(3*maxCauses-1) || len(l.seen) != maxPeers {
		t.Errorf("%d causes are remembered: %v", len(list), list)
	}
}

// Two attempts from one host are one cause, whatever their ports.
func TestCauseHasNoPort(t *testing.T) {
	from := func(port int) error {
		op := &net.OpError{
			Op: "read", Net: "tcp", Source: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 7000}, Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 2), Port: port},
			Err: syscall.ECONNRESET,
		}
		return fmt.Errorf("handshake: %w", op)
	}
	if a, b := cause(from(1)), cause(from(2)); a != b || a != "handshake: read: "+syscall.ECONNRESET.Error() {
		t.Errorf("%q and %q", a, b)
	}
}

func TestPeer(t *testing.T) {
	certified := &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{Subject: pkix.Name{CommonName: "worker w1"}}}}
	for _, c := range []struct {
		r    http.Request
		want string
	}{
		{http.Request{RemoteAddr: "10.0.0.1:4711"}, "10.0.0.1"},
		{http.Request{RemoteAddr: "[::1]:4711"}, "::1"},
		{http.Request{RemoteAddr: "pipe"}, "pipe"},
		{http.Request{RemoteAddr: "10.0.0.1:4711", TLS: new(tls.ConnectionState)}, "10.0.0.1"},
		{http.Request{RemoteAddr: "10.0.0.1:4711", TLS: certified}, "worker w1"},
	} {
		if got := Peer(&c.r); got != c.want {
			t.Errorf("Peer(%s) = %q, want %q", c.r.RemoteAddr, got, c.want)
		}
	}
}
