package link

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/api/protocol"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/internal/identity"
	"github.com/tokenrouter/tokenrouter/membership"
)

// BeatEvery is how often a node is heard.
const BeatEvery = 500 * time.Millisecond

// Config configures a Link.
type Config struct {
	// Dir has the node's files, Saved what they say at the start.
	Dir   string
	Saved *identity.Saved
	// Contacts are addresses of control nodes besides those that Saved knows.
	Contacts []string
	// Self is what the cluster is told of the node at every start. ID, Role, Gossip and
	// the versions that it speaks are set.
	Self cluster.Node
	// Gossip is the gossip port's address; empty takes no part in it.
	Gossip string
	// Serving are the replicas that the process has already, for a start that is told late:
	// when control nodes were away, or have lost the node. May be nil.
	Serving func() []cluster.ReplicaReport
	// Loads are the loads of the node's replicas by id, for heartbeats. May be nil.
	Loads func() map[string]cluster.Load
	// Heard gets the answers to heartbeats. It must be quick. May be nil.
	Heard func(cluster.BeatReply)
	// Dial connects to control nodes: net.Dialer's.
	Dial client.Dial
	// Log may be nil.
	Log *slog.Logger
}

// Link is a node's link to its cluster. All methods are safe for concurrent use.
type Link struct {
	cfg         Config
	view        *client.View
	client      *client.Client
	credentials *identity.Credentials
	keeper      *Keeper
	gossip      *membership.Membership // nil without Config.Gossip
	ring        *Ring
}

// ErrRemoved says that the node was removed from the cluster. It does not come back.
var ErrRemoved = client.ErrRemoved

// ErrCertificate says that no control node takes the node's certificate when it starts, as
// after it was removed.
var ErrCertificate = client.ErrCertificate

// ErrElsewhere says that another process has started as the node, with a copy of its
// directory. It has the node from then on.
var ErrElsewhere = client.ErrElsewhere

// New checks the identity. It connects nothing; call Run, or Close if there is no Run.
func New(cfg Config) (*Link, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.Self.ID, cfg.Self.Role = cfg.Saved.Node, cfg.Saved.Role
	cfg.Self.Speak(protocol.Cluster())
	l := &Link{cfg: cfg, view: client.NewView()}
	var err error
	if l.credentials, err = identity.NewCredentials(cfg.Saved.Certificate, cfg.Saved.Key, cfg.Saved.CAs, l.view.Removed); err != nil {
		return nil, err
	}
	if l.credentials.Expires().Before(time.Now()) {
		return nil, fmt.Errorf("%w: the certificate in %s has ended on %s, while the node was down; empty the directory and join again with a new token",
			ErrEntrance, cfg.Dir, l.credentials.Expires().Format(time.DateOnly))
	}
	l.client, err = client.New(client.Config{
		Credentials: l.credentials, Control: slices.Concat(cfg.Contacts, cfg.Saved.Control), View: l.view, Dial: cfg.Dial, Log: cfg.Log,
	})
	if err != nil {
		return nil, err
	}
	l.keeper = NewKeeper(cfg.Dir, cfg.Saved, l.credentials, cfg.Log)
	if cfg.Gossip == "" {
		l.ring = l.newRing()
		return l, nil
	}
	if l.gossip, err = OpenGossip(cfg.Saved, cfg.Gossip, cfg.Self.Addr, l.view, cfg.Log); err != nil {
		return nil, errors.Join(err, l.client.Close())
	}
	l.cfg.Self.Gossip = l.gossip.Addr()
	l.ring = l.newRing()
	return l, nil
}

// newRing follows the keys of the gossip, which control nodes give.
func (l *Link) newRing() *Ring {
	return NewRing(RingConfig{
		Saved: l.cfg.Saved, Gossip: l.gossip, Fetch: l.client.GossipKey, Keep: l.keeper.KeepGossip, Log: l.cfg.Log,
	})
}

// Close releases a Link that was not run.
func (l *Link) Close() error {
	err := l.client.Close()
	if l.gossip != nil {
		err = errors.Join(err, l.gossip.Close())
	}
	return err
}

// Gossip is the node's part in the gossip, nil if it takes none.
func (l *Link) Gossip() *membership.Membership { return l.gossip }

// View is the state as the node knows it.
func (l *Link) View() *client.View { return l.view }

// Client calls the control nodes, until Run has returned.
func (l *Link) Client() *client.Client { return l.client }

// Credentials are the node's.
func (l *Link) Credentials() *identity.Credentials { return l.credentials }

// Run keeps the node in touch until ctx ends. It returns ctx's cause, ErrRemoved,
// ErrCertificate, ErrElsewhere, or why the cluster refuses the node.
func (l *Link) Run(ctx context.Context) error {
	loops := pool.New().WithContext(ctx).WithCancelOnError().WithFirstError()
	loops.Go(l.client.Watch)
	loops.Go(l.announce)
	loops.Go(l.recall)
	loops.Go(l.keep)
	loops.Go(func(ctx context.Context) error { return l.ring.Run(ctx, l.view) })
	loops.Go(func(ctx context.Context) error {
		return l.client.Beat(ctx, BeatEvery, l.beat, l.cfg.Heard)
	})
	loops.Go(func(ctx context.Context) error { return l.client.KeepRenewed(ctx, l.keeper.Renewed) })
	loops.Go(func(ctx context.Context) error { return l.keeper.Run(ctx, l.view) })
	if l.gossip != nil {
		loops.Go(l.gossip.Run)
	}
	return errors.Join(loops.Wait(), l.client.Close())
}

func (l *Link) beat() cluster.Beat {
	b := cluster.Beat{Node: l.cfg.Self.ID, Index: l.view.State().Index}
	if l.gossip != nil {
		b.Gossip = l.ring.Held()
	}
	if l.cfg.Loads != nil {
		b.Loads = l.cfg.Loads()
	}
	return b
}

// Drain tells the cluster that the node takes no new work, within a moment: a node
// that cannot reach the control nodes drains all the same.
func (l *Link) Drain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	yes := true
	c, err := cluster.NewCommand(cluster.KindNodeState, NewRequest("drain"), time.Now(), cluster.NodeState{ID: l.cfg.Self.ID, Draining: &yes})
	if err == nil {
		_, err = l.client.Propose(ctx, c)
	}
	if err != nil {
		l.cfg.Log.Info("the cluster was not told of the drain", "err", err)
	}
}

// NewRequest makes a request id for a command, by which repetitions are harmless.
func NewRequest(prefix string) string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails
	return prefix + "/" + hex.EncodeToString(b[:])
}

// Pauses of announce after a failure.
const minPause, maxPause = 100 * time.Millisecond, 2 * time.Second

// announce tells the cluster of this start, and again whenever the state has lost it. It
// ends with ErrElsewhere when another process starts as the node.
func (l *Link) announce(ctx context.Context) error {
	for {
		index, err := l.start(ctx)
		if err != nil {
			return err
		}
		if err := l.view.AwaitLoss(ctx, &l.cfg.Self, index); err != nil {
			return err
		}
	}
}

// self is what the cluster is told of this start.
func (l *Link) self() cluster.Start {
	s := cluster.Start{Node: l.cfg.Self}
	if l.cfg.Serving != nil {
		s.Replicas = l.cfg.Serving()
	}
	return s
}

// start has the node noted, however long that takes.
func (l *Link) start(ctx context.Context) (index uint64, err error) {
	request, spoken := NewRequest("start"), cluster.Protocol
	for pause, told := minPause, false; ; pause = min(2*pause, maxPause) {
		body := l.self().Before(min(spoken, l.view.State().Spoken().Newest))
		c, err := cluster.NewCommand(cluster.KindPutNode, request, time.Now(), body)
		if err != nil {
			return 0, err
		}
		if index, err = l.client.Propose(ctx, c); err == nil {
			return index, nil
		}
		switch {
		case ctx.Err() != nil:
			return 0, context.Cause(ctx)
		case errors.Is(err, client.ErrVersion) && c.V > cluster.MinProtocol:
			spoken = c.V - 1 // a control node is older than the state that the node began with
			continue
		case errors.Is(err, ErrRemoved), errors.Is(err, ErrCertificate):
			return 0, err
		case errors.Is(err, state.ErrInvalid), errors.Is(err, client.ErrForbidden), errors.Is(err, client.ErrVersion), errors.Is(err, client.ErrBadRequest):
			return 0, fmt.Errorf("the cluster refuses this node: %w", err)
		case !told:
			l.cfg.Log.Warn("not announced yet", "err", err)
			told = true
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return 0, context.Cause(ctx)
		}
	}
}
