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
	// from is when this node began to lead: nobody was silent before.
	from time.Time
	at   map[string]heartbeat
}

type heartbeat struct {
	at   time.Time
	beat cluster.Beat
}

// maxBeats bounds the nodes that are remembered.
const maxBeats = 4096

func newBeats() *beats { return &beats{at: map[string]heartbeat{}} }

// reset begins a reign.
func (b *beats) reset(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.from = now
	clear(b.at)
}

// note remembers a heartbeat.
func (b *beats) note(now time.Time, beat cluster.Beat) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known := b.at[beat.Node]; !known && len(b.at) >= maxBeats {
		return
	}
	b.at[beat.Node] = heartbeat{now, beat}
}

// forgive takes a time off everybody's silence: this process was late itself, and
// may not have read what came.
func (b *beats) forgive(late time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.from = b.from.Add(late)
	for node, h := range b.at {
		h.at = h.at.Add(late)
		b.at[node] = h
	}
}

// silence is how long a node was not heard, and whether it was heard at all.
func (b *beats) silence(now time.Time, node string) (time.Duration, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h, ok := b.at[node]
	last := b.from
	if ok && h.at.After(last) {
		last = h.at
	}
	return max(0, now.Sub(last)), ok
}

// last is a node's last heartbeat.
func (b *beats) last(node string) (cluster.Beat, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h, ok := b.at[node]
	return h.beat, ok
}

// all is what was last heard of each node.
func (b *beats) all(now time.Time) map[string]cluster.NodeLoad {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make(map[string]cluster.NodeLoad, len(b.at))
	for node, h := range maps.All(b.at) {
		out[node] = cluster.NodeLoad{Age: max(0, now.Sub(h.at)), Beat: h.beat}
	}
	return out
}
