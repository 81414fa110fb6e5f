package peertest

import (
	"sync"

	"github.com/tokenrouter/tokenrouter/api/handoff"
	"github.com/tokenrouter/tokenrouter/worker/peer"
)

// Ledger is a peer.Handler in front of another. It reports turns that are
// handled twice, numbers that are not in order, and calls that overlap or come
// outside of a link's life.
type Ledger struct {
	t    T
	next peer.Handler

	mu    sync.Mutex
	turns map[turn]int
	links map[*peer.Link]*life
	ups   int
	downs []error
}

// turn names one frame of one side's life.
type turn struct {
	link    *peer.Link
	kind    handoff.Kind
	request uint64
	epoch   uint32
	hop     uint32
	base    int32
}

// life is what one link has seen.
type life struct {
	seq        uint64
	busy, down bool
}

// NewLedger returns a ledger in front of next that reports to t.
func NewLedger(t T, next peer.Handler) *Ledger {
	return &Ledger{t: t, next: next, turns: make(map[turn]int), links: make(map[*peer.Link]*life)}
}

// Handled is the number of frames handled.
func (d *Ledger) Handled() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.turns)
}

// Ups is how often a link came up.
func (d *Ledger) Ups() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ups
}

// Downs are the errors of the links that went down, in order.
func (d *Ledger) Downs() []error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]error(nil), d.downs...)
}

// LinkUp notes the link and passes it on.
func (d *Ledger) LinkUp(l *peer.Link) {
	d.mu.Lock()
	if d.links[l] != nil {
		d.t.Errorf("a link comes up twice")
	}
	d.links[l] = &life{}
	d.ups++
	d.mu.Unlock()
	d.call(l, func() { d.next.LinkUp(l) })
}

// HandleFrame checks the frame against what was handled and passes it on.
func (d *Ledger) HandleFrame(l *peer.Link, f *handoff.Frame) {
	d.mu.Lock()
	k := turn{l, f.Kind, f.Request, f.Epoch, f.Hop, f.Base}
	d.turns[k]++
	if d.turns[k] > 1 {
		d.t.Errorf("handled twice: %s of request %d epoch %d hop %d base %d", f.Kind, f.Request, f.Epoch, f.Hop, f.Base)
	}
	if v := d.links[l]; v != nil {
		if f.Seq != v.seq+1 {
			d.t.Errorf("frame %d is handled after %d", f.Seq, v.seq)
		}
		v.seq = f.Seq
	}
	d.mu.Unlock()
	d.call(l, func() { d.next.HandleFrame(l, f) })
}

// LinkDown notes the end of the link and passes it on.
func (d *Ledger) LinkDown(l *peer.Link, err error) {
	d.mu.Lock()
	d.downs = append(d.downs, err)
	d.mu.Unlock()
	d.call(l, func() { d.next.LinkDown(l, err) })
	d.mu.Lock()
	defer d.mu.Unlock()
	if v := d.links[l]; v != nil {
		v.down = true
	}
}

// call runs f, one call of the link at a time.
func (d *Ledger) call(l *peer.Link, f func()) {
	d.mu.Lock()
	v := d.links[l]
	if v == nil || v.busy || v.down {
		d.t.Errorf("a call outside of the link's life, or two at once: %+v", v)
	}
	if v != nil {
		v.busy = true
	}
	d.mu.Unlock()
	defer func() { // also after a panic
		d.mu.Lock()
		defer d.mu.Unlock()
		if v != nil {
			v.busy = false
		}
	}()
	f()
}
