package engine

import (
	"errors"
	"fmt"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/api/routing"
	"github.com/tokenrouter/tokenrouter/gateway/session"
)

// Message is one turn of a chat. Role is system, user, assistant or tool.
type Message struct {
	Role, Content string
	// ToolCalls is the JSON array of an assistant's calls, or nil.
	ToolCalls  []byte
	ToolCallID string
	Name       string
}

// Request asks for one answer, or for N to the same prompt. Exactly one of
// Messages, Prompt and PromptIDs is set. Nil and zero values mean the default.
type Request struct {
	// Model is the name of a deployment.
	Model string

	Messages []Message
	// TemplateArgs are extra template variables, a JSON object.
	TemplateArgs []byte
	Prompt       string
	PromptIDs    []int32

	// Routing is what the request wants of the deployment's routing, which must allow
	// that; nil for nothing.
	Routing *routing.Override

	// Session names the conversation, so that its requests meet at the replicas
	// that have its prefix, and policies that decide for all of it do so once.
	// Empty: the first turns name it for the former.
	Session string

	// MaxTokens bounds the answer; 0 means the rest of the context.
	MaxTokens int
	// MinTokens is the least length: until then neither end tokens nor stops count.
	MinTokens int
	// N is the number of answers, at most session.MaxChoices; 0 means 1. Their
	// tokens come interleaved. The first answer is that of N = 1.
	N int

	// Temperature 0 takes the most probable token. Nil Temperature, TopP and TopK
	// mean the checkpoint's own.
	Temperature, TopP *float64
	TopK              *int32
	MinP              float64
	// Penalties; 0 is off.
	RepetitionPenalty, FrequencyPenalty, PresencePenalty float64
	// LogitBias is added to the logits, by id.
	LogitBias map[int32]float32
	// Seed makes an answer repeatable. Nil draws one.
	Seed *uint64

	// Stop are strings that end the answer and are not part of it, StopIDs tokens
	// that end it. IgnoreEOS says that the checkpoint's own do not.
	Stop      []string
	StopIDs   []int32
	IgnoreEOS bool

	// Logprobs asks for the log-probability of every token, and TopLogprobs for
	// that many alternatives.
	Logprobs    bool
	TopLogprobs int
	// Echo yields the prompt's tokens first. With PromptOnly nothing follows them.
	Echo, PromptOnly bool
}

var (
	// ErrModel says that there is no deployment of the request's name.
	ErrModel = errors.New("engine: no such model")
	// ErrRequest says that a request is not well formed. Parameters out of range
	// are refused with session.ErrSettings, or by the entry with a *generate.Error.
	ErrRequest = errors.New("engine: bad request")
)

// sessions returns what computes the answers of a request.
func (e *Engine) sessions(r *Request) (*session.Served, []*session.Session, error) {
	d := e.table.Find(r.Model)
	if d == nil {
		return nil, nil, fmt.Errorf("%w: %q", ErrModel, r.Model)
	}
	if r.MaxTokens < 0 || r.MaxTokens > d.MaxContext || r.MinTokens < 0 || r.MinTokens > d.MaxContext {
		return nil, nil, fmt.Errorf("%w: %d to %d tokens do not fit a context of %d", ErrRequest, r.MinTokens, r.MaxTokens, d.MaxContext)
	}
	set := session.Settings{
		Session:     r.Session,
		Routing:     r.Routing,
		Temperature: r.Temperature, TopP: r.TopP, TopK: r.TopK, MinP: r.MinP,
		RepetitionPenalty: r.RepetitionPenalty, FrequencyPenalty: r.FrequencyPenalty, PresencePenalty: r.PresencePenalty,
		LogitBias: r.LogitBias, Seed: r.Seed, MaxTokens: int32(r.MaxTokens), NoTokens: r.PromptOnly,
		MinTokens: int32(r.MinTokens), Logprobs: -1, Stops: r.Stop, StopIDs: r.StopIDs, IgnoreEOS: r.IgnoreEOS,
		Echo: r.Echo, N: r.N,
	}
	if r.Logprobs {
		set.Logprobs = int32(min(max(r.TopLogprobs, 0), generate.MaxTop))
	}
	prompt := generate.Request{
		Chat: len(r.Messages) > 0, TemplateArgs: r.TemplateArgs, Prompt: r.Prompt, PromptIDs: r.PromptIDs,
	}
	for _, m := range r.Messages {
		prompt.Messages = append(prompt.Messages, generate.Message{
			Role: m.Role, Content: m.Content, ToolCalls: m.ToolCalls, ToolCallID: m.ToolCallID, Name: m.Name,
		})
	}
	requests, err := d.Requests(&set, prompt)
	if err != nil {
		return nil, nil, err
	}
	sessions := make([]*session.Session, len(requests))
	for i := range requests {
		if err := requests[i].Check(); err != nil {
			return nil, nil, fmt.Errorf("%w: %w", ErrRequest, err)
		}
		sessions[i] = session.New(&e.session, d, &requests[i])
	}
	return d, sessions, nil
}
