package engine

import (
	"sync"

	"github.com/tokenrouter/tokenrouter/worker/peer"
)

// linkWatch passes what happens on a replica's links on to its sub-service, and
// says when all of them are up. Requests that arrive after that find every
// replica of their group: the sub-service learns of a link before of them.
type linkWatch struct {
	peer.Handler
	want int
	// complete is called each time that the last missing link has come up.
	complete func()

	mu sync.Mutex
	up map[string]*peer.Link // by the replica at the other side
}

// watchLinks wraps the handler of one run of the replica.
func (r *replica) watchLinks(h peer.Handler) *linkWatch {
	return &linkWatch{Handler: h, want: len(r.neighbours), complete: r.noteLinked, up: map[string]*peer.Link{}}
}

// LinkUp implements peer.Handler.
func (w *linkWatch) LinkUp(l *peer.Link) {
	w.Handler.LinkUp(l)
	name, _ := l.Peer()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.up[name] = l
	if len(w.up) == w.want {
		w.complete()
	}
}

// LinkDown implements peer.Handler. A new link to the same replica may be up already.
func (w *linkWatch) LinkDown(l *peer.Link, err error) {
	w.Handler.LinkDown(l, err)
	name, _ := l.Peer()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.up[name] == l {
		delete(w.up, name)
	}
}

// noteLinked closes linked if that has not been done.
func (r *replica) noteLinked() { r.linkedOnce.Do(func() { close(r.linked) }) }
