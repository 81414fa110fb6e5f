package policies

import (
	"github.com/tokenrouter/tokenrouter/api/routing"
	"github.com/tokenrouter/tokenrouter/api/sampling"
)

// ModelID is a model's index in its deployment. 0 is the entry model.
type ModelID uint8

const (
	// Entry is the model that admits requests and owns them.
	Entry ModelID = 0
	// Client is where an admitted request comes from.
	Client ModelID = 255
)

// MaxModels bounds the models of one deployment.
const MaxModels = 16

// MaxState bounds PolicyState and MaxBlob a hand-off's blob, in bytes; MaxInject bounds
// the ids that a decision puts into the text.
const (
	MaxState  = 64
	MaxBlob   = 4096
	MaxInject = 256
)

// Feature is a set of per-row inputs that a policy needs from the forward pass.
type Feature uint32

const (
	// FeatureEntropy is the entropy of softmax(raw logits) over the real vocabulary, nats.
	FeatureEntropy Feature = 1 << iota
	// FeatureTopK is the Spec.TopK largest raw logits, descending (Result.Top).
	FeatureTopK
	// FeatureHidden is the output head's input at the row's last position, float32.
	FeatureHidden
	// FeatureScore is the output of the router network that the model runs (Spec.Net).
	FeatureScore
)

// Spec is a policy's static declaration for one model, read once, so that the
// engine can compute what is wanted inside the step.
type Spec struct {
	Needs Feature
	// TopK is the length wanted for FeatureTopK.
	TopK int
	// Net names the router network that scores rows on the device; empty for none.
	Net string
	// Mixes says that Receive may set Req.Mix, which not every executor can follow.
	Mixes bool
	// Stateful says that Req.State is used and must ride on every hand-off.
	Stateful bool
}

// Kind says what sort of forward pass a row was.
type Kind uint8

const (
	// Prefill is the first pass over a prompt (or the rest of it).
	Prefill Kind = iota
	// Extend fed several new tokens on kept keys and values.
	Extend
	// Decode fed one.
	Decode
)

// State is what a policy remembers about a request: at most MaxState bytes,
// copied with every hand-off and reported to the gateway with commits.
type State struct {
	Len   uint8
	Bytes [MaxState]byte
}

// Get returns the used part. The slice aliases s.
func (s *State) Get() []byte { return s.Bytes[:s.Len] }

// Set copies b, which must not be longer than MaxState.
func (s *State) Set(b []byte) { s.Len = uint8(copy(s.Bytes[:], b)) }

// Req is a request as a policy sees it: read-only except State.
type Req struct {
	ID uint64
	// Self is the model this instance serves. From handed the request here
	// (Client on admission). Owner is the model the request entered by.
	Self, From, Owner ModelID
	PromptLen         int
	// Prompt are the ids of the prompt; nil where nobody has set them.
	Prompt []int32
	// Out are the committed ids of the answer; Models[i] wrote Out[i].
	Out      []int32
	Models   []ModelID
	Sampling *sampling.Params
	// Override is what the request says about its own routing; nil if nothing.
	Override *routing.Override
	// Mix, set by Receive, is mixed into the distribution that this model draws its
	// next token from. The runtime clears it once a token is drawn.
	Mix *Mixture
	// Key names the conversation for policies that decide once for all its
	// requests; 0 if the client gave none. Only the entry model has it.
	Key   uint64
	State State

	// What policies have read of the ids and the models, which only grow.
	writers writers
	marks   marks
}

// Mixture is a distribution of another model to draw from besides this one's:
// weight·p + (1-weight)·p', with p the model's own softmax at temperature 1 and p'
// the probabilities of Entries, 0 for all other ids.
type Mixture struct {
	Weight  float32
	Entries []TopEntry
}

// TopEntry is one of the likeliest ids of a row: its raw logit, and its
// log-probability at temperature 1.
type TopEntry struct {
	ID             int32
	Logit, Logprob float32
}

// Batch is the requests of one forward pass, one for each row that was sampled.
type Batch struct {
	Reqs []*Req
}

// Result has the forward pass's outputs, aligned with Batch.Reqs and valid only
// during Route. A slice that Spec did not ask for is nil.
type Result struct {
	// Token is the id just sampled, not yet committed.
	Token []int32
	// Entropy in nats; LogV is ln of the real vocabulary size.
	Entropy []float32
	LogV    float32
	Score   []float32
	// Margin is the largest raw logit minus the second largest. It is always there.
	Margin []float32
	Top    [][]TopEntry
	Hidden [][]float32
	Kind   []Kind
}

// Decision is Route's answer for one row. To equal to Self means stay. Keep
// commits the sampled token; a dropped token leaves no trace, so To must then
// differ from Self. Inject are ids to commit after the kept token, at most MaxInject.
// Blob is for the policy's own Send, at most MaxBlob bytes.
type Decision struct {
	To     ModelID
	Keep   bool
	Inject []int32
	Blob   []byte
}

// Done says how a request ended.
type Done uint8

const (
	NotDone Done = iota
	DoneStop
	DoneLength
	DoneAbort
	DoneError
)

// Handoff is the part of a hand-off that policies may look at or add to.
type Handoff struct {
	From, To ModelID
	// Base is the position of Tokens[0], counted from the start of the prompt.
	Base   int
	Tokens []int32
	State  State
	Blob   []byte
}

// Verdict is Receive's answer.
type Verdict uint8

const (
	// Run queues the request for a forward pass here.
	Run Verdict = iota
	// Bounce passes it on to the returned model without a forward pass.
	Bounce
	// Finish ends the request.
	Finish
)

// Policy routes the requests of one model of one deployment. A decision that is
// impossible, a hand-off with more than it may carry, and a panic end the request that
// they are about with an error; the other requests go on. After a panic Route is asked
// again about each row alone.
type Policy interface {
	Spec() Spec
	// Route fills out[i] for every row of b. It must not block.
	Route(b *Batch, r *Result, out []Decision)
	// Send may set h.State and h.Blob; the runtime has filled the rest.
	Send(q *Req, d Decision, h *Handoff)
	// Receive sees a request with h.Tokens already appended. On admission
	// h.From is Client.
	Receive(q *Req, h *Handoff) (Verdict, ModelID)
}
