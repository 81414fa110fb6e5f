package control

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/api/protocol"
	"github.com/tokenrouter/tokenrouter/control/client"
)

// ErrNoLeader says that there was no leader for Config.Patience. Whether the command
// was applied is not known; repeat it with the same Request. Callers answer 503
// no_quorum.
var ErrNoLeader = client.ErrNoLeader

// hop marks a call that was forwarded, which is not forwarded again.
const hop = "?hop=1"

// Propose has a command applied, here or at the leader, and returns the index at
// which this was done. It returns without an error only when the command is committed
// and has changed the state; other errors are the command's result (package state),
// ErrNoLeader, or about the command itself. A command without a Request gets one, so
// that a change of leader in between does no harm.
func (n *Node) Propose(ctx context.Context, c cluster.Command) (uint64, error) {
	if c.Request == "" {
		c.Request = newID("anonymous")
	}
	c.Time = time.Now().UTC() // the leader sets it again
	if err := n.admissible(&c); err != nil {
		return 0, err
	}
	patience := time.NewTimer(n.cfg.Patience)
	defer patience.Stop()
	const minPause, maxPause = 10 * time.Millisecond, 100 * time.Millisecond
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		r, changed := n.leader.now()
		index, err := n.try(ctx, &r, c)
		if !again(err) {
			return index, err
		}
		retry := time.NewTimer(pause)
		select {
		case <-changed:
		case <-retry.C:
		case <-n.gone:
			retry.Stop()
			if n.removes(&c) {
				return n.State().Index, nil // it was done, and the answer to it was lost with this node's connections
			}
			return 0, ErrRemoved
		case <-patience.C:
			retry.Stop()
			return 0, fmt.Errorf("%w (%w)", ErrNoLeader, err)
		case <-ctx.Done():
			retry.Stop()
			return 0, fmt.Errorf("%w: %w (%w)", ErrNoLeader, context.Cause(ctx), err)
		}
		retry.Stop()
	}
}

// errAgain wraps what may go better in the next reign.
var errAgain = errors.New("control: not applied")

func again(err error) bool {
	return errors.Is(err, errAgain) || errors.Is(err, client.ErrNotLeader) || errors.Is(err, client.ErrNoLeader)
}

// try proposes once, in one reign.
func (n *Node) try(ctx context.Context, r *reign, c cluster.Command) (uint64, error) {
	if r.self {
		return n.apply(c)
	}
	var reply cluster.ProposeReply
	if err := n.forward(ctx, r, cluster.PathPropose, c, &reply); err != nil {
		return 0, err
	}
	// Who asks next, here, is to see what was done.
	seen, cancel := context.WithTimeout(ctx, n.cfg.Patience)
	defer cancel()
	_, _ = n.view.Wait(seen, reply.Index) // the command is committed whether it is seen or not
	return reply.Index, nil
}

// forward calls the leader of a reign, until the reign ends.
func (n *Node) forward(ctx context.Context, r *reign, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("%w: %w", client.ErrBadRequest, err)
	}
	return n.forwardBytes(ctx, r, path, body, out)
}

func (n *Node) forwardBytes(ctx context.Context, r *reign, path string, body []byte, out any) error {
	if r.leader == "" {
		if refusal := n.Refused(); refusal != nil {
			return fmt.Errorf("%w: there is no leader: this node's certificate is refused by %s", errAgain, strings.Join(refusal.By, ", "))
		}
		return fmt.Errorf("%w: there is no leader", errAgain)
	}
	addr, ok := n.book.find(r.leader)
	if !ok {
		_, addr, _ = strings.Cut(string(r.addr), "/")
	}
	ctx, cancel := r.within(ctx)
	defer cancel()
	err := n.peers.Send(ctx, r.leader, addr, path+hop, body, out, cluster.MaxBackup)
	if err != nil && client.Problem(err).Code == cluster.CodeInternal && !errors.Is(err, client.ErrInternal) {
		return fmt.Errorf("%w: %w", errAgain, err) // it was not an answer
	}
	return err
}

// apply commits a command, if this node leads.
func (n *Node) apply(c cluster.Command) (uint64, error) {
	r, end := n.consensus()
	defer end()
	if r == nil {
		return 0, client.ErrNotLeader
	}
	c.Time = time.Now().UTC()
	if err := n.admissible(&c); err != nil {
		return 0, err
	}
	if err := n.yield(r, &c); err != nil {
		return 0, err
	}
	text, err := c.Encode()
	if err != nil {
		return 0, err
	}
	future := r.Apply(text, n.cfg.Patience)
	if err := future.Error(); err != nil {
		// It may be in the log all the same: the Request makes a repetition harmless.
		return 0, fmt.Errorf("%w: %w", errAgain, errors.Join(client.ErrNotLeader, err))
	}
	result, ok := future.Response().(applied)
	if !ok {
		return 0, fmt.Errorf("control: the log gave %T for a command", future.Response())
	}
	if result.err == nil {
		n.tellQuarantine(&c, result.index)
	}
	return result.index, result.err
}

// admissible refuses what must not reach the log.
func (n *Node) admissible(c *cluster.Command) error {
	if err := writable(n.State(), n.cfg.Self.ID, protocol.Cluster(), c); err != nil {
		return err
	}
	if len(c.Request) > cluster.MaxRequestID {
		return fmt.Errorf("%w: its request id has more than %d bytes", cluster.ErrCommand, cluster.MaxRequestID)
	}
	_, err := c.Encode()
	return err
}

// newID makes an id that nobody else has.
func newID(prefix string) string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails
	return prefix + "/" + hex.EncodeToString(b[:])
}

// Sync waits until this node has all that was committed when it was called.
func (n *Node) Sync(ctx context.Context) error {
	r, _ := n.leader.now()
	if r.self {
		own, end := n.consensus()
		defer end()
		if own == nil {
			return ErrNoLeader
		}
		if err := own.Barrier(n.cfg.Patience).Error(); err != nil {
			return fmt.Errorf("%w: %w", ErrNoLeader, err)
		}
		return nil
	}
	var status cluster.Status
	if err := n.forward(ctx, &r, cluster.PathStatus, struct{}{}, &status); err != nil {
		return fmt.Errorf("%w: %w", ErrNoLeader, err)
	}
	_, err := n.view.Wait(ctx, status.Applied)
	return err
}

// Backup returns a copy of the state as this node has it (ParseBackup).
func (n *Node) Backup(ctx context.Context) ([]byte, error) {
	if err := n.Sync(ctx); err != nil {
		return nil, err
	}
	return newBackup(n.State(), time.Now())
}

// restoreRoom is by how much at least a restored state is ahead of the log. What happens
// between the last look at the log and the restoration has a quarter of it.
const restoreRoom = uint64(4096)

// restoreTimeout bounds the time until a majority has a restored backup.
const restoreTimeout = 30 * time.Second

// Restore replaces the state by a backup's, on all control nodes. What was done since
// the backup is lost: keys and tokens that were revoked since are good again. The
// consensus keeps its members, and running nodes announce themselves anew.
func (n *Node) Restore(ctx context.Context, backup []byte) error {
	b, s, err := ParseBackup(backup)
	if err != nil {
		return err
	}
	if own := n.cfg.Credentials.Name().Cluster; b.Cluster != own {
		return fmt.Errorf("%w: it is of cluster %q, and this is %q", ErrSnapshot, b.Cluster, own)
	}
	reign, _ := n.leader.now()
	if !reign.self {
		var out struct{}
		if err := n.forwardBytes(ctx, &reign, cluster.PathRestore, backup, &out); again(err) {
			return fmt.Errorf("%w: %w", ErrNoLeader, err)
		} else {
			return err
		}
	}
	r, end := n.consensus()
	defer end()
	if r == nil {
		return ErrNoLeader
	}
	s.History = newID("restored")
	var out strings.Builder
	// Indices grow: what others have done while the state was encoded must not get beyond it.
	for room := restoreRoom; out.Len() == 0 || r.LastIndex()+room/4 > s.Index; room *= 2 {
		s.Index = max(s.Index, r.LastIndex()+room)
		out.Reset()
		if err := writeSnapshot(&out, s); err != nil {
			return err
		}
	}
	meta := &raft.SnapshotMeta{Version: raft.SnapshotVersionMax, Index: s.Index, Size: int64(out.Len())}
	if err := r.Restore(meta, strings.NewReader(out.String()), restoreTimeout); err != nil {
		return fmt.Errorf("%w: restore: %w", ErrNoLeader, err)
	}
	n.log.Warn("state restored from a backup", "made", b.Made, "index", b.Index)
	return nil
}
