package control

import (
	"errors"
	"io"
	"net"
	"testing"

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
	in := &capped{Conn: flood{near}}
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
