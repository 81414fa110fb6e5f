package control

import (
	"context"
	"fmt"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/api/protocol"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/internal/identity"
)

// certificateEnd is when a new certificate of a role ends, whose identity ends at
// expires; zero for never.
func certificateEnd(now, expires time.Time) time.Time {
	end := now.Add(identity.NodeLife)
	if !expires.IsZero() && expires.Before(end) {
		end = expires
	}
	return end.UTC().Truncate(time.Second)
}

// spoken says that all control nodes can read commands of a kind.
func (n *Node) spoken(kind cluster.Kind, body any) bool {
	c, err := cluster.NewCommand(kind, "", time.Now(), body)
	return err == nil && n.State().Spoken(n.cfg.Self.ID).And(protocol.Cluster()).Has(c.V)
}

// admission is the use of a token. An operator is noted with it, unless some control
// node is of a build that could not read that.
func (n *Node) admission(r *cluster.JoinRequest, until time.Time) cluster.UseToken {
	use := cluster.UseToken{ID: r.Token, Node: r.Node, Role: r.Role}
	if r.Role != cluster.Admin {
		return use
	}
	noted := use
	noted.Until = until
	if !n.spoken(cluster.KindUseToken, noted) {
		return use
	}
	return noted
}

// renewable is when a new certificate for a peer ends; the error says that its identity
// has ended.
func (n *Node) renewable(peer identity.Name, now time.Time) (time.Time, error) {
	if peer.Role != cluster.Admin {
		return certificateEnd(now, time.Time{}), nil
	}
	o, _ := n.State().Operator(peer.Node)
	if !o.Expires.IsZero() && !now.Before(o.Expires) {
		return time.Time{}, fmt.Errorf("%w: the identity of %s has expired", client.ErrForbidden, peer.Node)
	}
	return certificateEnd(now, o.Expires), nil
}

// noteRenewal lists an operator that got a new certificate. It is a list for people: what
// fails is tried with the next certificate.
func (n *Node) noteRenewal(ctx context.Context, peer identity.Name, until time.Time) {
	body := cluster.Operator{Name: peer.Node, Until: until}
	if peer.Role != cluster.Admin || !n.spoken(cluster.KindNoteOperator, body) {
		return
	}
	c, err := cluster.NewCommand(cluster.KindNoteOperator, "", time.Now(), body)
	if err == nil {
		_, err = n.Propose(ctx, c)
	}
	if err != nil {
		n.log.Warn("operator not noted", "node", peer.Node, "err", err)
	}
}

// forget takes gateways out of the state that are lost for long: each new pod of a
// gateway is a new node.
func (n *Node) forget(_ context.Context, now time.Time) error {
	for id, node := range n.State().AllNodes() {
		if node.Role != cluster.Gateway || !node.Lost || now.Sub(node.Since) < state.ForgetAfter {
			continue
		}
		body := cluster.Name{Name: id}
		if !n.spoken(cluster.KindForgetNode, body) {
			return nil
		}
		if err := n.command(cluster.KindForgetNode, "", body); err != nil {
			return err
		}
		n.log.Info("gateway forgotten", "node", id, "lost", node.Since)
	}
	return nil
}
