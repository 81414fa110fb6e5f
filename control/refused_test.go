package control

import (
	"bytes"
	"log/slog"
	"net"
	"strings"
	"testing"
)

// dials is a listener to which somebody without a certificate connects again and again.
type dials struct{ left int }

func (d *dials) Accept() (net.Conn, error) {
	if d.left--; d.left < 0 {
		return nil, net.ErrClosed
	}
	near, far := net.Pipe()
	_ = far.Close()
	return near, nil
}

func (*dials) Close() error   { return nil }
func (*dials) Addr() net.Addr { return advertised("here") }

// Who is refused at each dial is told of once, and counted.
func TestRefusedConnectionsAreCounted(t *testing.T) {
	var out bytes.Buffer
	s := newStream(&Config{Log: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})), Raft: &dials{left: 50}}, nil)
	if _, err := s.Accept(); err != net.ErrClosed {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "level=WARN msg=\"raft connection refused\""); n != 1 || !strings.Contains(out.String(), "count=50") {
		t.Errorf("%d warnings:\n%s", n, &out)
	}
}
