package control

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/client"
)

// book knows where the control nodes are: from the state, or from themselves while
// there is no leader that could note it there. Without that, a cluster whose nodes
// have all come back at new addresses would have no majority that finds itself.
type book struct {
	view *client.View

	mu   sync.Mutex
	told map[string]told
}

// told is an address that the state does not have yet. It holds until the node's next
// start is in the state.
type told struct {
	addr        string
	incarnation uint64
}

// maxBook bounds the nodes that are remembered.
const maxBook = 64

func newBook(view *client.View) *book { return &book{view: view, told: map[string]told{}} }

// find returns a node's address.
func (b *book) find(id string) (string, bool) {
	node, known := b.view.State().Node(id)
	b.mu.Lock()
	defer b.mu.Unlock()
	if t, ok := b.told[id]; ok && t.incarnation == node.Incarnation {
		return t.addr, true
	}
	return node.Addr, known
}

// note remembers what was told of a node.
func (b *book) note(id, addr string) {
	if _, _, err := net.SplitHostPort(addr); err != nil || len(addr) > cluster.MaxID {
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
