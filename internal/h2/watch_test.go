package h2

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tokenrouter/tokenrouter/internal/memconn"
)

// frozen is a network whose server's answers can be held back.
type frozen struct {
	net.Conn
	mu    *sync.Mutex
	until *time.Time // nothing is read before
}

// Read reads, and waits until what was read may be handed out.
func (f *frozen) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	for {
		f.mu.Lock()
		d := time.Until(*f.until)
		f.mu.Unlock()
		if d <= 0 || err != nil {
			return n, err
		}
		timer := time.NewTimer(d)
		<-timer.C
	}
}

// A server that pauses keeps its connection; one that stays silent loses it soon, and so
// ends every stream on it.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := memconn.Listen()
		var mu sync.Mutex
		var until time.Time
		hold := func(d time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			until = time.Now().Add(d)
		}
		dials := 0
		tr := transport(t, Config{Silence: 600 * time.Millisecond, Dial: func(ctx context.Context) (net.Conn, error) {
			dials++
			c, err := l.Dial(ctx)
			if err != nil {
				return nil, err
			}
			return &frozen{c, &mu, &until}, nil
		}})
		stop := serve(t, Config{}, l, func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		})
		resp, err := post(t, tr, "/", nil)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan time.Time, 1)
		var reader sync.WaitGroup
		reader.Go(func() {
			_, _ = io.Copy(io.Discard, resp.Body)
			ended <- time.Now()
		})
		wait := func(d time.Duration) { timer := time.NewTimer(d); <-timer.C }
		for range 20 {
			hold(300 * time.Millisecond)
			wait(333 * time.Millisecond)
		}
		wait(time.Minute)
		if len(ended) > 0 || dials != 1 {
			t.Fatal("pauses have ended the stream")
		}
		hold(2500 * time.Millisecond)
		start := time.Now()
		if d := (<-ended).Sub(start); d < 500*time.Millisecond || d > 650*time.Millisecond {
			t.Errorf("the stream ended after %v", d)
		}
		reader.Wait()
		wait(3 * time.Second)
		resp, err = post(t, tr, "/", nil)
		if err != nil || dials != 2 {
			t.Fatalf("%d connections, %v", dials, err)
		}
		tr.Drop()
		if _, err := io.ReadAll(resp.Body); err == nil {
			t.Error("Drop has not ended the stream")
		}
		tr.Drop() // nothing is there
		_ = tr.Close()
		_ = stop()
	})
}

// Close and Drop end the watch.
func TestWatchEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := memconn.Listen()
		stop := serve(t, Config{}, l, echo)
		for _, drop := range []bool{false, true} {
			tr := transport(t, Config{Silence: time.Second, Dial: memory(l)})
			for range 3 {
				resp, err := post(t, tr, "/", nil)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if drop {
					tr.Drop()
				}
			}
			start := time.Now()
			_ = tr.Close()
			if d := time.Since(start); d > 0 {
				t.Errorf("Close took %v", d)
			}
			_ = tr.Close()
		}
		_ = stop()
	})
}

// Within a process nothing is given up, however late it is.
func TestSameProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := memconn.Listen()
		var mu sync.Mutex
		until := time.Now().Add(time.Minute)
		tr := transport(t, Config{SameProcess: true, Dial: func(ctx context.Context) (net.Conn, error) {
			c, err := l.Dial(ctx)
			if err != nil {
				return nil, err
			}
			return &frozen{c, &mu, &until}, nil
		}})
		stop := serve(t, Config{SameProcess: true}, l, echo)
		start := time.Now()
		resp, err := post(t, tr, "/", strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(resp.Body); string(b) != "x" || err != nil || time.Since(start) < time.Minute {
			t.Errorf("%q after %v, error %v", b, time.Since(start), err)
		}
		tr.Close()
		_ = stop()
	})
	if _, err := NewTransport(Config{SameProcess: true, Silence: time.Second, Dial: memory(memconn.Listen())}); err == nil {
		t.Error("Silence within a process was accepted")
	}
}
