package cluster

import "log/slog"

// Keys of the gossip have generations: 0 is the one that the cluster began with, and each
// rotation makes the next. The state has generations alone; control nodes know the keys,
// and give them to nodes that show a certificate.

const (
	// KindRotateGossip begins to replace the key of the gossip: RotateGossip.
	KindRotateGossip Kind = "rotate-gossip"
	// KindSetGossip is the leader's next step: SetGossip.
	KindSetGossip Kind = "set-gossip"
)

// sinceGossip is the version that came with rotations of the gossip's key.
const sinceGossip = 2

// RotateGossip asks for a new key.
type RotateGossip struct{}

// SetGossip changes which keys nodes hold, if From is what they are to hold now.
type SetGossip struct {
	From []uint64 `json:"from"`
	To   []uint64 `json:"to"`
}

// GossipRing are the generations of the keys that nodes hold; they encrypt by the first.
func (c *Cluster) GossipRing() []uint64 {
	if len(c.Gossip) == 0 {
		return []uint64{0}
	}
	return c.Gossip
}

// Since implements Later.
func (c Cluster) Since() int {
	if c.Gossip != nil {
		return sinceGossip
	}
	return 1
}

// PathGossip gives a key of the gossip to a node.
const PathGossip = "/v1/cluster/gossip-key"

// GossipRequest asks for the key of a generation.
type GossipRequest struct {
	Generation uint64 `json:"generation"`
}

// GossipReply has the key.
type GossipReply struct {
	Key []byte `json:"key"`
}

// String leaves the key out.
func (GossipReply) String() string { return "gossip key" }

// LogValue leaves the key out.
func (r GossipReply) LogValue() slog.Value { return slog.StringValue(r.String()) }

// GoString leaves the key out.
func (r GossipReply) GoString() string { return r.String() }
