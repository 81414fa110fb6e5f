package control

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/client"
)

// book knows where the control nodes are: from the state; from the log on disk, as long
// as the state lags behind it after a start; or from themselves while there is no leader
// that could note it there. Without that, a cluster whose nodes have all come back at new
// addresses would have no majority that finds itself.
type book struct {
	view *client.View
	// logged has what the log on disk said when it was opened. Nothing changes it later.
	logged map[string]logged

	mu   sync.Mutex
	told map[string]told
	// seen is where nodes were when somebody looked last. One that was removed is not in the
	// state any more, and has to be found until it is taken out of the consensus.
	seen map[string]string
}

// logged is an address in the log on disk, and its entry's index. It holds until the state
// has got to that entry: after a start the state is what the last snapshot had, until a
// leader says what is committed.
type logged struct {
	addr  string
	index uint64
}

// told is an address that the state does not have yet. It holds until the node's next
// start is in the state.
type told struct {
	addr        string
	incarnation uint64
}

// maxBook bounds the nodes that are remembered.
const maxBook = 64

func newBook(view *client.View) *book {
	return &book{view: view, logged: map[string]logged{}, told: map[string]told{}, seen: map[string]string{}}
}

// find returns a node's address.
func (b *book) find(id string) (string, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.view.State()
	node, known := s.Node(id)
	t, isTold := b.told[id]
	if isTold && known && t.incarnation != node.Incarnation {
		delete(b.told, id) // it would count again once the node is removed
		isTold = false
	}
	addr := node.Addr
	switch l := b.logged[id]; {
	case isTold && t.incarnation == node.Incarnation:
		addr = t.addr
	case l.index > s.Index:
		addr = l.addr
	case !known:
		addr, known = b.seen[id]
		return addr, known && s.IsRemoved(id)
	}
	if _, ok := b.seen[id]; ok || len(b.seen) < maxBook {
		b.seen[id] = addr
	}
	return addr, true
}

// dialable says that an address can be one.
func dialable(addr string) bool {
	_, _, err := net.SplitHostPort(addr)
	return err == nil && len(addr) <= cluster.MaxID
}

// read looks for the start of a control node in an entry of the log on disk, in the order
// of the log and before anything else uses the book. It passes over what it cannot read.
func (b *book) read(l *raft.Log) {
	if l.Type != raft.LogCommand || !bytes.Contains(l.Data, []byte(cluster.KindPutNode)) {
		return
	}
	c, err := cluster.DecodeCommand(l.Data)
	if err != nil || c.Kind != cluster.KindPutNode {
		return
	}
	var node cluster.Start
	if c.Decode(&node) != nil || node.Role != cluster.Control || !dialable(node.Addr) {
		return
	}
	if _, known := b.logged[node.ID]; known || len(b.logged) < maxBook {
		b.logged[node.ID] = logged{node.Addr, l.Index}
	}
}

// note remembers what was told of a node.
func (b *book) note(id, addr string) {
	if !dialable(addr) {
		return
	}
	node, _ := b.view.State().Node(id)
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known := b.told[id]; known || len(b.told) < maxBook {
		b.told[id] = told{addr, node.Incarnation}
	}
}

// all is what was told and still holds.
func (b *book) all() map[string]string {
	s := b.view.State()
	b.mu.Lock()
	defer b.mu.Unlock()
	out := map[string]string{}
	for id, t := range b.told {
		if node, _ := s.Node(id); node.Incarnation == t.incarnation {
			out[id] = t.addr
		}
	}
	return out
}

// meet tells the other control nodes where this one is, and hears of the others.
func (n *Node) meet(ctx context.Context) {
	for _, addr := range n.contacts.Control() {
		if addr == n.cfg.Self.Addr {
			continue
		}
		attempt, cancel := context.WithTimeout(ctx, time.Second)
		var reply cluster.Addresses
		err := n.peers.Call(attempt, "", addr, cluster.PathAddress, cluster.Addresses{Own: n.cfg.Self.Addr}, &reply, cluster.MaxCall)
		cancel()
		if err != nil {
			n.log.Debug("control node not met", "addr", addr, "err", err)
			continue
		}
		for id, at := range reply.Known {
			if id != n.cfg.Self.ID {
				n.book.note(id, at)
			}
		}
	}
}

func (n *Node) serveAddress(_ context.Context, c *call) (any, error) {
	var told cluster.Addresses
	if err := c.read(&told); err != nil {
		return nil, err
	}
	if told.Own == "" {
		return nil, fmt.Errorf("%w: there is no address", client.ErrBadRequest)
	}
	if own, ok := n.State().Node(c.peer.Node); !ok || own.Addr != told.Own {
		n.book.note(c.peer.Node, told.Own)
	}
	known := n.book.all()
	known[n.cfg.Self.ID] = n.cfg.Self.Addr
	return cluster.Addresses{Known: known}, nil
}
