package peer_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tokenrouter/tokenrouter/api/handoff"
	"github.com/tokenrouter/tokenrouter/api/protocol"
	"github.com/tokenrouter/tokenrouter/worker/peer"
	"github.com/tokenrouter/tokenrouter/worker/peer/peertest"
)

// framed is the encoding of frames, for tests that spoil it.
func framed(t *testing.T, frames ...*handoff.Frame) []byte {
	t.Helper()
	var b []byte
	for _, f := range frames {
		var err error
		if b, err = handoff.AppendFramed(b, f); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func numbered(seq uint64, f *handoff.Frame) *handoff.Frame {
	f.Seq = seq
	return f
}

// A hop with one token costs at most 64 bytes on the stream.
func TestBytesPerHop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, peertest.Good)
		r.serve(peer.ServerConfig{Config: peer.Config{Handler: owner{frame: answer(t)}}})
		y := newRally(t, 1, 200)
		_, tap := r.transport()
		r.dial(peer.ClientConfig{Config: peer.Config{Handler: y.owner()}, Transport: tap})
		<-y.done
		for _, d := range []int{peertest.Up, peertest.Down} {
			n, size := tap.Turns(d)
			if n != 100 || size > 64*n {
				t.Errorf("direction %d: %d frames take %d bytes", d, n, size)
			}
		}
		// All in all: frame, acknowledgement, HTTP/2 frame head.
		up, down := r.net.Bytes()
		if up+down > 200*110 {
			t.Errorf("200 hops take %d bytes of connection", up+down)
		}
		r.stop()
	})
}

// What a bad client sends, the code it gets, and whether it counts as a strike.
func TestHostile(t *testing.T) {
	const session = 7
	hello := framed(t, helloFrame("bad", session, 100))
	frame := framed(t, numbered(1, hop(1, 1)))
	spoil := func(at int, v byte) []byte {
		b := bytes.Clone(frame)
		b[at] = v
		return b
	}
	cases := map[string]struct {
		b      []byte
		code   string
		strike bool
	}{
		"no hello":          {frame, "bad_frame", false},
		"goodbye at once":   {framed(t, &handoff.Frame{Kind: handoff.KindRelease}), "bad_frame", false},
		"zero length":       {append(bytes.Clone(hello), 0, 0, 0, 0), "bad_frame", true},
		"length lies":       {append(bytes.Clone(hello), 0xff, 0xff, 0xff, 0xff), "bad_frame", true},
		"unknown kind":      {append(bytes.Clone(hello), spoil(4, 99)...), "bad_frame", true},
		"unknown flag":      {append(bytes.Clone(hello), spoil(5, 0x80)...), "bad_frame", true},
		"tokens lie":        {append(bytes.Clone(hello), spoil(4+34, 0xff)...), "bad_frame", true},
		"no number":         {append(bytes.Clone(hello), spoil(6, 0)...), "bad_frame", true},
		"gap":               {append(bytes.Clone(hello), spoil(6, 2)...), "bad_frame", true},
		"second hello":      {append(bytes.Clone(hello), hello...), "bad_frame", true},
		"ack of nothing":    {framed(t, helloFrame("bad", session, 1), &handoff.Frame{Kind: handoff.KindAck, Ack: 1}), "bad_frame", true},
		"hello acks":        {framed(t, &handoff.Frame{Kind: handoff.KindHello, ProtocolVersion: handoff.Version, Replica: "bad", Session: session, Ack: 9}), "bad_frame", false},
		"resume of nothing": {framed(t, &handoff.Frame{Kind: handoff.KindHello, ProtocolVersion: handoff.Version, Replica: "bad", Session: session, PeerSession: 4}), "session_lost", false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, peertest.Good)
				r.serve(peer.ServerConfig{Config: peer.Config{Handler: owner{frame: answer(t)}, Limits: patient()}})
				// A good peer that must not notice.
				y := newRally(t, 4, 2000)
				_, tap := r.transport()
				r.dial(peer.ClientConfig{Config: peer.Config{Handler: y.owner()}, Transport: tap})

				tr, _ := r.transport()
				for range peer.MaxStrikes {
					w := r.raw(tr)
					w.write(c.b)
					if code := w.goodbye(); code != c.code {
						t.Errorf("code %q, want %q", code, c.code)
					}
					w.close()
					synctest.Wait()
				}
				w := r.raw(tr)
				w.write(hello)
				f := w.next()
				if banned := f.Kind == handoff.KindRelease && f.Code == "refused"; banned != c.strike {
					t.Errorf("after %d times it gets a %s %q", peer.MaxStrikes, f.Kind, f.Code)
				}
				w.close()
				synctest.Wait()
				if d := r.ledger.Downs(); c.strike && (len(d) != 1 || !errors.Is(d[0], peer.ErrHostile)) {
					t.Errorf("downs: %v", d)
				}
				// Another session of the same replica is welcome.
				w = r.raw(tr)
				w.send(helloFrame("bad", session+1, 1))
				if f := w.next(); f.Kind != handoff.KindHello {
					t.Errorf("another session gets a %s %q", f.Kind, f.Code)
				}
				w.close()
				<-y.done
				r.stop()
			})
		})
	}
}

// The sender holds frames until it has credits for them.
func TestCredits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, peertest.Good)
		r.serve(peer.ServerConfig{Config: peer.Config{Handler: owner{up: func(l *peer.Link) {
			for i := range uint32(10) {
				if err := l.Send(hop(1, i)); err != nil {
					t.Error(err)
				}
			}
		}}, Limits: patient()}})
		tr, _ := r.transport()
		w := r.raw(tr)
		w.send(helloFrame("x", 1, 0)) // window 0
		w.next()
		var mu sync.Mutex
		var got []uint64
		var wait sync.WaitGroup
		wait.Go(func() {
			for {
				var f handoff.Frame
				if w.in.Next(&f) != nil {
					return
				}
				mu.Lock()
				got = append(got, f.Seq)
				mu.Unlock()
			}
		})
		for _, c := range []struct {
			ack     uint64
			credits uint32
			want    int
		}{{0, 0, 0}, {0, 3, 3}, {2, 0, 3}, {3, 1, 4}, {4, 100, 10}} {
			w.send(&handoff.Frame{Kind: handoff.KindAck, Ack: c.ack, Credits: c.credits})
			synctest.Wait()
			mu.Lock()
			if len(got) != c.want {
				t.Errorf("after ack %d with %d credits: %v", c.ack, c.credits, got)
			}
			mu.Unlock()
		}
		w.close()
		wait.Wait()
		r.stop()
	})
}

// A handler that is stuck on one link holds up no other link, though both share
// one connection.
func TestStalledLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, peertest.Good)
		stuck := make(chan struct{})
		r.serve(peer.ServerConfig{Config: peer.Config{Handler: owner{frame: func(l *peer.Link, f *handoff.Frame) {
			if name, _ := l.Peer(); name == "stalled" {
				<-stuck
				return
			}
			answer(t)(l, f)
		}}}})
		_, tap := r.transport()
		full := make(chan error, 1)
		r.dial(peer.ClientConfig{
			Config: peer.Config{Replica: "stalled", Handler: owner{up: func(l *peer.Link) {
				f := hop(1, 1)
				f.Tokens = make([]handoff.Token, 1000) // 5 KB: more than the stream's window in all
				for ; ; f.Hop++ {
					if err := l.Send(f); err != nil {
						full <- err
						return
					}
				}
			}}},
			Transport: tap,
		})
		if err := <-full; !errors.Is(err, peer.ErrLinkFull) {
			t.Errorf("send: %v", err)
		}
		synctest.Wait()
		start := time.Now()
		y := newRally(t, 8, 500)
		r.dial(peer.ClientConfig{Config: peer.Config{Handler: y.owner()}, Transport: tap})
		<-y.done
		if d := time.Since(start); d > 0 {
			t.Errorf("the neighbour took %v", d)
		}
		if n := r.net.Dialed(); n != 1 {
			t.Errorf("%d connections", n)
		}
		close(stuck)
		r.stop()
	})
}

// A side that speaks no version of this build is refused by both, once in the log, and
// what it speaks is named.
func TestVersions(t *testing.T) {
	for name, c := range map[string]struct {
		newest, oldest uint16 // oldest is 0 for the same
		says           string
	}{
		"too new": {99, 98, "the other 98 to 99: the other is too new"},
		"garbage": {0, 0, "no range of versions"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testRefused(t, c.newest, c.oldest, c.says) })
		})
	}
}

func testRefused(t *testing.T, newest, oldest uint16, says string) {
	var log lockedBuffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	r := newRig(t, peertest.Good)
	r.serve(peer.ServerConfig{Config: peer.Config{Handler: owner{}, Log: logger}})
	tr, _ := r.transport()
	head := []byte{byte(handoff.KindHello), 0, byte(newest), 0}
	if oldest != 0 {
		head = []byte{byte(handoff.KindHello), 1, byte(newest), 0, byte(oldest), 0}
	}
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(head)+8))
	b = append(append(b, head...), "whatever"...)
	for range 3 { // dials
		w := r.raw(tr)
		w.write(b)
		var f handoff.Frame
		if err := w.in.Next(&f); err != nil || f.Versions() != protocol.Handoff() {
			t.Errorf("server answers versions %s, %v", f.Versions(), err)
		}
		if code := w.goodbye(); code != "version_mismatch" {
			t.Errorf("code %q", code)
		}
		w.close()
	}
	if s := log.String(); strings.Count(s, says) != 1 {
		t.Errorf("server's log: %s", s)
	}

	// Now the server is the odd one.
	log.Reset()
	r.mux.set(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(b)
	}))
	ledger, stop := r.dial(peer.ClientConfig{Config: peer.Config{Handler: owner{}, Log: logger}, Transport: tr})
	<-time.After(3 * time.Second) // several dials
	if s := log.String(); strings.Count(s, says) != 1 || ledger.Ups() > 0 {
		t.Errorf("client's log: %s", s)
	}
	stop()
	r.stop()
}

// A side that speaks more than this build gets what both speak.
func TestNewerPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, peertest.Good)
		versions := make(chan int, 1)
		r.serve(peer.ServerConfig{Config: peer.Config{Handler: owner{up: func(l *peer.Link) { versions <- l.Version() }}}})
		tr, _ := r.transport()
		w := r.raw(tr)
		h := helloFrame("newer", 1, 1)
		h.ProtocolVersion, h.OldestVersion = handoff.Version+5, protocol.HandoffOldest
		w.send(h)
		if f := w.next(); f.Kind != handoff.KindHello {
			t.Errorf("it gets a %s %q", f.Kind, f.Code)
		}
		if v := <-versions; v != handoff.Version {
			t.Errorf("the link speaks %d, want %d", v, handoff.Version)
		}
		w.close()
		r.stop()
	})
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func (b *lockedBuffer) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.b.Reset()
}

// Names are held against the certificate, and the client knows whom it wants.
func TestAuthorize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, peertest.Good)
		r.serve(peer.ServerConfig{
			Config: peer.Config{Handler: owner{}},
			Authorize: func(_ *http.Request, replica, model string) error {
				if replica != "good" {
					return errors.New("not you")
				}
				return nil
			},
		})
		tr, tap := r.transport()
		w := r.raw(tr)
		w.send(helloFrame("evil", 1, 1))
		if code := w.goodbye(); code != "refused" {
			t.Errorf("code %q", code)
		}
		w.close()
		up := make(chan struct{}, 1)
		cfg := peer.Config{Replica: "good", Handler: owner{up: func(*peer.Link) { up <- struct{}{} }}}
		wrong, stop := r.dial(peer.ClientConfig{Config: cfg, Transport: tap, Expect: "another"})
		timer := time.NewTimer(5 * time.Second)
		<-timer.C
		if wrong.Ups() > 0 {
			t.Error("a link to a replica that was not asked for")
		}
		stop()
		r.dial(peer.ClientConfig{Config: cfg, Transport: tap, Expect: "large-0"})
		<-up
		r.stop()
	})
}

func TestHTTPStatus(t *testing.T) {
	s, err := peer.NewServer(peer.ServerConfig{Config: peer.Config{Replica: "x", Handler: owner{}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		method string
		major  int
		want   int
	}{
		{http.MethodPost, 1, http.StatusHTTPVersionNotSupported},
		{http.MethodGet, 2, http.StatusMethodNotAllowed},
		{http.MethodPost, 2, http.StatusServiceUnavailable}, // it does not run
	} {
		w := httptest.NewRecorder()
		req := httptest.NewRequest(c.method, peer.Path, nil)
		req.ProtoMajor = c.major
		s.ServeHTTP(w, req)
		if w.Code != c.want {
			t.Errorf("%s HTTP/%d: status %d, want %d", c.method, c.major, w.Code, c.want)
		}
	}
}

// MaxPeers bounds the replicas, and a seat is free again when its link is gone.
func TestMaxPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, peertest.Good)
		r.serve(peer.ServerConfig{Config: peer.Config{
			Handler: owner{}, Limits: peer.Limits{MaxPeers: 1, ResumeFor: time.Second},
		}})
		tr, _ := r.transport()
		a := r.raw(tr)
		a.send(helloFrame("a", 1, 1))
		a.next()
		b := r.raw(tr)
		b.send(helloFrame("b", 1, 1))
		if code := b.goodbye(); code != "too_many_peers" {
			t.Errorf("code %q", code)
		}
		b.close()
		a.close()
		timer := time.NewTimer(2 * time.Second)
		<-timer.C
		b = r.raw(tr)
		b.send(helloFrame("b", 1, 1))
		if f := b.next(); f.Kind != handoff.KindHello {
			t.Errorf("got a %s %q", f.Kind, f.Code)
		}
		b.close()
		r.stop()
	})
}

func TestConfig(t *testing.T) {
	good := peer.Config{Replica: "x", Handler: owner{}}
	for name, edit := range map[string]func(*peer.Config){
		"no handler": func(c *peer.Config) { c.Handler = nil },
		"no replica": func(c *peer.Config) { c.Replica = "" },
		"long name":  func(c *peer.Config) { c.Model = strings.Repeat("x", handoff.MaxName+1) },
		"negative":   func(c *peer.Config) { c.Limits.OutboxFrames = -1 },
		"backoff":    func(c *peer.Config) { c.Limits.MaxBackoff = time.Nanosecond },
	} {
		c := good
		edit(&c)
		if _, err := peer.NewServer(peer.ServerConfig{Config: c}); err == nil {
			t.Errorf("server: %s", name)
		}
		if _, err := peer.NewClient(peer.ClientConfig{Config: c, Transport: http.DefaultTransport}); err == nil {
			t.Errorf("client: %s", name)
		}
	}
	if _, err := peer.NewClient(peer.ClientConfig{Config: good}); err == nil {
		t.Error("no transport")
	}
	if _, err := peer.NewClient(peer.ClientConfig{Config: good, URL: "http://a b", Transport: http.DefaultTransport}); err == nil {
		t.Error("bad URL")
	}
}

// Send refuses what is no turn, and more than the outbox holds. It never blocks.
func TestSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, peertest.Good)
		r.serve(peer.ServerConfig{Config: peer.Config{Handler: owner{}}})
		up := make(chan *peer.Link, 1)
		_, tap := r.transport()
		_, stop := r.dial(peer.ClientConfig{
			Config: peer.Config{
				Handler: owner{up: func(l *peer.Link) {
					// The reader's goroutine is here, so nothing is acknowledged yet.
					for i := range uint32(5) {
						err := l.Send(hop(1, i))
						if want := error(nil); i >= 4 {
							want = peer.ErrLinkFull
							if !errors.Is(err, want) {
								t.Errorf("frame %d: %v", i, err)
							}
						} else if err != nil {
							t.Error(err)
						}
					}
					up <- l
				}},
				Limits: peer.Limits{OutboxFrames: 4},
			},
			Transport: tap,
		})
		l := <-up
		synctest.Wait()
		if n := l.Queued(); n != 0 || !l.Connected() || l.Err() != nil {
			t.Errorf("queued %d, connected %v, %v", n, l.Connected(), l.Err())
		}
		f := hop(1, 9)
		f.Seq = 1234
		if err := l.Send(f); err != nil || f.Seq != 1234 {
			t.Errorf("send: %v, Seq became %d", err, f.Seq)
		}
		for _, bad := range []*handoff.Frame{
			{Kind: handoff.KindHello, Request: 1}, {Kind: handoff.KindAck}, {Kind: handoff.KindRelease}, {Request: 1},
		} {
			if err := l.Send(bad); !errors.Is(err, peer.ErrFrame) {
				t.Errorf("%+v: %v", bad, err)
			}
		}
		f = hop(1, 10)
		f.State = make([]byte, handoff.MaxState+1)
		if err := l.Send(f); !errors.Is(err, handoff.ErrTooLarge) {
			t.Errorf("large state: %v", err)
		}
		stop()
		synctest.Wait()
		if err := l.Send(hop(1, 11)); !errors.Is(err, peer.ErrLinkDown) || !errors.Is(l.Err(), peer.ErrClosed) {
			t.Errorf("after the end: %v, %v", err, l.Err())
		}
		r.stop()
	})
}
