package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/internal/identity"
)

// linePart is about how long a line of a watch may get, in bytes. One object is at
// most cluster.MaxCommand, so that a line stays below client.MaxLine.
const linePart = 1 << 20

// behindFor is how long a node that is current may know less than a caller before it
// shows the caller that. Others know of a commit a moment before it does; what is missing
// for longer was lost with the disks of control nodes.
const behindFor = 2 * time.Second

// watcher is one open watch.
type watcher struct {
	n       *Node
	peer    identity.Name
	out     *http.ResponseController
	w       http.ResponseWriter
	index   uint64
	history string
	// behind is since when the node, being current, has known less; zero if it does not.
	behind time.Time
}

// serveWatch streams the state: what has changed since the index that the caller
// has, or everything; then every change, and a line each second at least, or as often as
// the caller asks, up to each client.BeatEvery. It ends
// when the caller goes away or is removed, or this node stops. Its error has not
// been answered yet.
//
// No caller is set back: a leader is named only once this node has caught up with it, and
// who knows more than this node is sent nothing for behindFor. Indices grow, over restored
// backups too.
func (n *Node) serveWatch(w http.ResponseWriter, r *http.Request, peer identity.Name) error {
	query := r.URL.Query()
	since, err := strconv.ParseUint(query.Get("since"), 10, 64)
	if err != nil {
		return fmt.Errorf("%w: since must be a number", client.ErrBadRequest)
	}
	every, err := beat(query.Get(client.BeatParam))
	if err != nil {
		return err
	}
	x := &watcher{n: n, peer: peer, out: http.NewResponseController(w), w: w, index: since, history: query.Get("history")}
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set(client.BeatHeader, strconv.FormatInt(every.Milliseconds(), 10))
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for first := true; ; first = false {
		changed := n.view.Changed()
		reign, turned := n.leader.now()
		s := n.view.State()
		if s.IsRemoved(peer.Node) {
			n.log.Info("watch ended: the node was removed", "node", peer.Node)
			return nil
		}
		leader, term, synced := "", uint64(0), reign.synced
		if r := n.raft.Load(); r != nil && reign.leader != "" && reign.current() {
			leader, term, synced = reign.leader, r.CurrentTerm(), nil
		}
		if err := x.send(s, leader, term, first); err != nil {
			n.log.Debug("watch ended", "node", peer.Node, "err", err)
			return nil
		}
		if err := x.out.Flush(); err != nil {
			return nil // the caller is gone
		}
		select {
		case <-changed:
		case <-turned:
		case <-synced:
		case <-ticker.C:
		case <-r.Context().Done():
			return nil
		}
	}
}

// beat is how often there is a line at least, by what a caller asks for, in milliseconds.
func beat(asked string) (time.Duration, error) {
	if asked == "" {
		return client.SlowBeat, nil
	}
	ms, err := strconv.ParseUint(asked, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("%w: %s must be a number of milliseconds", client.ErrBadRequest, client.BeatParam)
	}
	return min(max(time.Duration(ms)*time.Millisecond, client.BeatEvery), client.SlowBeat), nil
}

// waits says that the caller knows more than a state, which may still catch up.
func (x *watcher) waits(s *state.State, current bool, now time.Time) bool {
	switch {
	case x.index <= s.Index:
		x.behind = time.Time{}
		return false
	case !current:
		x.behind = time.Time{}
		return true
	case x.behind.IsZero():
		x.behind = now
	}
	return now.Sub(x.behind) < behindFor
}

// send writes the lines from the watcher's index to a state. leader is empty unless the
// state is current.
func (x *watcher) send(s *state.State, leader string, term uint64, first bool) error {
	if x.waits(s, leader != "", time.Now()) {
		return x.write(client.Line{Index: x.index, History: x.history}) // as if without a leader
	}
	same := x.history == s.History && x.index <= s.Index && (x.index > 0 || !first)
	line := client.Line{Index: s.Index, History: s.History, Leader: leader, Term: term}
	var objects []state.Object
	err := state.ErrForgotten
	if same {
		if x.index == s.Index {
			return x.write(line) // a heartbeat
		}
		objects, err = s.Changes(x.peer.Role, x.index)
	}
	if errors.Is(err, state.ErrForgotten) {
		line.Snapshot = true
		objects, err = s.Changes(x.peer.Role, 0)
	}
	if err != nil {
		return err
	}
	x.index, x.history = s.Index, s.History
	for {
		n, size := 0, 0
		for n < len(objects) && (n == 0 || size+len(objects[n].Value) < linePart) {
			size += len(objects[n].Value)
			n++
		}
		line.Objects, line.More = objects[:n], n < len(objects)
		if err := x.write(line); err != nil {
			return err
		}
		if objects = objects[n:]; !line.More {
			return nil
		}
		line.Snapshot = false
	}
}

func (x *watcher) write(line client.Line) error {
	text, err := json.Marshal(line)
	if err != nil {
		return err
	}
	_, err = x.w.Write(append(text, '\n'))
	return err
}
