package membership

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// State is how the gossip takes a node.
type State string

const (
	// Alive nodes answer.
	Alive State = "alive"
	// Dead nodes have not answered for a while.
	Dead State = "dead"
	// Left nodes have said that they go.
	Left State = "left"
)

// Member is what the gossip says of a node. All of it is hearsay.
type Member struct {
	State State
	Role  cluster.Role
	Load  cluster.Load
}

// Membership is one node's part in the gossip. All methods are safe for concurrent
// use.
type Membership struct {
	cfg    Config
	events *events
	list   *memberlist.Memberlist
	ring   *memberlist.Keyring
	addr   string

	members atomic.Pointer[map[string]Member]
	// told has capacity 1: the load changed and the others do not know it yet.
	told chan struct{}

	mu      sync.Mutex
	changed chan struct{} // closed by the next change of members
}

// Times of the loop.
const (
	// coalesce is how long events are collected before members change.
	coalesce = 20 * time.Millisecond
	// tellEvery is how often the load is told at most.
	tellEvery = 250 * time.Millisecond
	leaveTime = 500 * time.Millisecond
)

// Open listens and takes part at once, because the address must be known before
// others can be told of it. Call Run, or Close if there is no Run.
func Open(cfg Config) (*Membership, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	lib, err := cfg.library()
	if err != nil {
		return nil, err
	}
	m := &Membership{
		cfg: cfg, events: newEvents(meta{Role: cfg.Role}), told: make(chan struct{}, 1), changed: make(chan struct{}),
	}
	m.members.Store(&map[string]Member{})
	lib.Events, lib.Delegate, m.ring = m.events, m.events, lib.Keyring
	if err := free(cfg.Bind); err != nil {
		return nil, fmt.Errorf("membership: listen on %s: %w", cfg.Bind, err)
	}
	if m.list, err = memberlist.Create(lib); err != nil {
		return nil, fmt.Errorf("membership: listen on %s: %w", cfg.Bind, err)
	}
	// Once: the library changes the node under its readers.
	m.addr = m.list.LocalNode().Address()
	m.refresh()
	return m, nil
}

// free says why an address cannot be listened on. The library's own error is text
// without the system's error in it, by which callers tell a port that is taken.
func free(bind string) error {
	t, err := net.Listen("tcp", bind)
	if err != nil {
		return err
	}
	u, err := net.ListenPacket("udp", bind)
	if err != nil {
		return errors.Join(err, t.Close())
	}
	return errors.Join(t.Close(), u.Close())
}

// Close ends a Membership that was not run, without a word to the others.
func (m *Membership) Close() error { return m.list.Shutdown() }

// Addr is where the others reach this node's gossip, host:port.
func (m *Membership) Addr() string { return m.addr }

// SetKeys replaces the keys: all of them are tried on what comes, and the first encrypts
// what goes. Each has KeySize bytes.
func (m *Membership) SetKeys(keys [][]byte) error {
	if len(keys) == 0 {
		return errors.New("membership: there is no key")
	}
	for _, key := range keys {
		if len(key) != KeySize {
			return fmt.Errorf("membership: a key has %d bytes, it must have %d", len(key), KeySize)
		}
		if err := m.ring.AddKey(key); err != nil {
			return fmt.Errorf("membership: add a key: %w", err)
		}
	}
	if err := m.ring.UseKey(keys[0]); err != nil {
		return fmt.Errorf("membership: use a key: %w", err)
	}
	for _, old := range slices.Clone(m.ring.GetKeys()) {
		if slices.ContainsFunc(keys, func(k []byte) bool { return slices.Equal(k, old) }) {
			continue
		}
		if err := m.ring.RemoveKey(old); err != nil {
			return fmt.Errorf("membership: remove a key: %w", err)
		}
	}
	return nil
}

// Members is what the gossip says, by node; this node too. The map does not change.
func (m *Membership) Members() map[string]Member { return *m.members.Load() }

// Dead says that the gossip takes a node for dead, or that it has left. A node that
// was never seen is not dead.
func (m *Membership) Dead(node string) bool {
	member, seen := m.Members()[node]
	return seen && member.State != Alive
}

// Changed is closed when Members is replaced after this call.
func (m *Membership) Changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

// Tell tells the others how busy this node is, soon.
func (m *Membership) Tell(load cluster.Load) {
	m.events.mu.Lock()
	same := m.events.own.Load == load
	m.events.own.Load = load
	m.events.mu.Unlock()
	if same {
		return
	}
	select {
	case m.told <- struct{}{}:
	default:
	}
}

// Run takes part until ctx ends, then leaves. It returns ctx's cause.
func (m *Membership) Run(ctx context.Context) error {
	loops := pool.New().WithContext(ctx).WithCancelOnError().WithFirstError()
	loops.Go(m.follow)
	loops.Go(m.seek)
	loops.Go(m.tell)
	err := loops.Wait()
	m.events.mu.Lock()
	m.events.own.Going = true
	m.events.mu.Unlock()
	if lerr := errors.Join(m.list.UpdateNode(leaveTime), m.list.Leave(leaveTime)); lerr != nil {
		m.cfg.Log.Debug("nobody heard the farewell", "err", lerr)
	}
	if serr := m.list.Shutdown(); serr != nil {
		err = errors.Join(err, fmt.Errorf("membership: %w", serr))
	}
	return err
}

// follow turns events into new members.
func (m *Membership) follow(ctx context.Context) error {
	for {
		select {
		case <-m.events.wake:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if !sleep(ctx, coalesce) {
			return context.Cause(ctx)
		}
		m.refresh()
	}
}

// refresh publishes what is known now.
func (m *Membership) refresh() {
	next, before := m.events.members(), m.Members()
	for node, now := range next {
		if was, ok := before[node]; !ok || was.State != now.State {
			m.cfg.Log.Debug("gossip", "node", node, "state", string(now.State))
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.members.Store(&next)
	close(m.changed)
	m.changed = make(chan struct{})
}

// seek joins the seeds that are not among the members: at first, and after a partition
// so long that both sides have forgotten each other.
func (m *Membership) seek(ctx context.Context) error {
	for {
		known := m.events.alive()
		missing := slices.DeleteFunc(slices.Clone(m.cfg.Seeds()), func(addr string) bool { return addr == "" || known[addr] })
		if len(missing) > 0 {
			if _, err := m.list.Join(missing); err != nil {
				m.cfg.Log.Debug("seeds not joined", "err", err)
			}
		}
		pause := 5 * m.cfg.Probe
		if len(known) > 1 {
			pause *= 10
		}
		if !sleep(ctx, pause) {
			return context.Cause(ctx)
		}
	}
}

// tell spreads this node's load when it has changed.
func (m *Membership) tell(ctx context.Context) error {
	for {
		select {
		case <-m.told:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := m.list.UpdateNode(tellEvery); err != nil {
			m.cfg.Log.Debug("load not told", "err", err)
		}
		if !sleep(ctx, tellEvery) {
			return context.Cause(ctx)
		}
	}
}

// sleep returns false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
