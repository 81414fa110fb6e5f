package control

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/tokenrouter/tokenrouter/control/client"
)

// reign is a time with one leader, or with none.
type reign struct {
	// leader is its node, empty for none; addr is as the library has it.
	leader string
	addr   raft.ServerAddress
	// self says that this node leads.
	self bool
	// ctx ends with the reign, because of errReign.
	ctx context.Context
	// synced is closed once this node has all that was committed when the reign began.
	synced chan struct{}
}

// current says that the node's state is of this reign, and not of what it knew before.
func (r *reign) current() bool {
	select {
	case <-r.synced:
		return true
	default:
		return false
	}
}

// settled waits until this node, which leads, has all that was committed before its reign.
func (r *reign) settled(ctx context.Context) error {
	select {
	case <-r.synced:
		return nil
	case <-r.ctx.Done():
		return client.ErrNotLeader
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrNoLeader, context.Cause(ctx))
	}
}

// errReign ends work for a leader that leads no more.
var errReign = errors.New("control: the leader has changed")

// leadership knows the present reign.
type leadership struct {
	mu      sync.Mutex
	current reign
	end     context.CancelCauseFunc
	// changed is closed when the reign ends.
	changed chan struct{}
}

func newLeadership() *leadership {
	l := &leadership{}
	l.begin(reign{})
	return l
}

// begin must have mu held, or l to itself.
func (l *leadership) begin(r reign) {
	r.ctx, l.end = context.WithCancelCause(context.Background())
	r.synced = make(chan struct{})
	l.current, l.changed = r, make(chan struct{})
}

// set notes who leads now.
func (l *leadership) set(leader string, addr raft.ServerAddress, self bool) (changed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current.leader == leader && l.current.self == self {
		l.current.addr = addr
		return false
	}
	l.end(errReign)
	close(l.changed)
	l.begin(reign{leader: leader, addr: addr, self: self})
	return true
}

// now returns the present reign, and a channel that is closed when it ends.
func (l *leadership) now() (reign, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current, l.changed
}

// within returns a context that ends with both ctx and the reign.
func (r *reign) within(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(r.ctx, func() { cancel(context.Cause(r.ctx)) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}
