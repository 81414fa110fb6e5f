package cluster

import (
	"log/slog"
	"time"
)

// Paths of the calls between nodes, on the cluster port's HTTP/2.
const (
	PathWatch     = "/v1/cluster/watch"
	PathPropose   = "/v1/cluster/propose"
	PathHeartbeat = "/v1/cluster/heartbeat"
	PathLoads     = "/v1/cluster/loads"
	PathSlices    = "/v1/cluster/slices"
	PathMeasures  = "/v1/cluster/measures"
	PathRenew     = "/v1/cluster/renew"
	PathStatus    = "/v1/cluster/status"
	PathBackup    = "/v1/cluster/backup"
	PathRestore   = "/v1/cluster/restore"
	PathTransfer  = "/v1/cluster/transfer"
	PathAddress   = "/v1/cluster/address"
	PathIndex     = "/v1/cluster/index"
)

// Bounds of messages, in bytes.
const (
	// MaxJoinRequest bounds a JoinRequest, which is read before anything is known of
	// who sends it.
	MaxJoinRequest  = 4 << 10
	MaxJoinResponse = 64 << 10
	// MaxCall bounds the body of every other call but Restore.
	MaxCall = MaxCommand + 1<<10
	// MaxBackup bounds a backup.
	MaxBackup = 256 << 20
	// MaxRequestID bounds Command.Request.
	MaxRequestID = 256
)

// Problem is why a call was refused.
type Problem struct {
	// Code is stable and short; Text is for people.
	Code string `json:"code"`
	Text string `json:"text"`
}

// Codes of problems besides those of the state's errors (package control/state).
const (
	// CodeNoQuorum: no leader, so nothing can be changed. Ask again later.
	CodeNoQuorum = "no_quorum"
	// CodeNotLeader: a forwarded call met a node that leads no more.
	CodeNotLeader = "not_leader"
	// CodeForbidden: the role may not do that.
	CodeForbidden = "forbidden"
	// CodeRemoved: the caller was removed from the cluster.
	CodeRemoved = "removed"
	// CodeBadRequest: the call cannot be read.
	CodeBadRequest = "bad_request"
	// CodeVersion: a command of a version that not all control nodes speak, or a node
	// that speaks none that they do.
	CodeVersion = "version"
	// CodeTooMany: too many bad tries; wait a minute.
	CodeTooMany = "too_many"
	// CodeInternal: see the control node's log.
	CodeInternal = "internal"
)

// JoinRequest is the one message of a joiner, a JSON line.
type JoinRequest struct {
	// Token is the token's ID, Secret its secret.
	Token  string `json:"token"`
	Secret []byte `json:"secret"`
	Role   Role   `json:"role"`
	Node   string `json:"node"`
	// Request is the certificate signing request (DER).
	Request []byte `json:"request"`
	// Build, Protocol and MinProtocol are as in Node.
	Build       string `json:"build"`
	Protocol    int    `json:"protocol"`
	MinProtocol int    `json:"min_protocol,omitempty"`
}

// String leaves the secret out.
func (r JoinRequest) String() string {
	return string(r.Role) + " " + r.Node + " with token " + r.Token
}

// LogValue leaves the secret out.
func (r JoinRequest) LogValue() slog.Value { return slog.StringValue(r.String()) }

// GoString leaves the secret out.
func (r JoinRequest) GoString() string { return r.String() }

// JoinResponse is the answer to a JoinRequest: Problem, or the rest.
type JoinResponse struct {
	Problem *Problem `json:"problem,omitempty"`
	Cluster string   `json:"cluster,omitempty"`
	// Certificate and CAs are PEM.
	Certificate string   `json:"certificate,omitempty"`
	CAs         []string `json:"cas,omitempty"`
	// Control are the addresses of control nodes.
	Control []string `json:"control,omitempty"`
	// GossipKey is for nodes, AuthorityKey (PEM) for control nodes, Pepper for
	// control nodes and gateways.
	// GossipGeneration is the key's.
	GossipKey        []byte `json:"gossip_key,omitempty"`
	GossipGeneration uint64 `json:"gossip_generation,omitempty"`

	AuthorityKey string `json:"authority_key,omitempty"`
	Pepper       []byte `json:"pepper,omitempty"`
}

// String leaves the secrets out.
func (r JoinResponse) String() string {
	if r.Problem != nil {
		return r.Problem.Code
	}
	return "certificate of cluster " + r.Cluster
}

// LogValue leaves the secrets out.
func (r JoinResponse) LogValue() slog.Value { return slog.StringValue(r.String()) }

// GoString leaves the secrets out.
func (r JoinResponse) GoString() string { return r.String() }

// Load is how busy a replica is, or all replicas of a node together.
type Load struct {
	// Live requests have their sequence here, parked and resident ones too; Waiting
	// ones are not admitted yet.
	Live    int `json:"live,omitempty"`
	Waiting int `json:"wait,omitempty"`
	// KV is the share of the token slots in use, 0 to 1.
	KV float32 `json:"kv,omitempty"`
}

// Beat is a node's heartbeat.
type Beat struct {
	Node string `json:"node"`
	// Index is that of the state that the node has.
	Index uint64 `json:"index"`
	// Loads are by replica.
	Loads map[string]Load `json:"loads,omitempty"`
	// Gossip are the generations of the gossip's keys that the node holds, the one that
	// it encrypts by first.
	Gossip []uint64 `json:"gossip,omitempty"`
}

// BeatReply answers a heartbeat.
type BeatReply struct {
	// Index is that of the leader's state.
	Index uint64 `json:"index"`
	// Leader is the leader's node ID.
	Leader string `json:"leader"`
	// Known says that the state has the node.
	Known bool `json:"known"`
}

// NodeLoad is what the leader last heard of a node.
type NodeLoad struct {
	// Age is the time since then.
	Age  time.Duration `json:"age"`
	Beat Beat          `json:"beat"`
}

// SliceAsk asks for a part of what a key may use in a minute. Amounts are requests
// and tokens.
type SliceAsk struct {
	Gateway string `json:"gateway"`
	Key     string `json:"key"`
	// Want is what is needed now and soon; 0 asks for nothing.
	Want Amount `json:"want"`
	// Need is the part of Want without which the rest is of no use: if less is left of
	// either rate, nothing is given.
	Need Amount `json:"need,omitzero"`
	// Back is what earlier slices had and was not used, for leaders of builds that do
	// not know Returned; others pass over it if there is Returned.
	Back Amount `json:"back,omitzero"`
	// Returned is what the slices that Leader gave in Term had and was not used. It
	// says nothing to another leader, or in another term.
	Returned []ReturnedSlice `json:"returned,omitempty"`
	Leader   string          `json:"leader,omitempty"`
	Term     uint64          `json:"term,omitempty"`
	// Held are the gateway's slices of the last SliceWindow, from which a new leader
	// learns what was given before it.
	Held []HeldSlice `json:"held,omitempty"`
	// Alone is what the gateway gave itself: while no leader answered, or because a
	// request used more than it had reserved. It is in Held too.
	Alone []AloneSlice `json:"alone,omitempty"`
}

// Amount counts requests and tokens.
type Amount struct {
	Requests int64 `json:"requests,omitempty"`
	Tokens   int64 `json:"tokens,omitempty"`
}

// HeldSlice is an amount that was given a while ago.
type HeldSlice struct {
	Age    time.Duration `json:"age"`
	Amount Amount        `json:"amount"`
}

// ReturnedSlice is what is not used of a slice.
type ReturnedSlice struct {
	// Seq grows with each that a gateway returns of a key. One that was heard already
	// is passed over, so that an ask may be repeated when its answer was lost.
	Seq uint64 `json:"seq"`
	// At is the slice's, or Slice.Now less the HeldSlice's age.
	At     time.Duration `json:"at"`
	Amount Amount        `json:"amount"`
}

// AloneSlice is an amount that a gateway gave itself a while ago. Seq is as in
// ReturnedSlice, but counts by itself.
type AloneSlice struct {
	Seq    uint64        `json:"seq"`
	Age    time.Duration `json:"age"`
	Amount Amount        `json:"amount"`
	// Over says that a request used it beyond what it had reserved. What is more than the
	// rate then is owed, and taken off the minutes that follow.
	Over bool `json:"over,omitempty"`
}

// CountedSlice is what the leader counts as given at a time.
type CountedSlice struct {
	// At is on the clock of Slice.Now.
	At     time.Duration `json:"at"`
	Amount Amount        `json:"amount"`
}

// Slice is what a gateway may let through until Life has passed.
type Slice struct {
	Given Amount        `json:"given"`
	Life  time.Duration `json:"life"`
	// Retry is when to ask again if less was given than wanted.
	Retry time.Duration `json:"retry,omitempty"`
	// Leader is who gave it, in its term: another leader or term must be told what
	// is held (SliceAsk.Held).
	Leader string `json:"leader"`
	Term   uint64 `json:"term"`
	// Now is the leader's clock in its reign, never 0, and At the time under which the
	// slice is in its memory: ReturnedSlice.At. Both are 0 from a leader of a build
	// that knows SliceAsk.Back alone. Noted says that Held was noted with this ask.
	Now   time.Duration `json:"now,omitempty"`
	At    time.Duration `json:"at,omitempty"`
	Noted bool          `json:"noted,omitempty"`
	// Counts is all that was given and counts, the oldest first, and Owed what is to be
	// taken off what leaves the window, or is kept for other gateways. Both are told if less was given than wanted, so
	// that a gateway knows what is left and when there will be enough.
	Counts []CountedSlice `json:"counts,omitempty"`
	Owed   Amount         `json:"owed,omitzero"`
}

// SliceLife is how long a slice may be used, SliceWindow how long it counts:
// whatever is used within a minute was given within SliceWindow. The leader counts what
// was given within SliceStep as given at its beginning, and until its end has left the
// window.
const (
	SliceLife   = 2 * time.Second
	SliceWindow = time.Minute + SliceLife
	SliceStep   = 500 * time.Millisecond
)

// RenewRequest asks for a new certificate for the caller's own name.
type RenewRequest struct {
	// Request is the signing request (DER).
	Request []byte `json:"request"`
}

// RenewResponse has the new certificate and the trusted CAs, PEM.
type RenewResponse struct {
	Certificate string   `json:"certificate"`
	CAs         []string `json:"cas"`
}

// ProposeReply says at which index a command was applied.
type ProposeReply struct {
	Index uint64 `json:"index"`
}

// IndexReply is the index of a state that has every change that was acknowledged before
// the call.
type IndexReply struct {
	Index uint64 `json:"index"`
}

// TransferRequest asks the leader to hand over, to a node or (empty) to any.
type TransferRequest struct {
	To string `json:"to,omitempty"`
}

// Addresses tells where control nodes are, while there is no leader that could note it
// in the state. The caller's own address is its word; others are hearsay, and whoever
// answers there must still show the node's certificate.
type Addresses struct {
	Own   string            `json:"own,omitempty"`
	Known map[string]string `json:"known,omitempty"`
}

// Status is a control node's view of the consensus.
type Status struct {
	Node   string `json:"node"`
	Leader string `json:"leader"`
	Term   uint64 `json:"term"`
	// Index is the last in the log, Commit the last committed, Applied that of the state.
	Index   uint64 `json:"index"`
	Commit  uint64 `json:"commit"`
	Applied uint64 `json:"applied"`
	// Contact is the time since the leader was heard; 0 on the leader, -1 for never.
	Contact time.Duration `json:"contact"`
	// Refused are the control nodes that refuse the node's certificate, if they are the
	// majority of the others; it has no leader then.
	Refused []string `json:"refused,omitempty"`
	// Servers are the members of the consensus. Their Lag is known to the leader.
	Servers []Server `json:"servers"`
}

// Server is a member of the consensus.
type Server struct {
	Node  string `json:"node"`
	Addr  string `json:"addr"`
	Voter bool   `json:"voter"`
	// Lag is how many entries the node is behind, -1 if that is not known.
	Lag int64 `json:"lag"`
}
