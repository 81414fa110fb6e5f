package peer_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/api/handoff"
	"github.com/tokenrouter/tokenrouter/internal/h2"
	"github.com/tokenrouter/tokenrouter/worker/peer"
	"github.com/tokenrouter/tokenrouter/worker/peer/peertest"
)

// owner is a peer.Handler made of functions; nil ones do nothing.
type owner struct {
	up    func(*peer.Link)
	frame func(*peer.Link, *handoff.Frame)
	down  func(*peer.Link, error)
}

func (o owner) LinkUp(l *peer.Link) {
	if o.up != nil {
		o.up(l)
	}
}

func (o owner) HandleFrame(l *peer.Link, f *handoff.Frame) {
	if o.frame != nil {
		o.frame(l, f)
	}
}

func (o owner) LinkDown(l *peer.Link, err error) {
	if o.down != nil {
		o.down(l, err)
	}
}

// rig is one server and some clients on a faulty network. All of it ends with stop.
type rig struct {
	t      *testing.T
	net    *peertest.Network
	mux    *swap
	ledger *peertest.Ledger // of the server
	group  *pool.ContextPool
	cancel context.CancelFunc
	ctx    context.Context // of the group; the rig is a scope of the test
	close  []func() error
}

// swap is a handler that can be replaced.
type swap struct {
	mu sync.Mutex
	h  http.Handler
}

func (s *swap) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	h := s.h
	s.mu.Unlock()
	h.ServeHTTP(w, r)
}

func (s *swap) set(h http.Handler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.h = h
}

func newRig(t *testing.T, plan peertest.Plan) *rig {
	r := &rig{t: t, net: peertest.New(plan), mux: &swap{h: http.NotFoundHandler()}}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.group = pool.New().WithContext(r.ctx)
	front, err := h2.NewServer(h2.Config{}, r.mux)
	if err != nil {
		t.Fatal(err)
	}
	r.group.Go(func(ctx context.Context) error { return front.Serve(ctx, r.net.Listener()) })
	return r
}

func (r *rig) stop() {
	r.cancel()
	_ = r.group.Wait()
	for _, f := range r.close {
		if err := f(); err != nil {
			r.t.Log("close:", err)
		}
	}
}

// serve runs a server until its ctx or the rig ends.
func (r *rig) serve(cfg peer.ServerConfig) (stop context.CancelFunc) {
	r.ledger = peertest.NewLedger(r.t, cfg.Handler)
	cfg.Handler = r.ledger
	if cfg.Replica == "" {
		cfg.Replica, cfg.Model = "large-0", "tiny-l"
	}
	s, err := peer.NewServer(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.mux.set(s)
	ctx, cancel := context.WithCancel(r.ctx)
	r.group.Go(func(context.Context) error { return s.Run(ctx) })
	synctest.Wait() // it refuses whoever comes before it runs
	return cancel
}

// transport returns a new connection to the server, and a tap on it.
func (r *rig) transport() (*h2.Transport, *peertest.Tap) {
	tr, err := h2.NewTransport(h2.Config{Dial: r.net.Dial})
	if err != nil {
		r.t.Fatal(err)
	}
	r.close = append(r.close, tr.Close)
	return tr, peertest.NewTap(r.t, tr)
}

const url = "http://large-0"

// dial runs a client until its ctx or the rig ends.
func (r *rig) dial(cfg peer.ClientConfig) (*peertest.Ledger, context.CancelFunc) {
	ledger := peertest.NewLedger(r.t, cfg.Handler)
	cfg.Handler = ledger
	cfg.URL = url
	if cfg.Replica == "" {
		cfg.Replica, cfg.Model = "small-0", "tiny-s"
	}
	c, err := peer.NewClient(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(r.ctx)
	r.group.Go(func(context.Context) error { return c.Run(ctx) })
	return ledger, cancel
}

// hop is a hand-off with one token.
func hop(request uint64, n uint32) *handoff.Frame {
	return &handoff.Frame{
		Kind: handoff.KindHandoff, Request: request, Epoch: 1, Hop: n, To: uint8(n % 2), From: uint8((n + 1) % 2),
		Base: int32(n), Tokens: []handoff.Token{{ID: int32(n)}}, Seen: []int32{int32(n), int32(n)},
	}
}

// answer sends the next hop of a frame's request back.
func answer(t *testing.T) func(*peer.Link, *handoff.Frame) {
	return func(l *peer.Link, f *handoff.Frame) {
		if err := l.Send(hop(f.Request, f.Hop+1)); err != nil {
			t.Errorf("send: %v", err)
		}
	}
}

// rally hands requests to and fro until each has made its hops.
type rally struct {
	t        *testing.T
	requests int
	hops     uint32
	done     chan struct{} // closed when all requests are through

	mu   sync.Mutex
	left int
	last map[uint64]uint32
}

func newRally(t *testing.T, requests int, hops uint32) *rally {
	return &rally{
		t: t, requests: requests, hops: hops, done: make(chan struct{}),
		left: requests, last: make(map[uint64]uint32),
	}
}

func (y *rally) owner() owner {
	return owner{
		up: func(l *peer.Link) {
			for q := range y.requests {
				if err := l.Send(hop(uint64(q+1), 1)); err != nil {
					y.t.Errorf("send: %v", err)
				}
			}
		},
		frame: func(l *peer.Link, f *handoff.Frame) {
			y.mu.Lock()
			if want := y.last[f.Request] + 2; f.Hop != want {
				y.t.Errorf("request %d: hop %d, want %d", f.Request, f.Hop, want)
			}
			y.last[f.Request] = f.Hop
			over := f.Hop >= y.hops
			if over {
				if y.left--; y.left == 0 {
					close(y.done)
				}
			}
			y.mu.Unlock()
			if !over {
				answer(y.t)(l, f)
			}
		},
	}
}

// limits for tests in which faults must not end a link.
func patient() peer.Limits {
	return peer.Limits{ResumeFor: time.Hour, MaxBackoff: 20 * time.Millisecond}
}

// raw is a stream whose client side the test writes itself.
type raw struct {
	t    *testing.T
	up   *io.PipeWriter
	resp *http.Response
	in   *handoff.Reader
}

func (r *rig) raw(tr http.RoundTripper) *raw {
	pr, pw := io.Pipe()
	req, err := http.NewRequest(http.MethodPost, url+peer.Path, pr)
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		r.t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		r.t.Fatalf("status %d", resp.StatusCode)
	}
	return &raw{t: r.t, up: pw, resp: resp, in: handoff.NewReader(resp.Body)}
}

func (w *raw) close() {
	w.up.Close()
	w.resp.Body.Close()
}

func (w *raw) write(b []byte) {
	// The server may have ended the stream already.
	_, _ = io.Copy(w.up, bytes.NewReader(b))
}

func (w *raw) send(frames ...*handoff.Frame) {
	var b []byte
	for _, f := range frames {
		var err error
		if b, err = handoff.AppendFramed(b, f); err != nil {
			w.t.Fatal(err)
		}
	}
	w.write(b)
}

func (w *raw) next() *handoff.Frame {
	w.t.Helper()
	var f handoff.Frame
	if err := w.in.Next(&f); err != nil {
		w.t.Fatalf("read: %v", err)
	}
	return &f
}

// goodbye reads until the stream is ended and returns the code.
func (w *raw) goodbye() string {
	w.t.Helper()
	for {
		if f := w.next(); f.Kind == handoff.KindRelease && f.Request == 0 {
			return f.Code
		}
	}
}

func helloFrame(replica string, session uint64, credits uint32) *handoff.Frame {
	return &handoff.Frame{
		Kind: handoff.KindHello, ProtocolVersion: handoff.Version,
		Replica: replica, Model: "tiny-s", Session: session, Credits: credits,
	}
}
