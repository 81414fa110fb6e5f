package cluster

import (
	"encoding/json"
	"slices"
	"time"
)

// Role is what a node does. It stands in its certificate.
type Role string

const (
	// Control nodes hold the replicated state and vote.
	Control Role = "control"
	// Worker nodes run replicas.
	Worker Role = "worker"
	// Gateway nodes take requests of clients.
	Gateway Role = "gateway"
	// Admin is the role of operators' certificates; no node has it.
	Admin Role = "admin"
)

// Roles lists the roles.
func Roles() []Role { return []Role{Control, Worker, Gateway, Admin} }

// Valid says that r is one of Roles.
func (r Role) Valid() bool { return slices.Contains(Roles(), r) }

// Cluster is the one object that names the cluster. It never changes but for CAs.
type Cluster struct {
	// ID is part of every certificate: a certificate of another cluster is refused.
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	Created time.Time `json:"created"`
	// CAs are the certificates that nodes trust, PEM; more than one during a rotation.
	CAs []string `json:"cas"`
	// Gossip are the generations of the gossip's keys that nodes hold, the one that they
	// encrypt by first; nil for the first key alone.
	Gossip []uint64 `json:"gossip,omitempty"`
	NextFields
}

// Node is a process that has joined.
type Node struct {
	// ID is unique for ever: a removed node's ID is not given again.
	ID   string `json:"id"`
	Role Role   `json:"role"`
	// Addr is where its cluster port is reached, Gossip its gossip port, Public
	// its API; host:port, or empty.
	Addr   string `json:"addr"`
	Gossip string `json:"gossip,omitempty"`
	Public string `json:"public,omitempty"`
	// Build names the binary, Protocol the newest version that it speaks, MinProtocol the
	// oldest one; 0 stands for 1 (Speak, Speaks).
	Build       string `json:"build"`
	Protocol    int    `json:"protocol"`
	MinProtocol int    `json:"min_protocol,omitempty"`
	// Incarnation counts the starts of the node.
	Incarnation uint64    `json:"incarnation"`
	Joined      time.Time `json:"joined"`
	GPUs        []GPU     `json:"gpus,omitempty"`
	// Pins are the models that a worker was started with (--model).
	Pins []Pin `json:"pins,omitempty"`
	// Draining keeps new work away. Lost says that the leader has not heard of the
	// node for a while, Since when the last of the two changed.
	Draining bool      `json:"draining,omitempty"`
	Lost     bool      `json:"lost,omitempty"`
	Since    time.Time `json:"since,omitzero"`
}

// Serves says that the node may be given requests.
func (n *Node) Serves() bool { return !n.Draining && !n.Lost }

// GPU is a device of a worker.
type GPU struct {
	Ordinal int    `json:"ordinal"`
	UUID    string `json:"uuid,omitempty"`
	Name    string `json:"name"`
	// Memory is in bytes.
	Memory int64 `json:"memory"`
}

// Pin is one --model of a worker: it serves one replica of that model.
type Pin struct {
	// Model is the served name, Source what the worker was told: a directory, a hub
	// id, or a name of the catalogue.
	Model  string `json:"model"`
	Source string `json:"source"`
	// TP is the number of GPUs that one replica is spread over.
	TP int `json:"tp"`
	// GPUs are ordinals; empty on a CPU.
	GPUs []int `json:"gpus,omitempty"`
}

// Phase is how far a replica is, as its worker reports it.
type Phase string

const (
	// Placed replicas are wanted; their worker has not said anything yet.
	Placed Phase = "placed"
	// Starting replicas load their weights.
	Starting Phase = "starting"
	// Ready replicas serve.
	Ready Phase = "ready"
	// Failed replicas have stopped with Replica.Reason and will be started again.
	Failed Phase = "failed"
	// Stopped replicas have ended because that was wanted.
	Stopped Phase = "stopped"
)

// Phases lists the phases.
func Phases() []Phase { return []Phase{Placed, Starting, Ready, Failed, Stopped} }

// Replica is one sub-service: a model on a node.
type Replica struct {
	// ID is unique in the cluster; frames and metrics name replicas by it.
	ID    string `json:"id"`
	Model string `json:"model"`
	Node  string `json:"node"`
	// Source and TP are as in Pin; GPUs are the ordinals that it runs on.
	Source string `json:"source"`
	TP     int    `json:"tp"`
	GPUs   []int  `json:"gpus,omitempty"`
	Pinned bool   `json:"pinned,omitempty"`
	// Generation is the placement's version: it grows with every placement of this ID.
	Generation uint64 `json:"generation"`
	// Draining replicas end what they have and take nothing new.
	Draining bool `json:"draining,omitempty"`
	// Phase, Reason and Facts are the worker's words about this Generation.
	Phase  Phase  `json:"phase"`
	Reason string `json:"reason,omitempty"`
	Facts  Facts  `json:"facts,omitzero"`
}

// Facts are what a worker learns of a model by loading it.
type Facts struct {
	// Fingerprint is of the vocabulary, Template of the chat template: models of one
	// deployment must agree on the first.
	Fingerprint string `json:"fingerprint,omitempty"`
	Template    string `json:"template,omitempty"`
	// Vocab is the number of ids, MaxContext the longest sequence in tokens.
	Vocab      int     `json:"vocab,omitempty"`
	MaxContext int     `json:"max_context,omitempty"`
	StopIDs    []int32 `json:"stop_ids,omitempty"`
	// Temperature, TopP and TopK are the checkpoint's own sampling parameters.
	Temperature float32 `json:"temperature,omitempty"`
	TopP        float32 `json:"top_p,omitempty"`
	TopK        int32   `json:"top_k,omitempty"`
	// KVTokens is the number of token slots of its pool.
	KVTokens int `json:"kv_tokens,omitempty"`
	// Backend is cpu or cuda.
	Backend string `json:"backend,omitempty"`
	// Policies are those that requests may choose where this model is the entry model: it
	// has the tokens and the router networks for them. Nil from a build that does not tell.
	Policies []string `json:"policies,omitempty"`
	// Routers are the router networks that it has, by the names that deployments use.
	Routers []string `json:"routers,omitempty"`
	// Words are of its vocabulary, if some deployment has a special map for it.
	Words *Words `json:"words,omitempty"`
	// LeftOut are deployments that it serves without, by name and without doubles; at most
	// MaxLeftOut are told of. Replica.Reason says why.
	LeftOut []LeftOut `json:"left_out,omitempty"`
}

// LeftOut is a deployment that a replica serves without.
type LeftOut struct {
	Deployment string `json:"deployment"`
	// Router is the router network that it cannot have, if that is why.
	Router string `json:"router,omitempty"`
}

// Fallback says what becomes of a request whose collaborator has no replica left.
type Fallback string

const (
	// FallbackWait waits for Deployment.FallbackWait, then ends the request with an error.
	FallbackWait Fallback = "wait"
	// FallbackSmallOnly goes on with the entry model alone.
	FallbackSmallOnly Fallback = "small-only"
	// FallbackFail ends the request with an error at once.
	FallbackFail Fallback = "fail"
)

// Fallbacks lists the fallbacks.
func Fallbacks() []Fallback { return []Fallback{FallbackWait, FallbackSmallOnly, FallbackFail} }

// Deployment is a wish: models that write answers together under a policy.
type Deployment struct {
	Name string `json:"name"`
	// Models are served names by index; the first is the entry model.
	Models []string `json:"models"`
	// Replicas are the wanted replicas of each model, by index; nil or 0 takes those
	// that are pinned, or one.
	Replicas []int `json:"replicas,omitempty"`
	// Policy is the policy's name, Settings its parameters (PolicySettings; null for none).
	Policy   string          `json:"policy"`
	Settings json.RawMessage `json:"settings,omitempty"`
	// Thresholds are fixed batching thresholds by model index; nil lets the leader
	// solve them.
	Thresholds []int `json:"thresholds,omitempty"`
	// LongestWait overrides thresholds; 0 means automatic.
	LongestWait time.Duration `json:"longest_wait,omitempty"`
	// MaxInFlight bounds the requests of one gateway, 0 for its own bound.
	MaxInFlight  int           `json:"max_in_flight,omitempty"`
	Fallback     Fallback      `json:"fallback,omitempty"`
	FallbackWait time.Duration `json:"fallback_wait,omitempty"`
	// Default deployments were made by the leader for a known pair of pinned models.
	// An operator's deployment of the same name takes its place.
	Default bool `json:"default,omitempty"`
	// Version grows with every change. A running request keeps the version that it
	// began with.
	Version uint64 `json:"version"`
}

// Table is the solved thresholds B(n) of a deployment.
type Table struct {
	Deployment string `json:"deployment"`
	// B has the thresholds of all models, by index, at n = 1, 2, … live requests.
	B [][]int `json:"b"`
	// Inputs are what it was solved from, as policies/threshold has them; Solved when.
	Inputs json.RawMessage `json:"inputs,omitempty"`
	Solved time.Time       `json:"solved"`
	// Predicted is in tokens a second.
	Predicted float64 `json:"predicted_tokens_per_s,omitempty"`
}

// Key is an API key without its secret.
type Key struct {
	// ID is the public part of the key by which it is looked up.
	ID   string `json:"id"`
	Name string `json:"name,omitempty"`
	// MAC is HMAC-SHA-256 of the key under the cluster's pepper.
	MAC     []byte    `json:"mac"`
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires,omitzero"`
	Revoked bool      `json:"revoked,omitempty"`
	// Models and Policies are what the key may ask for; empty means all.
	Models   []string `json:"models,omitempty"`
	Policies []string `json:"policies,omitempty"`
	// Rates are a minute and over all gateways, 0 for no bound; Concurrency bounds
	// the requests in flight at each gateway.
	RequestsPerMinute int64 `json:"requests_per_minute,omitempty"`
	TokensPerMinute   int64 `json:"tokens_per_minute,omitempty"`
	Concurrency       int   `json:"concurrency,omitempty"`
}

// Token is a join token without its secret.
type Token struct {
	ID   string `json:"id"`
	Role Role   `json:"role"`
	// Hash is SHA-256 of the secret, which has 256 random bits.
	Hash    []byte    `json:"hash"`
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires"`
	// Uses is how many joins are left.
	Uses    int  `json:"uses"`
	Revoked bool `json:"revoked,omitempty"`
	// Comment is the operator's.
	Comment string `json:"comment,omitempty"`
	// IdentityExpires is when the operators' identities end that the token of the role
	// admin admits; zero for never.
	IdentityExpires time.Time `json:"identity_expires,omitzero"`
}

// Removed is what is left of a node that was removed: its certificates are refused.
type Removed struct {
	ID   string    `json:"id"`
	Role Role      `json:"role"`
	At   time.Time `json:"at"`
}
