package control

import (
	"fmt"
	"slices"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/api/protocol"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/internal/identity"
)

// operatorKinds are the commands that operators give.
func operatorKinds() []cluster.Kind {
	return append(nextOperatorKinds(),
		cluster.KindRemoveNode, cluster.KindPutDeployment, cluster.KindDeleteDeployment, cluster.KindPutKey,
		cluster.KindRevokeKey, cluster.KindDeleteKey, cluster.KindPutToken, cluster.KindRevokeToken, cluster.KindSetCAs, cluster.KindRotateGossip,
		cluster.KindReleaseGPU,
	)
}

// authorise says whether a peer may give a command:
//
//   - control nodes forward whatever others gave them;
//   - admins do what operators do, and drain nodes, but do not say what the cluster
//     itself finds out: nodes, losses, placements, uses of tokens;
//   - workers and gateways speak for themselves: their start, their drain, and the
//     reports of workers, also of faults of their GPUs. What is put into quarantine by
//     hand is put so by admins, and they alone lift it.
//
// What this build cannot read is nobody's to give: the error is then ErrVersion.
func authorise(peer identity.Name, c *cluster.Command) error {
	refused := fmt.Errorf("%w: %s %s may not give %s", client.ErrForbidden, peer.Role, peer.Node, c.Kind)
	switch {
	case peer.Role == cluster.Control:
		return nil
	case !protocol.Cluster().Has(c.V):
		return fmt.Errorf("%w: command %.64s has version %d; this control node speaks %s; upgrade those that are older", client.ErrVersion, c.Kind, c.V, protocol.Cluster())
	case peer.Role == cluster.Admin && slices.Contains(operatorKinds(), c.Kind):
		return nil
	}
	switch c.Kind {
	case cluster.KindNodeState:
		var body cluster.NodeState
		if err := c.Decode(&body); err != nil {
			return err
		}
		if body.Lost != nil || peer.Role != cluster.Admin && body.ID != peer.Node {
			return refused
		}
		return nil
	case cluster.KindPutNode:
		var body cluster.Start
		if err := c.Decode(&body); err != nil {
			return err
		}
		if peer.Role == cluster.Admin || body.ID != peer.Node || body.Role != peer.Role {
			return refused
		}
		return nil
	case cluster.KindReport:
		var body cluster.Report
		if err := c.Decode(&body); err != nil {
			return err
		}
		if peer.Role != cluster.Worker || body.Node != peer.Node {
			return refused
		}
		return nil
	case cluster.KindQuarantine:
		var body cluster.Quarantine
		if err := c.Decode(&body); err != nil {
			return err
		}
		byHand := body.Cause == cluster.CauseOperator
		if byHand != (peer.Role == cluster.Admin) || !byHand && (peer.Role != cluster.Worker || body.Node != peer.Node) {
			return refused
		}
		return nil
	}
	return refused
}
