package cluster

import (
	"fmt"

	"github.com/tokenrouter/tokenrouter/api/protocol"
)

// Protocol is the newest version of commands and calls that this build speaks,
// MinProtocol the oldest one.
const (
	Protocol    = protocol.ClusterNewest
	MinProtocol = protocol.ClusterOldest
)

// Speak notes which versions the node speaks.
func (n *Node) Speak(r protocol.Range) {
	n.Protocol, n.MinProtocol = r.Newest, r.Oldest
	if r.Oldest == 1 {
		n.MinProtocol = 0
	}
}

// Speaks are the versions that the node speaks, as it has said; they may be no valid
// range.
func (n *Node) Speaks() protocol.Range {
	r := protocol.Range{Oldest: n.MinProtocol, Newest: n.Protocol}
	if r.Oldest == 0 {
		r.Oldest = 1
	}
	return r
}

// Later is a body with fields that came later than its kind.
type Later interface {
	// Since is the oldest version that can read the body as it is.
	Since() int
}

// since is the oldest version that can read a body of a kind.
func since(kind Kind, body any) int {
	v := kind.since()
	if later, ok := body.(Later); ok {
		v = max(v, later.Since())
	}
	return v
}

// since is the version that the kind came with. Kinds that this build does not know
// are of none; 1 stands for it.
func (k Kind) since() int {
	switch k {
	case KindNoteOperator, KindForgetNode, KindDeleteKey:
		return sinceOperators
	case KindRotateGossip, KindSetGossip:
		return sinceGossip
	case KindQuarantine, KindReleaseGPU:
		return sinceQuarantine
	}
	if v, _ := k.next(); v > 0 {
		return v
	}
	return 1
}

// body is an empty body of the kind, nil for a kind that this build does not know.
func (k Kind) body() any {
	switch k {
	case KindInit:
		return new(Cluster)
	case KindPutNode:
		return new(Start)
	case KindNodeState:
		return new(NodeState)
	case KindRemoveNode:
		return new(RemoveNode)
	case KindReport:
		return new(Report)
	case KindPlace:
		return new(Place)
	case KindPutDeployment:
		return new(Deployment)
	case KindDeleteDeployment, KindRevokeKey, KindRevokeToken, KindForgetNode, KindDeleteKey, KindReleaseGPU:
		return new(Name)
	case KindPutTable:
		return new(Table)
	case KindPutKey:
		return new(Key)
	case KindPutToken:
		return new(Token)
	case KindUseToken:
		return new(UseToken)
	case KindSetCAs:
		return new(CAs)
	case KindNoteOperator:
		return new(Operator)
	case KindRotateGossip:
		return new(RotateGossip)
	case KindSetGossip:
		return new(SetGossip)
	case KindQuarantine:
		return new(Quarantine)
	}
	_, body := k.next()
	return body
}

// Check returns ErrCommand for a command that this build cannot read. It does not look
// at what the command would do.
func (c *Command) Check() error {
	body := c.Kind.body()
	if body == nil {
		return fmt.Errorf("%w: this build does not know the kind %.64q", ErrCommand, c.Kind)
	}
	return c.Decode(body)
}
