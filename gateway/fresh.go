package gateway

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/tokenrouter/tokenrouter/gateway/session"
)

// Source knows how far what is deployed has come elsewhere. Its methods are safe for
// concurrent use.
type Source interface {
	// Index is how far one has to be to have every change that was acknowledged before the
	// call. It asks those who decide, once, and gives up when ctx ends.
	Index(ctx context.Context) (uint64, error)
	// Await returns nil once Apply has had everything up to an index.
	Await(ctx context.Context, index uint64) error
}

// Bounds of what it costs to be sure that a model does not exist.
const (
	// freshWithin is how long a request waits for certainty, in all.
	freshWithin = 300 * time.Millisecond
	// readWithin bounds one read of the index. Twice that is no more than freshWithin: a
	// request may have to wait for the read before its own.
	readWithin = freshWithin / 2
	// readEvery is the time for each read; up to readBurst of them may come sooner.
	readEvery = 100 * time.Millisecond
	readBurst = 8
	// deafFor is how long nobody is asked after a read that has failed.
	deafFor = 250 * time.Millisecond
	// maxDoubters bounds the requests that wait.
	maxDoubters = 1024
)

var (
	// errUnsure says that those who decide what is deployed cannot be asked.
	errUnsure = errors.New("gateway: what is deployed elsewhere is not known")
	// errBehind says that there are changes that Apply has not had within freshWithin.
	errBehind = errors.New("gateway: changes of what is deployed are on their way")
	// errDoubters says that maxDoubters requests wait already.
	errDoubters = errors.New("gateway: too many requests wait for changes of what is deployed")
)

// freshness makes sure that what this gateway serves has what was acknowledged elsewhere.
//
// Requests that come while a read goes on share the next one: the answer of the one that
// goes on may be of before they came. So there are two reads at most that somebody waits
// for, and over time one each readEvery, however many requests ask.
//
// It has no goroutine. The request that is the first to need a read makes it for all.
type freshness struct {
	source Source

	mu       sync.Mutex
	doubters int
	// next is the read that has not begun, now the one that goes on; nil for none.
	next, now *round
	// due is when all reads until now would be over if each took readEvery.
	due time.Time
	// deaf is until when nobody is asked.
	deaf time.Time
}

// round is one read. The other fields are set before done is closed.
type round struct {
	done  chan struct{}
	index uint64
	err   error
}

// renew returns nil once Apply has had every change that was acknowledged before the call;
// else errUnsure, errBehind, errDoubters, or why ctx has ended.
func (f *freshness) renew(ctx context.Context) error {
	if err := f.enter(); err != nil {
		return err
	}
	defer f.leave()
	within, cancel := context.WithTimeoutCause(ctx, freshWithin, errUnsure)
	defer cancel()
	index, err := f.index(within)
	if err == nil && f.source.Await(within, index) != nil {
		err = errBehind
	}
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func (f *freshness) enter() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.doubters >= maxDoubters {
		return errDoubters
	}
	f.doubters++
	return nil
}

func (f *freshness) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.doubters--
}

// index is what a read says that begins after the call.
func (f *freshness) index(ctx context.Context) (uint64, error) {
	f.mu.Lock()
	if r := f.next; r != nil {
		f.mu.Unlock()
		select {
		case <-r.done:
			return r.index, r.err
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
	before := f.now
	if before == nil && time.Now().Before(f.deaf) {
		f.mu.Unlock()
		return 0, errUnsure
	}
	r := &round{done: make(chan struct{})}
	f.next = r
	f.mu.Unlock()
	f.read(r, before)
	return r.index, r.err
}

// read makes a read for all that wait for it, after the one before. It does not end with
// the request that it belongs to, since others wait too; it takes freshWithin at most.
func (f *freshness) read(r, before *round) {
	r.err = errUnsure // unless the source says otherwise
	defer f.end(r)
	if before != nil {
		<-before.done
		if before.err != nil {
			return
		}
	}
	if wait := f.pace(); wait > 0 {
		<-time.After(wait)
	}
	f.mu.Lock()
	f.next, f.now = nil, r
	now := time.Now()
	if f.due.Before(now) {
		f.due = now
	}
	f.due = f.due.Add(readEvery)
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), readWithin)
	defer cancel()
	if index, err := f.source.Index(ctx); err == nil {
		r.index, r.err = index, nil
	}
}

// pace is how long the next read must wait.
func (f *freshness) pace() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Until(f.due.Add(-(readBurst - 1) * readEvery))
}

// end tells all that wait for a read.
func (f *freshness) end(r *round) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.next == r {
		f.next = nil
	} else {
		f.now = nil
	}
	if r.err != nil {
		f.deaf = time.Now().Add(deafFor)
	}
	close(r.done)
}

// current returns nil once what is deployed here has every change that was acknowledged
// before the call. Else its error says why that is not known: everything that can be told
// within a moment has been waited for.
func (g *Gateway) current(ctx context.Context) error {
	if g.fresh == nil {
		return nil
	}
	err := g.fresh.renew(ctx)
	if ctx.Err() == nil {
		g.metrics.checks.WithLabelValues(checkResult(err)).Inc()
	}
	return err
}

// checkResult is an error of renew as a label.
func checkResult(err error) string {
	switch {
	case err == nil:
		return "current"
	case errors.Is(err, errBehind):
		return "behind"
	case errors.Is(err, errDoubters):
		return "refused"
	}
	return "unsure"
}

// seek returns the deployment that find has, first as it is, then, if there is none, with
// every change that was acknowledged before the call. It returns nil if there is surely
// none, or if those who decide cannot be asked.
func (g *Gateway) seek(ctx context.Context, find func(*session.Table) *session.Served) (*session.Served, error) {
	if d := find(g.table.Load()); d != nil {
		return d, nil
	}
	err := g.current(ctx)
	d := find(g.table.Load())
	switch {
	case d != nil:
		return d, nil
	case ctx.Err() != nil:
		return nil, endCause(ctx)
	case errors.Is(err, errBehind):
		return nil, serverError(http.StatusServiceUnavailable, "not_ready", "this server has not heard of the latest changes yet; try again")
	case errors.Is(err, errDoubters):
		return nil, tooMany()
	}
	return nil, nil
}
