package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/internal/identity"
)

// Config configures a Client.
type Config struct {
	Credentials *identity.Credentials
	// Control are addresses of control nodes to begin with.
	Control []string
	// View gets the state by Watch, and adds the addresses of its control nodes to
	// Control. Nil for a View of the Client's own.
	View *View
	// Attempt bounds a call to one control node: 2 s.
	Attempt time.Duration
	// Dial connects to control nodes: net.Dialer's.
	Dial Dial
	// Log may be nil.
	Log *slog.Logger
}

// Client calls the control nodes. All methods are safe for concurrent use.
type Client struct {
	cfg   Config
	peers *Peers

	mu sync.Mutex
	// last answered a call; it is asked first.
	last string
}

// New checks the configuration. It connects nothing.
func New(cfg Config) (*Client, error) {
	if cfg.Credentials == nil {
		return nil, errors.New("client: there are no credentials")
	}
	if cfg.View == nil {
		cfg.View = NewView()
	}
	if cfg.Attempt == 0 {
		cfg.Attempt = 2 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Client{cfg: cfg, peers: NewPeers(cfg.Credentials, cfg.Dial, cfg.Log)}, nil
}

// View is the state that Watch keeps.
func (c *Client) View() *View { return c.cfg.View }

// Name is the caller's own.
func (c *Client) Name() identity.Name { return c.cfg.Credentials.Name() }

// Reset ends the connections, such as those of a certificate that was replaced; calls
// make new ones.
func (c *Client) Reset() { c.peers.Reset() }

// Close ends the connections.
func (c *Client) Close() error { return c.peers.Close() }

// Control lists the addresses of control nodes, the one to ask first in front.
func (c *Client) Control() []string {
	c.mu.Lock()
	last := c.last
	c.mu.Unlock()
	var out []string
	add := func(addr string) {
		if addr != "" && !slices.Contains(out, addr) {
			out = append(out, addr)
		}
	}
	add(last)
	for _, n := range c.View().State().AllNodes() {
		if n.Role == cluster.Control && !n.Lost {
			add(n.Addr)
		}
	}
	for _, addr := range c.cfg.Control {
		add(addr)
	}
	for _, n := range c.View().State().AllNodes() {
		if n.Role == cluster.Control {
			add(n.Addr)
		}
	}
	return out
}

func (c *Client) answered(addr string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = addr
}

// failed forgets a control node that did not answer.
func (c *Client) failed(addr string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last == addr {
		c.last = ""
	}
}

// call asks one control node after another until one answers.
func (c *Client) call(ctx context.Context, path string, in, out any, limit int64) error {
	return c.ask(ctx, c.cfg.Attempt, path, in, out, limit)
}

// ask is call with a bound of its own for each control node after which there is another
// one to ask.
func (c *Client) ask(ctx context.Context, patience time.Duration, path string, in, out any, limit int64) error {
	var errs []error
	addrs := c.Control()
	for i, addr := range addrs {
		bound := c.cfg.Attempt
		if i < len(addrs)-1 {
			bound = min(bound, patience)
		}
		err := c.attempt(ctx, bound, addr, path, in, out, limit)
		if err == nil || answers(err) {
			c.answered(addr)
			return err
		}
		c.failed(addr)
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	if len(errs) == 0 {
		return fmt.Errorf("%w: no address of a control node is known", ErrNoLeader)
	}
	if slices.ContainsFunc(errs, refusesCertificate) && !slices.ContainsFunc(errs, answered) {
		return fmt.Errorf("%w: %w", ErrCertificate, errors.Join(errs...))
	}
	if err := errors.Join(errs...); !errors.Is(err, ErrNoLeader) {
		return fmt.Errorf("%w: %w", ErrNoLeader, err)
	} else {
		return err
	}
}

func (c *Client) attempt(ctx context.Context, bound time.Duration, addr, path string, in, out any, limit int64) error {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	return c.peers.Call(ctx, "", addr, path, in, out, limit)
}

// answers says that an error is a control node's answer, which another one would
// give too.
func answers(err error) bool {
	if p := Problem(err); p.Code != cluster.CodeInternal {
		return p.Code != cluster.CodeNoQuorum && p.Code != cluster.CodeNotLeader
	}
	return false
}

// answered says that an error is the answer of a control node, one without a leader.
func answered(err error) bool {
	return errors.Is(err, ErrNoLeader) || errors.Is(err, ErrNotLeader)
}

// Propose has a command applied and returns its index. Give it a Request to make
// repetitions harmless.
func (c *Client) Propose(ctx context.Context, command cluster.Command) (uint64, error) {
	var reply cluster.ProposeReply
	err := c.call(ctx, cluster.PathPropose, command, &reply, cluster.MaxCall)
	return reply.Index, err
}

// beatPatience is how long a heartbeat waits for a control node before another one is
// asked. A machine that has lost its power refuses nothing, it is silent: the next
// control node must hear of this node before the leader takes it for lost.
const beatPatience = 500 * time.Millisecond

// Heartbeat tells the leader that the node is there.
func (c *Client) Heartbeat(ctx context.Context, beat cluster.Beat) (cluster.BeatReply, error) {
	var reply cluster.BeatReply
	err := c.ask(ctx, beatPatience, cluster.PathHeartbeat, beat, &reply, cluster.MaxCall)
	return reply, err
}

// indexPatience is how long Index waits for a control node before another one is asked: it
// has to be there within a moment, or not at all.
const indexPatience = 50 * time.Millisecond

// Index is the index of a state that has every change that was acknowledged before the
// call, to whomever. It costs the leader one round of messages, and nothing on disk.
func (c *Client) Index(ctx context.Context) (uint64, error) {
	var out cluster.IndexReply
	err := c.ask(ctx, indexPatience, cluster.PathIndex, struct{}{}, &out, cluster.MaxCall)
	return out.Index, err
}

// Loads is what the leader last heard of the nodes.
func (c *Client) Loads(ctx context.Context) (map[string]cluster.NodeLoad, error) {
	var out map[string]cluster.NodeLoad
	err := c.call(ctx, cluster.PathLoads, struct{}{}, &out, cluster.MaxBackup)
	return out, err
}

// Slice asks for a part of a key's rates.
func (c *Client) Slice(ctx context.Context, ask cluster.SliceAsk) (cluster.Slice, error) {
	var out cluster.Slice
	err := c.call(ctx, cluster.PathSlices, ask, &out, cluster.MaxCall)
	return out, err
}

// GossipKey is the gossip's key of a generation.
func (c *Client) GossipKey(ctx context.Context, generation uint64) ([]byte, error) {
	var out cluster.GossipReply
	err := c.call(ctx, cluster.PathGossip, cluster.GossipRequest{Generation: generation}, &out, cluster.MaxCall)
	return out.Key, err
}

// Measure tells the leader what the node's replicas have measured.
func (c *Client) Measure(ctx context.Context, m cluster.Measures) error {
	var out struct{}
	return c.call(ctx, cluster.PathMeasures, m, &out, cluster.MaxCall)
}

// Status is the leader's view of the consensus, or without a leader that of the
// control node that answers.
func (c *Client) Status(ctx context.Context) (cluster.Status, error) {
	var out cluster.Status
	err := c.call(ctx, cluster.PathStatus, struct{}{}, &out, cluster.MaxCall)
	return out, err
}

// Backup returns the state as a backup (control.ParseBackup reads it).
func (c *Client) Backup(ctx context.Context) ([]byte, error) {
	var out []byte
	err := c.call(ctx, cluster.PathBackup, struct{}{}, &out, cluster.MaxBackup)
	return out, err
}

// Restore replaces the state by a backup's.
func (c *Client) Restore(ctx context.Context, backup []byte) error {
	var errs []error
	for _, addr := range c.Control() {
		var out struct{}
		err := c.peers.Send(ctx, "", addr, cluster.PathRestore, backup, &out, cluster.MaxCall)
		if err == nil || answers(err) {
			return err
		}
		errs = append(errs, err)
	}
	return fmt.Errorf("%w: %w", ErrNoLeader, errors.Join(errs...))
}

// Transfer has the leader hand over, to a control node or (empty) to any.
func (c *Client) Transfer(ctx context.Context, to string) error {
	var out struct{}
	return c.call(ctx, cluster.PathTransfer, cluster.TransferRequest{To: to}, &out, cluster.MaxCall)
}
