package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/control/tuner"
	"github.com/tokenrouter/tokenrouter/internal/unwelcome"
)

// ErrRemoved says that this node was removed from the cluster. It does not come back.
var ErrRemoved = client.ErrRemoved

// Node is a control node. All methods are safe for concurrent use.
type Node struct {
	cfg   Config
	log   *slog.Logger
	view  *client.View
	fsm   *fsm
	store *store
	// peers are the connections by which calls are forwarded; contacts finds the
	// other control nodes while the consensus knows nothing of them.
	peers    *client.Peers
	contacts *client.Client

	// raft is nil unless Run is running.
	raft atomic.Pointer[raft.Raft]
	// calls is held for reading by who waits for the consensus to apply something.
	// Without raft nobody begins to.
	calls  sync.RWMutex
	leader *leadership
	book   *book
	heard  *beats
	rates  *rates
	tuner  *tuner.Tuner
	tries  *tries
	// gone is closed when this node has heard that it was removed.
	gone     chan struct{}
	goneOnce sync.Once
	// refusal is nil unless the others refuse this node.
	refusal atomic.Pointer[Refusal]
	// refused tells of those that want to join.
	refused unwelcome.Log
	// weight is nil before the state was weighed.
	weight atomic.Pointer[Weight]
}

// Open opens the log on disk and checks it. Call Run, or Close if there is no Run.
func Open(cfg Config) (*Node, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	contacts, err := client.New(client.Config{
		Credentials: cfg.Credentials, Control: cfg.Contacts, View: cfg.View, Attempt: 2 * cfg.Patience, Dial: cfg.Dial, Log: cfg.Log,
	})
	if err != nil {
		return nil, err
	}
	book := newBook(cfg.View)
	store, err := openStore(cfg.Dir, cfg.NoSync, book.read)
	if err != nil {
		return nil, err
	}
	return &Node{
		cfg: cfg, log: cfg.Log, view: cfg.View, fsm: newFSM(cfg.View), store: store,
		gone: make(chan struct{}), peers: client.NewPeers(cfg.Credentials, cfg.Dial, cfg.Log), contacts: contacts,
		leader: newLeadership(), book: book, heard: newBeats(), rates: newRates(), tuner: tuner.New(), tries: newTries(),
	}, nil
}

// Close releases a Node that was not run.
func (n *Node) Close() error {
	return errors.Join(n.peers.Close(), n.contacts.Close(), n.store.Close())
}

// View is the state as this node has it.
func (n *Node) View() *client.View { return n.view }

// State is the newest state that this node has; it does not change.
func (n *Node) State() *state.State { return n.view.State() }

// Wait returns the state once its index is at least index.
func (n *Node) Wait(ctx context.Context, index uint64) (*state.State, error) {
	return n.view.Wait(ctx, index)
}

// Leader is the node that leads, as far as this one knows, and whether it is this one.
func (n *Node) Leader() (node string, self bool) {
	r, _ := n.leader.now()
	return r.leader, r.self
}

// Run takes part in the consensus until ctx ends; then it hands leadership over, if
// it has it, and closes what Open opened. It returns ctx's cause; ErrRemoved if the
// node was removed; or why it cannot go on. Config.Raft must accept until it returns.
func (n *Node) Run(ctx context.Context) error {
	stream := newStream(&n.cfg, n.book)
	log := &logAdapter{to: n.log}
	transport := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: stream, Logger: log, MaxPool: 3, Timeout: 10 * time.Second, ServerAddressProvider: stream,
	})
	// A fault of the disk cuts the node off before the library goes on.
	disk := newDurable(n.store, n.cfg.Dir, func(err error) {
		n.fsm.fail(err)
		stream.fence()
		transport.CloseStreams()
		_ = transport.Close() // it has no error
	})
	r, err := n.start(transport, log, disk)
	if err == nil {
		err = n.serve(ctx, r, stream)
		n.stop(r, stream)
	}
	// The library leaves its connections open.
	transport.CloseStreams()
	cerr := transport.Close()
	stream.fence() // its accepting goroutine may have one more in hand
	return errors.Join(err, cerr, n.Close())
}

// start begins the consensus.
func (n *Node) start(transport *raft.NetworkTransport, log *logAdapter, disk *durable) (*raft.Raft, error) {
	cfg := raft.DefaultConfig()
	cfg.LocalID = raft.ServerID(n.cfg.Self.ID)
	cfg.HeartbeatTimeout, cfg.ElectionTimeout, cfg.LeaderLeaseTimeout = n.cfg.Heartbeat, n.cfg.Election, n.cfg.Lease
	cfg.MaxAppendEntries = maxEntries
	// Followers learn of a commit with the next message, which is sent after this time
	// if there is nothing else: watches on them are late by as much.
	cfg.CommitTimeout = 25 * time.Millisecond
	cfg.SnapshotThreshold, cfg.TrailingLogs = n.cfg.SnapshotEntries, n.cfg.SnapshotEntries
	cfg.SnapshotInterval = 30 * time.Second
	cfg.NoLegacyTelemetry = true
	cfg.ShutdownOnRemove = false // Run ends (removed), and stop says when nobody waits any more
	cfg.Logger = log
	snapshots, err := raft.NewFileSnapshotStoreWithLogger(n.cfg.Dir, 2, log)
	if err != nil {
		return nil, fmt.Errorf("control: snapshots in %s: %w", n.cfg.Dir, err)
	}
	logs, err := raft.NewLogCache(512, disk)
	if err != nil {
		return nil, fmt.Errorf("control: %w", err)
	}
	if n.cfg.Bootstrap != nil {
		err := raft.BootstrapCluster(cfg, logs, disk, snapshots, transport, raft.Configuration{Servers: []raft.Server{{
			Suffrage: raft.Voter, ID: cfg.LocalID, Address: target(n.cfg.Self.ID, n.cfg.Self.Addr),
		}}})
		if err != nil && !errors.Is(err, raft.ErrCantBootstrap) { // it has a state already
			return nil, fmt.Errorf("control: begin the cluster: %w", err)
		}
	}
	r, err := raft.NewRaft(cfg, n.fsm, logs, disk, snapshots, transport)
	select {
	case <-n.fsm.failed: // the library says only that it could not restore, or nothing
		err = errors.Join(n.fsm.err, err)
		if r != nil {
			_ = r.Shutdown().Error() // it began nothing that could fail
		}
	default:
	}
	if err != nil {
		return nil, fmt.Errorf("control: start: %w", err)
	}
	return r, nil
}

// serve runs the node's loops until ctx ends or one of them fails.
func (n *Node) serve(ctx context.Context, r *raft.Raft, stream *stream) error {
	seen := make(chan raft.Observation, 16)
	observer := raft.NewObserver(seen, false, func(o *raft.Observation) bool {
		switch o.Data.(type) {
		case raft.LeaderObservation, raft.RaftState:
			return true
		}
		return false
	})
	r.RegisterObserver(observer)
	defer r.DeregisterObserver(observer)
	n.raft.Store(r)
	n.look(r)
	loops := pool.New().WithContext(ctx).WithCancelOnError().WithFirstError()
	for _, loop := range []func(context.Context) error{
		func(ctx context.Context) error { return n.observe(ctx, r, seen) },
		n.failed,
		n.removed,
		n.announce,
		n.beat,
		n.govern,
		n.keepCurrent,
		n.weigh,
		func(ctx context.Context) error { return n.expel(ctx, stream) },
		func(ctx context.Context) error { return n.hangups(ctx, r, stream) },
		func(ctx context.Context) error { return n.watchRefusals(ctx, r) },
	} {
		loops.Go(loop)
	}
	return loops.Wait()
}

// consensus returns the library's part for a call that waits for it, and what the call
// does in the end; nil if it is not running.
func (n *Node) consensus() (r *raft.Raft, end func()) {
	n.calls.RLock()
	return n.raft.Load(), n.calls.RUnlock
}

// Renewed has the node show its new certificate: connections that were made with the
// old one end, and calls make new ones.
func (n *Node) Renewed() {
	n.peers.Reset()
	n.contacts.Reset()
}

// stop hands leadership over and ends the consensus. Nobody's silence holds it up: what is
// not done within the time of two elections is given up.
func (n *Node) stop(r *raft.Raft, stream *stream) {
	enough := time.AfterFunc(2*n.cfg.Election, stream.fence)
	defer enough.Stop()
	if r.State() == raft.Leader && len(n.servers(r)) > 1 {
		if err := n.handTo(r); err != nil {
			n.log.Info("leadership was not handed over", "err", err)
		}
	}
	// The library forgets whose command is committed but not applied when it shuts
	// down; they would wait for ever. So they go first: while the library runs, it
	// answers every call, at the latest when the lease of a leader without followers
	// has ended.
	n.calls.Lock()
	n.raft.Store(nil)
	n.calls.Unlock()
	n.leader.set("", "", false)
	ended := r.Shutdown()
	stream.fence()
	if err := ended.Error(); err != nil {
		n.log.Warn("consensus did not end in order", "err", err)
	}
}

// observe follows who leads.
func (n *Node) observe(ctx context.Context, r *raft.Raft, seen <-chan raft.Observation) error {
	for {
		select {
		case <-seen:
			n.look(r)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// look notes who leads now. Every change is followed by an observation, so that what
// is seen last is right.
func (n *Node) look(r *raft.Raft) {
	addr, id := r.LeaderWithID()
	self := string(id) == n.cfg.Self.ID
	if self && r.State() != raft.Leader {
		addr, id, self = "", "", false
	}
	if reign, _ := n.leader.now(); self && !reign.self {
		// Before anybody is served: what is left of an earlier reign here is out of date.
		n.heard.reset()
		n.rates.reset(time.Now(), n.cfg.Self.ID, r.CurrentTerm())
	}
	if n.leader.set(string(id), addr, self) {
		n.log.Info("leader changed", "leader", string(id), "self", self, "term", r.CurrentTerm())
	}
}

// failed ends the node when its state can go no further.
func (n *Node) failed(ctx context.Context) error {
	select {
	case <-n.fsm.failed:
		return n.fsm.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// announce tells the cluster of this start, and again whenever the state has lost it. It
// ends with client.ErrElsewhere when another process starts as the node.
func (n *Node) announce(ctx context.Context) error {
	for first := true; ; first = false {
		for done, c := false, (*cluster.Command)(nil); !done; {
			var err error
			if done, c, err = n.announced(ctx, c); err != nil {
				return err
			}
			if refusal := n.Refused(); !done && first && refusal != nil {
				return fmt.Errorf("control: the cluster refuses this node: %w: %s", client.ErrCertificate, strings.Join(refusal.By, ", "))
			}
		}
		// announced has waited for its own index.
		if err := n.view.AwaitLoss(ctx, &n.cfg.Self, 0); err != nil {
			return err
		}
	}
}

// outside says that this node is in no consensus yet: it has no leader before the others have
// heard of it, and taken it in.
func (n *Node) outside() bool {
	r := n.raft.Load()
	return r != nil && len(n.servers(r)) == 0
}

// announced tries once, here or by way of the contacts. It repeats a command whose
// result is not known, and makes a new one after a refusal. Its error ends the node.
func (n *Node) announced(ctx context.Context, c *cluster.Command) (bool, *cluster.Command, error) {
	_, changed := n.leader.now()
	if c == nil {
		made, err := cluster.NewCommand(cluster.KindPutNode, newID("start/"+n.cfg.Self.ID), time.Now(), n.cfg.Self)
		if err != nil {
			return false, nil, err
		}
		c = &made
	}
	index, err := uint64(0), ErrNoLeader
	if !n.outside() {
		index, err = n.Propose(ctx, *c)
	}
	if errors.Is(err, ErrNoLeader) {
		n.meet(ctx)
		index, err = n.contacts.Propose(ctx, *c)
	}
	switch {
	case ctx.Err() != nil:
		return false, nil, context.Cause(ctx)
	case err == nil:
		_, err := n.view.Wait(ctx, index)
		return true, nil, err
	case errors.Is(err, state.ErrInvalid), errors.Is(err, client.ErrVersion), errors.Is(err, client.ErrCertificate) && n.stranger():
		return false, nil, fmt.Errorf("control: the cluster refuses this node: %w", err)
	case !errors.Is(err, ErrNoLeader) && !errors.Is(err, client.ErrCertificate):
		c = nil // such as: the cluster has no name yet
	}
	n.log.Debug("not announced yet", "err", err)
	timer := time.NewTimer(n.cfg.Heartbeat)
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	case <-ctx.Done():
	}
	return false, c, nil
}
