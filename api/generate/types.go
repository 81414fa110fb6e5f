package generate

import (
	"time"

	"github.com/tokenrouter/tokenrouter/api/routing"
	"github.com/tokenrouter/tokenrouter/api/sampling"
)

// Path is where an entry sub-service serves the call.
const Path = "/v1/internal/generate"

// Message is one turn of a chat.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
	// ContentNull says that the client gave no content, which some templates tell from
	// an empty one; Content is then empty.
	ContentNull bool `json:"content_null,omitempty"`
	// ToolCalls is the JSON array of an assistant's calls, or empty.
	ToolCalls  []byte `json:"tool_calls,omitempty"`
	ToolCallID string `json:"tool_call_id,omitempty"`
	Name       string `json:"name,omitempty"`
}

// Token is one committed token as the gateway keeps it.
type Token struct {
	ID    int32 `json:"id"`
	Model uint8 `json:"model"`
}

// Resume is what the gateway knows of a request that it moves to another entry.
type Resume struct {
	PromptIDs []int32 `json:"prompt_ids"`
	Tokens    []Token `json:"tokens"`
	// Owner is the model that has the turn; State the policy's state, as last reported.
	Owner uint8  `json:"owner"`
	State []byte `json:"state,omitempty"`
	// Version is the deployment's that the first entry has named (Event.Version).
	Version uint64 `json:"version,omitempty"`
}

// Request asks an entry sub-service for one answer. Exactly one of Messages,
// Prompt and PromptIDs is the prompt (Chat says that it is Messages).
type Request struct {
	// ID is unique among live requests. Its lowest PlacementBits bits choose among
	// the replicas of a collaborator: requests that agree in them go to the same
	// one, and so find what it has cached of an earlier turn.
	ID         uint64 `json:"id"`
	Epoch      uint32 `json:"epoch"`
	Deployment string `json:"deployment"`

	Chat     bool      `json:"chat,omitempty"`
	Messages []Message `json:"messages,omitempty"`
	// Tools is the JSON array of the tools that the template shows to the model, or empty.
	Tools []byte `json:"tools,omitempty"`
	// TemplateArgs are extra template variables (chat_template_kwargs), a JSON object.
	TemplateArgs []byte  `json:"template_args,omitempty"`
	Prompt       string  `json:"prompt,omitempty"`
	PromptIDs    []int32 `json:"prompt_ids,omitempty"`

	// Sampling.StopIDs are the client's; the entry adds the checkpoint's unless IgnoreEOS.
	Sampling sampling.Params `json:"sampling"`
	// Routing is what the client wants of the deployment's routing; nil for nothing.
	Routing *routing.Override `json:"routing,omitempty"`
	// IgnoreEOS says that the checkpoint's end tokens do not end the answer.
	IgnoreEOS bool `json:"ignore_eos,omitempty"`
	// Echo asks for the prompt's tokens (EventPrompt), with log-probabilities if
	// Sampling.Logprobs is not negative. With it Sampling.MaxTokens may be 0: the
	// entry then finishes with FinishLength after the prompt.
	Echo bool `json:"echo,omitempty"`
	// Salt keys the prefix cache: 32 bytes, or none for the shared salt. Requests
	// see each other's cached pages only under an equal salt.
	Salt []byte `json:"salt,omitempty"`
	// Session is the client's name of the conversation, at most MaxSession bytes;
	// empty if it gave none. It means something under one deployment and salt only.
	Session string `json:"session,omitempty"`
	// DefaultMaxTokens says that the client gave no limit: the entry uses the rest of the context.
	DefaultMaxTokens bool `json:"default_max_tokens,omitempty"`

	Resume *Resume `json:"resume,omitempty"`
}

// EventKind says which field of an Event counts.
type EventKind uint8

const (
	// EventAdmitted is the first event: the prompt's length and, for a later Resume, its ids.
	EventAdmitted EventKind = 1 + iota
	// EventTokens reports committed tokens.
	EventTokens
	// EventFinish is the last event of a request that ended well.
	EventFinish
	// EventError is the last event of a request that did not.
	EventError
	// EventPrompt brings tokens of the prompt to a request with Echo. All of them
	// come before the first EventTokens and before the end.
	EventPrompt
	// EventAlive says that the request waits (for a place, for pages, for a full
	// batch, for a collaborator) and that the decode loop looks after it. An entry
	// sends one at least every AliveEvery while it has nothing else to send, and
	// only from the loop that would make the progress. Silence for much longer
	// means that the entry is lost.
	EventAlive
)

// AliveEvery is the longest silence of an entry that works.
const AliveEvery = 5 * time.Second

// TokenEvent is one committed token with what the client needs of it.
type TokenEvent struct {
	ID    int32
	Model uint8
	// Text is what the token adds to the answer; empty for special tokens and
	// while a character is incomplete.
	Text string
	// Bytes is the token's own bytes, sent when log-probabilities are wanted.
	Bytes   []byte
	Logprob float32
	Top     []TopLogprob
}

// TopLogprob is one alternative of a position.
type TopLogprob struct {
	ID      int32
	Logprob float32
	Text    string
	Bytes   []byte
}

// Finish says why an answer ended.
type Finish uint8

const (
	FinishStop Finish = 1 + iota
	FinishLength
)

// Event is one message from the entry to the gateway.
type Event struct {
	Kind  EventKind
	Epoch uint32

	// Admitted.
	PromptIDs []int32
	Replica   string
	Models    []string // served names by model index
	// Version names the deployment's policy and settings that the request has begun
	// with and keeps when it moves; 0 for none.
	Version uint64

	// Tokens: Base is the index of Tokens[0] in the answer (0 = first answer
	// token), or in the prompt for EventPrompt. Of a prompt's tokens Model means
	// nothing, and the first has no log-probability (Logprob is 0, Top empty).
	Base   int32
	Tokens []TokenEvent
	// Cached is the number of prompt tokens that came from the prefix cache. It
	// counts in the first EventTokens or EventPrompt of an epoch, or in the
	// EventFinish if there are none.
	Cached int32
	// Turn is set when the owner or the policy state changed with these tokens.
	Turn  bool
	Owner uint8
	State []byte
	// Alone says that the entry model writes these tokens alone because no replica
	// takes the turns of another model (the fallback small-only).
	Alone bool

	// Finish. Tail is text held back until the end (an incomplete character).
	Finish Finish
	Tail   string

	// Error.
	Err *Error
}

// Error is a failure that the gateway maps to a status and a code. Its message
// is safe to show to a client.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Param   string `json:"param,omitempty"`
	// Retryable says that the same request may succeed on another replica.
	Retryable bool `json:"retryable,omitempty"`
}

// Error codes an entry can send.
const (
	CodeInvalid       = "invalid_request"         // 400
	CodeContextLength = "context_length_exceeded" // 400
	CodeTemplate      = "template_error"          // 400
	CodeNotFound      = "model_not_found"         // 404
	CodeQueueFull     = "queue_full"              // 429
	CodeKVExhausted   = "kv_exhausted"            // 429, can never fit
	CodeUnavailable   = "model_unavailable"       // 503
	CodeStaleEpoch    = "stale_epoch"             // 409
	CodeConflict      = "handoff_conflict"        // 500
	CodeInternal      = "internal_error"          // 500
	CodePolicy        = "policy_failed"           // 500, the policy that the deployment's owner has given it
	CodeVersion       = "version_mismatch"        // 406, never shown to a client
)

func (e *Error) Error() string { return e.Code + ": " + e.Message }
