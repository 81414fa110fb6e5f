package control

import (
	"maps"
	"sync"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// beats is the leader's memory of heartbeats. Ages are by the monotonic clock.
type beats struct {
	mu sync.Mutex
	at map[string]heartbeat
}

// heartbeat is what is known of one node.
type heartbeat struct {
	// at is when the node was heard, or when this leader first knew of its start.
	at    time.Time
	heard bool
	// incarnation is that of the node in the state, 0 before this leader has looked.
	incarnation uint64
	beat        cluster.Beat
}

// maxBeats bounds the nodes that are remembered.
const maxBeats = 4096

func newBeats() *beats { return &beats{at: map[string]heartbeat{}} }

// reset begins a reign.
func (b *beats) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.at)
}

// note remembers a heartbeat.
func (b *beats) note(now time.Time, beat cluster.Beat) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h, known := b.at[beat.Node]
	if !known && len(b.at) >= maxBeats {
		return
	}
	h.at, h.heard, h.beat = now, true, beat
	b.at[beat.Node] = h
}

// forgive takes a time off everybody's silence: this process was late itself, and
// may not have read what came.
func (b *beats) forgive(late time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for node, h := range b.at {
		h.at = h.at.Add(late)
		b.at[node] = h
	}
}

// silence is how long a node was not heard, and whether it was heard at all. It counts
// from the first look at this start of the node: nobody was silent before.
func (b *beats) silence(now time.Time, node string, incarnation uint64) (time.Duration, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h, ok := b.at[node]
	if h.incarnation != incarnation && (ok || len(b.at) < maxBeats) {
		h.incarnation = incarnation
		if !h.heard || h.at.Before(now) {
			h.at = now
		}
		b.at[node] = h
	}
	return max(0, now.Sub(h.at)), h.heard
}

// last is a node's last heartbeat.
func (b *beats) last(node string) (cluster.Beat, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.at[node]
	return h.beat, h.heard
}

// all is what was last heard of each node.
func (b *beats) all(now time.Time) map[string]cluster.NodeLoad {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make(map[string]cluster.NodeLoad, len(b.at))
	for node, h := range maps.All(b.at) {
		if h.heard {
			out[node] = cluster.NodeLoad{Age: max(0, now.Sub(h.at)), Beat: h.beat}
		}
	}
	return out
}
