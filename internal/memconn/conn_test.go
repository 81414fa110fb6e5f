package memconn

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sourcegraph/conc"
	"golang.org/x/net/nettest"
)

func TestConn(t *testing.T) {
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		a, b := Pipe()
		return a, b, func() { a.Close(); b.Close() }, nil
	})
}

// All bytes arrive in order through a buffer smaller than the stream, whatever
// the sizes of the pieces.
func TestStream(t *testing.T) {
	a, b := Pipe()
	const size = 3*BufferBytes + 17
	var g conc.WaitGroup
	g.Go(func() {
		r := rand.New(rand.NewPCG(1, 2))
		for n := 0; n < size; {
			p := make([]byte, min(1+r.IntN(70_000), size-n))
			for i := range p {
				p[i] = byte((n + i) % 251)
			}
			k, err := a.Write(p)
			if err != nil || k != len(p) {
				t.Errorf("write: %d, %v", k, err)
				break
			}
			n += k
		}
		a.Close()
	})
	r := rand.New(rand.NewPCG(3, 4))
	n := 0
	for {
		p := make([]byte, r.IntN(50_000))
		k, err := b.Read(p)
		for i := range k {
			if p[i] != byte((n+i)%251) {
				t.Fatalf("byte %d is %d", n+i, p[i])
			}
		}
		n += k
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	g.Wait()
	if n != size {
		t.Fatalf("read %d bytes of %d", n, size)
	}
}

func TestWriterWaitsWhenFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := Pipe()
		done := false
		var g conc.WaitGroup
		g.Go(func() {
			if n, err := a.Write(make([]byte, BufferBytes+1)); n != BufferBytes+1 || err != nil {
				t.Errorf("write: %d, %v", n, err)
			}
			done = true
		})
		synctest.Wait()
		if done {
			t.Fatal("more than the buffer was taken")
		}
		if _, err := b.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		g.Wait()

		// The other end stops reading: a deadline ends the wait.
		if err := a.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if _, err := a.Write(make([]byte, 10)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("write past the deadline: %v", err)
		}
		if d := time.Since(start); d != time.Second {
			t.Fatalf("the deadline took %v", d)
		}
		b.Close()
		if _, err := a.Write([]byte("x")); err == nil {
			t.Fatal("wrote to a closed end")
		}
	})
}

func TestListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Listen()
		var g conc.WaitGroup
		g.Go(func() {
			c, err := l.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = c.Write([]byte("hi"))
			c.Close()
		})
		c, err := l.Dial(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(c); string(b) != "hi" || err != nil {
			t.Fatalf("read %q, %v", b, err)
		}
		if !Is(c) || Is(&net.TCPConn{}) {
			t.Fatal("Is")
		}
		g.Wait()

		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if _, err := l.Dial(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("dial without accept: %v", err)
		}
		l.Close()
		l.Close()
		if _, err := l.Dial(context.Background()); !errors.Is(err, net.ErrClosed) {
			t.Fatalf("dial after close: %v", err)
		}
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Fatalf("accept after close: %v", err)
		}
	})
}
