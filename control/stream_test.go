package control

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/sourcegraph/conc"
)

// flood is a connection that has always something to read.
type flood struct{ net.Conn }

func (flood) Read(p []byte) (int, error) { return len(p), nil }

// A connection ends when too much has come since the last word from here.
func TestCapped(t *testing.T) {
	near, far := net.Pipe()
	var readers conc.WaitGroup
	defer readers.Wait()
	defer func() { _ = far.Close() }()
	readers.Go(func() { _, _ = io.Copy(io.Discard, far) })
	in := &capped{Conn: flood{near}, stream: newStream(&Config{Log: slog.New(slog.DiscardHandler)}, nil)}
	buf := make([]byte, 1<<20)
	for range 3 {
		for read := 0; read < maxUnanswered; {
			n, err := in.Read(buf)
			if err != nil {
				t.Fatalf("after %d bytes: %v", read, err)
			}
			read += n
		}
		if _, err := in.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	total := 0
	for {
		n, err := in.Read(buf)
		if total += n; err != nil {
			if !errors.Is(err, errFlood) || total != maxUnanswered {
				t.Errorf("after %d bytes: %v", total, err)
			}
			break
		}
	}
	if _, err := near.Write([]byte("x")); err == nil {
		t.Error("the connection is still open")
	}
}

// A message of the log is far below the cap.
func TestMessagesFit(t *testing.T) {
	if maxEntries*(1<<20) > maxUnanswered/2 || maxSnapshot >= maxUnanswered {
		t.Errorf("%d entries or a snapshot of %d do not fit into %d bytes", maxEntries, maxSnapshot, maxUnanswered)
	}
}

// Nothing that this node waits for on a connection, or for one, outlasts the fence.
func TestFence(t *testing.T) {
	dials := make(chan struct{})
	s := newStream(&Config{Log: slog.New(slog.DiscardHandler), Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		close(dials)
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}}, nil)
	var waiting conc.WaitGroup
	for _, dialed := range []bool{true, false} {
		near, far := net.Pipe()
		defer func() { _ = far.Close() }()
		c := &capped{Conn: near, stream: s, node: "c2", dialed: dialed}
		if !s.add(c) {
			t.Fatal("the connection is not taken")
		}
		waiting.Go(func() {
			if _, err := c.Read(make([]byte, 1)); err == nil {
				t.Error("something was read")
			}
		})
	}
	waiting.Go(func() {
		if _, err := s.Dial("c2/10.0.0.1:7000", time.Hour); !errors.Is(err, context.Canceled) {
			t.Errorf("Dial: %v", err)
		}
	})
	<-dials
	s.fence()
	waiting.Wait()
	if len(s.open) > 0 {
		t.Errorf("%d connections are left", len(s.open))
	}
	if s.add(&capped{stream: s, node: "c2", dialed: true}) {
		t.Error("a connection was taken after the fence")
	}
}
