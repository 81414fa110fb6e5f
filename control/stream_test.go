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

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/state"
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
	s := newStream(&Config{Log: slog.New(slog.DiscardHandler), View: client.NewView(), Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
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

// A connection of a node that was removed since somebody looked who it is, and after those
// that it had were closed, is not taken.
func TestConnectionOfRemovedNode(t *testing.T) {
	view := client.NewView()
	s := newStream(&Config{Log: slog.New(slog.DiscardHandler), View: view}, nil)
	take := func(dialed bool) bool {
		near, far := net.Pipe()
		t.Cleanup(func() { _ = errors.Join(near.Close(), far.Close()) })
		return s.add(&capped{Conn: near, stream: s, node: "c2", dialed: dialed})
	}
	if !take(false) || !take(true) {
		t.Fatal("the connections of a node that is there are not taken")
	}
	for _, c := range []struct {
		kind cluster.Kind
		body any
	}{
		{cluster.KindInit, cluster.Cluster{ID: "c"}}, {cluster.KindPutNode, cluster.Node{ID: "c1", Role: cluster.Control, Addr: "a:1", Protocol: 1}},
		{cluster.KindPutNode, cluster.Node{ID: "c2", Role: cluster.Control, Addr: "a:2", Protocol: 1}},
		{cluster.KindRemoveNode, cluster.Name{Name: "c2"}},
	} {
		command, err := cluster.NewCommand(c.kind, "", epoch, c.body)
		if err != nil {
			t.Fatal(err)
		}
		next, err := state.Apply(view.State(), view.State().Index+1, command)
		if err != nil {
			t.Fatal(err)
		}
		view.Publish(next)
	}
	s.closeAll(view.Removed)
	if len(s.open) != 1 {
		t.Errorf("%d connections are open", len(s.open))
	}
	if take(false) {
		t.Error("a connection of a removed node is taken")
	}
	if !take(true) {
		t.Error("the node cannot be told that it was removed")
	}
}
