package membership

import (
	"sync"

	"github.com/hashicorp/memberlist"
)

// events takes the library's call-backs, which must not block, and wakes the loop
// once for any number of them. The library's own list of members changes under its
// readers, so what the call-backs show is copied here.
type events struct {
	// wake has capacity 1: what comes while it is full is part of the same wake-up.
	wake chan struct{}

	mu    sync.Mutex
	nodes map[string]seen
	own   meta
}

// seen is what was last heard of a node.
type seen struct {
	addr  string
	state State
	told  meta
}

// maxNodes bounds the nodes that are remembered.
const maxNodes = 4096

func newEvents(own meta) *events {
	return &events{wake: make(chan struct{}, 1), nodes: map[string]seen{}, own: own}
}

func (e *events) note(n *memberlist.Node, state State) {
	s := seen{n.Address(), state, decodeMeta(n.Meta)}
	if state == Dead && s.told.Going {
		s.state = Left
	}
	e.mu.Lock()
	if _, known := e.nodes[n.Name]; known || len(e.nodes) < maxNodes {
		e.nodes[n.Name] = s
	}
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// NotifyJoin is the library's word that a node is there.
func (e *events) NotifyJoin(n *memberlist.Node) { e.note(n, Alive) }

// NotifyLeave is the library's word that a node has left or died.
func (e *events) NotifyLeave(n *memberlist.Node) { e.note(n, Dead) }

// NotifyUpdate is the library's word that a node tells something new of itself.
func (e *events) NotifyUpdate(n *memberlist.Node) { e.note(n, Alive) }

// members is what is known now.
func (e *events) members() map[string]Member {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := make(map[string]Member, len(e.nodes))
	for node, s := range e.nodes {
		out[node] = Member{s.state, s.told.Role, s.told.Load}
	}
	return out
}

// alive are the addresses of the nodes that are there.
func (e *events) alive() map[string]bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := map[string]bool{}
	for _, s := range e.nodes {
		if s.state == Alive {
			out[s.addr] = true
		}
	}
	return out
}

// NodeMeta is what this node tells of itself.
func (e *events) NodeMeta(int) []byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.own.encode()
}

// The library's other call-backs are not used.
func (*events) NotifyMsg([]byte)                {}
func (*events) GetBroadcasts(int, int) [][]byte { return nil }
func (*events) LocalState(bool) []byte          { return nil }
func (*events) MergeRemoteState([]byte, bool)   {}
