package control

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/state"
)

// ErrLog says that an entry of the log cannot be read by this build. The node stops:
// to go on without it would make its state differ from the others'.
var ErrLog = errors.New("control: the log has an entry that this build cannot read")

// fsm lets the library change the state. The library calls Apply, Snapshot and
// Restore one at a time.
type fsm struct {
	view *client.View

	once sync.Once
	// failed is closed when err is set.
	failed chan struct{}
	err    error
}

func newFSM(view *client.View) *fsm { return &fsm{view: view, failed: make(chan struct{})} }

// applied is the result of a command.
type applied struct {
	index uint64
	err   error
}

// Apply applies a committed command. Its result is an applied.
func (f *fsm) Apply(l *raft.Log) any {
	select {
	case <-f.failed:
		return applied{l.Index, f.err}
	default:
	}
	c, err := cluster.DecodeCommand(l.Data)
	if err != nil {
		f.fail(fmt.Errorf("%w: entry %d: %w", ErrLog, l.Index, err))
		return applied{l.Index, f.err}
	}
	next, err := state.Apply(f.view.State(), l.Index, c)
	f.view.Publish(next)
	return applied{l.Index, err}
}

func (f *fsm) fail(err error) {
	f.once.Do(func() {
		f.err = err
		close(f.failed)
	})
}

// Snapshot takes the state as it is; to encode it is left to Persist.
func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	select {
	case <-f.failed:
		return nil, f.err
	default:
		return snapshot{f.view.State()}, nil
	}
}

// Restore replaces the state by a snapshot's.
func (f *fsm) Restore(r io.ReadCloser) error {
	defer func() { _ = r.Close() }() // it was only read
	s, err := readSnapshot(r)
	if errors.Is(err, client.ErrVersion) {
		f.fail(err) // an older snapshot, or another try, does not help
	}
	if err != nil {
		return err
	}
	f.view.Publish(s)
	return nil
}

// snapshot is a state that the library wants written.
type snapshot struct{ state *state.State }

func (s snapshot) Persist(sink raft.SnapshotSink) error {
	err := writeSnapshot(sink, s.state)
	if err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

func (snapshot) Release() {}
