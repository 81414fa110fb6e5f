package handoff

import (
	"github.com/tokenrouter/tokenrouter/api/protocol"
	"github.com/tokenrouter/tokenrouter/api/routing"
	"github.com/tokenrouter/tokenrouter/api/sampling"
)

// Version is the newest version of the protocol that this build speaks. A link has
// the newest one that both sides speak; those that have none in common refuse each
// other.
const Version = protocol.HandoffNewest

// Kind says what a frame means.
type Kind uint8

const (
	// KindHello opens a stream in both directions (who speaks, what it serves, where to resume).
	KindHello Kind = 1 + iota
	// KindHandoff passes the turn: new tokens, policy state, on a first visit sampling.
	KindHandoff
	// KindProgress reports tokens committed by a collaborator that keeps the turn.
	KindProgress
	// KindNack says that a hand-off could not be applied: the receiver knows only Known ids.
	KindNack
	// KindRelease ends a request at the receiver: finished, aborted or superseded.
	KindRelease
	// KindAck acknowledges frames up to a sequence number and grants credits.
	KindAck
	// KindGroup tells a replica how many live requests may come to it, and how long
	// the sender's steps take. It speaks of no request.
	KindGroup
)

// Size limits, checked before anything is allocated.
const (
	MaxTokens    = 1 << 17 // ids in one frame
	MaxState     = 64      // policy state, bytes
	MaxBlob      = 4096    // bytes
	MaxName      = 128     // deployment and replica names, bytes
	MaxModels    = 16      // models of a deployment
	MaxFrameSize = 4 << 20 // one encoded frame, bytes
)

// Done says how a request ended, in a Handoff or Release.
type Done uint8

const (
	NotDone Done = iota
	DoneStop
	DoneLength
	DoneAbort
	DoneError
)

// Token is one committed id with the model that wrote it. Log-probabilities
// ride along only when the request asked for them (Logprobs != nil).
type Token struct {
	ID    int32
	Model uint8
}

// TopEntry is an alternative reported with a token.
type TopEntry struct {
	ID      int32
	Logprob float32
}

// Logprob belongs to the token at the same index of Frame.Tokens.
type Logprob struct {
	Logprob float32
	Top     []TopEntry
}

// First is sent with a model's first hand-off of a request (and again whenever
// the request is rebuilt there, Base = 0).
type First struct {
	Deployment string
	// PromptLen is the number of prompt ids; Tokens[PromptLen:] is the answer so far.
	// Invariant: a frame with First has Base 0 and PromptLen <= len(Tokens).
	PromptLen int32
	// Entry is the replica that owns the request: it gets the progress, and the
	// turn back, also from models that another collaborator handed it to.
	Entry string
	// Age is when the entry took the request (Unix time, ns). All replicas order
	// requests by it when pages run out.
	Age int64
	// Salt keys the prefix cache: pages are shared only under an equal salt.
	Salt     [32]byte
	Sampling sampling.Params
	// Override is what the request says about its routing; nil for nothing.
	Override *routing.Override
	// Version names the deployment's policy and settings that the request began
	// with; 0 for none. Equal versions of one deployment route alike. Who does not know
	// it takes the newest.
	Version uint64
}

// Frame is one message of the peer protocol. Which fields count depends on
// Kind; all others are zero.
type Frame struct {
	Kind Kind
	// Seq numbers the frames (all but Hello and Ack) of one direction of a
	// link, from 1. Assigned by the link.
	Seq uint64

	// Request, Epoch and Hop say which turn a frame belongs to. Epoch is request
	// ownership, minted by the gateway. Hop counts hand-offs in an epoch: whoever has
	// the turn counts one up, and the entry far beyond all that can be out when it
	// gives a lost turn anew (package subservice). A retransmission keeps it.
	Request uint64
	Epoch   uint32
	Hop     uint32
	// From and To are models' indexes in the deployment. In a Progress, To is the
	// model that has the turn after the tokens: From, or a third one that it went
	// on to (Hop is then that hand-off's).
	From, To uint8
	// Base is the position of Tokens[0], counted from the start of the prompt.
	Base     int32
	Tokens   []Token
	Logprobs []Logprob // empty, or as long as Tokens
	// Seen is the number of ids known to each model, by index, so that A→B→C needs no full re-send.
	Seen  []int32
	First *First
	State []byte // policy state, at most MaxState
	Blob  []byte // at most MaxBlob
	Done  Done

	// Known is the number of ids the sender of a Nack has.
	Known int32
	// Code is a stable error code of a Release with DoneError, at most MaxName bytes.
	Code string

	// Live is the number of requests that the sender of a Group owns and that the
	// receiver serves, or will if they are handed on. StepMicros is the usual time
	// of the sender's steps in microseconds, 0 if not known yet.
	Live       int32
	StepMicros uint32

	// Hello. ProtocolVersion is the newest version that the sender speaks,
	// OldestVersion the oldest one; 0 if it is the same (Announce, Versions).
	ProtocolVersion uint16
	OldestVersion   uint16
	Replica         string // sender's replica name
	Model           string // sender's served model name
	Session         uint64 // sender's random number for this link, never 0; a new one voids resume
	PeerSession     uint64 // the receiver's Session that the sender knows; 0 on a new link
	// Ack (also in Hello, to resume): all frames up to and including this
	// sequence number were applied. Credits is how many more frames may be in flight.
	Ack     uint64
	Credits uint32
}
