package client

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tokenrouter/tokenrouter/control/state"
)

// View is the newest state that this process knows. It has one writer, a control
// node's log or a Client's Watch, and any number of readers.
type View struct {
	current atomic.Pointer[state.State]
	// heard is when the state was last known to be current, in nanoseconds since
	// started; -1 for never.
	heard   atomic.Int64
	started time.Time
	// leader is who leads, as was last heard.
	leader atomic.Pointer[reign]

	mu sync.Mutex
	// changed is closed by the next Publish.
	changed chan struct{}
	// recalled says that State is of an earlier process: no control node has sent it.
	recalled bool
}

// reign is a leader in its term.
type reign struct {
	node string
	term uint64
}

// NewView returns a View of the empty state.
func NewView() *View {
	v := &View{changed: make(chan struct{}), started: time.Now()}
	v.current.Store(new(state.State))
	v.heard.Store(-1)
	return v
}

// State is the newest one, never nil.
func (v *View) State() *state.State { return v.current.Load() }

// Removed says that a node was removed. It is what identity.NewCredentials wants.
func (v *View) Removed(node string) bool { return v.State().IsRemoved(node) }

// Changed is closed when State is replaced after this call.
func (v *View) Changed() <-chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.changed
}

// Wait returns the state once its index is at least index.
func (v *View) Wait(ctx context.Context, index uint64) (*state.State, error) {
	for {
		changed := v.Changed()
		if s := v.State(); s.Index >= index {
			return s, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// WaitFor returns the state once ok holds for it.
func (v *View) WaitFor(ctx context.Context, ok func(*state.State) bool) (*state.State, error) {
	for {
		changed := v.Changed()
		if s := v.State(); ok(s) {
			return s, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Publish replaces the state. Only the View's writer calls it.
func (v *View) Publish(s *state.State) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.put(s)
	v.recalled = false
}

// put has mu held.
func (v *View) put(s *state.State) {
	v.current.Store(s)
	close(v.changed)
	v.changed = make(chan struct{})
}

// Recall publishes a state that an earlier process has seen, unless something newer is
// known, or a control node that has a leader was heard. Watch replaces it by the first
// state that is no older. It says whether the state was published.
func (v *View) Recall(s *state.State) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, heard := v.Age(); heard || !older(v.State(), s) {
		return false
	}
	v.put(s)
	v.recalled = true
	return true
}

// since is the state from whose index a watch goes on. A recalled one may lack what that
// process could not read, so everything is asked for.
func (v *View) since() *state.State {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.recalled {
		return new(state.State)
	}
	return v.State()
}

// older says that a state is surely, or by all that can be known, older than another.
func older(a, b *state.State) bool {
	return a.Index == 0 && b.Index > 0 || a.History == b.History && a.Index < b.Index
}

// setsBack says that a state from a control node without a leader must not replace the
// one that is known: it is older, or of a history that a leader would have to confirm.
// Such a node has not applied what it cannot know to be committed; after a start that is
// nearly everything.
func setsBack(known, next *state.State) bool {
	return known.Index > 0 && (next.History != known.History || next.Index < known.Index)
}

// Confirm notes that the state is current now, as a control node says that follows a
// leader in a term. Only the View's writer calls it.
func (v *View) Confirm(leader string, term uint64) {
	v.heard.Store(int64(time.Since(v.started)))
	if now := (reign{leader, term}); v.leader.Load() == nil || *v.leader.Load() != now {
		v.leader.Store(&now)
	}
}

// Leader is who led when the state was last known to be current, and in which term;
// empty before that.
func (v *View) Leader() (node string, term uint64) {
	if r := v.leader.Load(); r != nil {
		return r.node, r.term
	}
	return "", 0
}

// Age is the time since the state was last known to be current: since a control
// node that has a leader said so. False means never.
func (v *View) Age() (time.Duration, bool) {
	heard := v.heard.Load()
	if heard < 0 {
		return 0, false
	}
	return time.Since(v.started) - time.Duration(heard), true
}
