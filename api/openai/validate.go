package openai

import (
	"encoding/json"
	"fmt"
	"math"

	"github.com/tokenrouter/tokenrouter/api/routing"
)

// Options are the parameters that both endpoints share.
type Options struct {
	Model string
	// MaxTokens bounds the answer; 0 means that the client gave no limit, or with
	// NoTokens that it wants the echo of the prompt alone.
	MaxTokens int64
	NoTokens  bool
	// MinTokens is the least length of the answer.
	MinTokens int32
	// N is the number of answers to each prompt, 1 to MaxN.
	N int
	// Temperature, TopP and TopK are nil if the client left them out. TopK 0 keeps all.
	Temperature, TopP *float64
	TopK              *int32
	Seed              *uint64
	// The rest of sampling; 0 is neutral.
	MinP, RepetitionPenalty, FrequencyPenalty, PresencePenalty float64
	// LogitBias has the bias by token id.
	LogitBias map[int32]float32
	// Stop are strings and StopIDs tokens that end the answer.
	Stop      []string
	StopIDs   []int32
	IgnoreEOS bool
	Stream    bool
	// CacheKey is the client's name of the conversation (prompt_cache_key).
	CacheKey string
	// IncludeUsage asks for a usage chunk at the end of a stream,
	// ContinuousUsage for usage in every chunk.
	IncludeUsage, ContinuousUsage bool
	// Tools are the names of the functions that the model may call, OneCall says that
	// it may make one call only.
	Tools   []string
	OneCall bool
	// Logprobs is the number of alternatives to report with each token; -1
	// means that no log-probabilities are wanted.
	Logprobs int32
	// Routing is what the client wants of the deployment's routing; nil for nothing.
	Routing *routing.Override
	// Ignored lists unknown fields.
	Ignored []string

	// limitName is the parameter that set MaxTokens.
	limitName string
}

// Limits are a deployment's bounds on a request.
type Limits struct {
	MaxContext int // tokens of prompt and answer
	Vocab      int // number of ids
}

// Check reports a limit that exceeds the deployment's context.
func (o *Options) Check(l Limits) *Error {
	if o.MaxTokens > int64(l.MaxContext) {
		return badRequest(codeContextLength, o.limitName, "this model's maximum context length is %d tokens, but '%s' is %d", l.MaxContext, o.limitName, o.MaxTokens)
	}
	return o.checkIDs(l)
}

// Check reports a limit or a prompt id that the deployment does not allow.
func (r *CompletionRequest) Check(l Limits) *Error {
	if err := r.Options.Check(l); err != nil {
		return err
	}
	for i, p := range r.Prompts {
		where := "prompt"
		if r.nested {
			where = fmt.Sprintf("prompt[%d]", i)
		}
		if err := l.checkIDs("prompt", where, p.IDs); err != nil {
			return err
		}
	}
	return nil
}

// checkIDs reports an id that the deployment does not have, or more than its context
// holds. where is their place in the parameter param.
func (l Limits) checkIDs(param, where string, ids []int32) *Error {
	if len(ids) > l.MaxContext {
		return badRequest(codeContextLength, param,
			"this model's maximum context length is %d tokens, but '%s' has %d", l.MaxContext, where, len(ids))
	}
	for i, id := range ids {
		if int(id) >= l.Vocab {
			return invalid(param, "'%s[%d]' is %d, but ids of this model are below %d", where, i, id, l.Vocab)
		}
	}
	return nil
}

// open checks a body and opens its object.
func open(body []byte) (*object, *Error) {
	if err := checkJSON(body); err != nil {
		return nil, err
	}
	o := newObject("", body)
	if o == nil {
		return nil, badRequest(CodeInvalidJSON, "", "the body must be a JSON object")
	}
	return o, nil
}

// options takes the shared parameters, and refuses the known ones that would
// have an effect but are not supported. least is the smallest limit allowed.
func (o *object) options(least int64) Options {
	var r Options
	var ok bool
	if r.Model, ok = o.str("model"); !ok || r.Model == "" {
		o.fail(missing("model"))
	}
	o.limits(&r, least)
	o.sampling(&r)
	o.minTokens(&r)
	r.Stream, _ = o.bool("stream")
	o.streamOptions(&r)
	r.CacheKey, _ = o.str("prompt_cache_key")
	r.Routing = o.routing()
	parallel, given := o.bool("parallel_tool_calls")
	r.OneCall = given && !parallel
	o.skipNeutral()
	o.skipSilently()
	return r
}

// limits takes max_tokens and its newer name.
func (o *object) limits(r *Options, least int64) {
	old, hasOld := o.integer("max_tokens", least, math.MaxInt64)
	limit, ok := o.integer("max_completion_tokens", least, math.MaxInt64)
	switch {
	case ok && hasOld && old != limit:
		o.fail(invalid("max_tokens", "'max_tokens' and 'max_completion_tokens' differ; give one"))
	case ok:
		r.MaxTokens, r.limitName = limit, "max_completion_tokens"
	case hasOld:
		r.MaxTokens, r.limitName = old, "max_tokens"
	}
	r.NoTokens = (ok || hasOld) && r.MaxTokens == 0
}

func (o *object) streamOptions(r *Options) {
	raw, ok := o.take("stream_options")
	if !ok {
		return
	}
	s := newObject("stream_options.", raw)
	if s == nil {
		o.fail(wrongType("stream_options", "an object"))
		return
	}
	if !r.Stream {
		o.fail(invalid("stream_options", "'stream_options' is only allowed when 'stream' is true"))
		return
	}
	r.IncludeUsage, _ = s.bool("include_usage")
	r.ContinuousUsage, _ = s.bool("continuous_usage_stats")
	if v, ok := s.bool("include_obfuscation"); ok && v {
		s.fail(unsupported("stream_options.include_obfuscation"))
	}
	if s.err != nil {
		o.fail(s.err)
	}
}

// skipSilently takes parameters that change nothing in the answer here. Their
// types are checked all the same.
func (o *object) skipSilently() {
	for _, name := range []string{"user", "service_tier", "safety_identifier", "prompt_cache_retention", "request_id"} {
		o.str(name)
	}
	o.bool("store")
	if raw, ok := o.take("metadata"); ok && kind(raw) != '{' {
		o.fail(wrongType("metadata", "an object"))
	}
}

// Message is one turn of a chat.
type Message struct {
	Role    string
	Content string
	// ContentNull says that an assistant's turn with tool calls has no content.
	ContentNull bool
	// ToolCalls is the raw JSON array of an assistant's calls, or nil.
	ToolCalls  json.RawMessage
	ToolCallID string
	Name       string
}

// ChatRequest is the body of POST /v1/chat/completions.
type ChatRequest struct {
	Options
	Messages []Message
	// ToolList is the raw JSON array of the functions that the model may call, or nil.
	ToolList json.RawMessage
	// TemplateArgs is the raw JSON object chat_template_kwargs, or nil.
	TemplateArgs json.RawMessage
}

// ParseChat parses and checks a body.
func ParseChat(body []byte) (*ChatRequest, *Error) {
	o, err := open(body)
	if err != nil {
		return nil, err
	}
	r := &ChatRequest{Options: o.options(1)}
	if v, ok := o.bool("echo"); ok && v {
		o.fail(unsupported("echo"))
	}
	r.Logprobs = o.chatLogprobs()
	r.Messages = o.messages()
	r.ToolList, r.Options.Tools = o.tools()
	r.TemplateArgs = o.templateArgs()
	r.Ignored = append(r.Ignored, o.unknown()...)
	if o.err != nil {
		return nil, o.err
	}
	return r, nil
}

func (o *object) chatLogprobs() int32 {
	on, _ := o.bool("logprobs")
	top, given := o.integer("top_logprobs", 0, MaxTopLogprobs)
	if given && top > 0 && !on {
		o.fail(invalid("top_logprobs", "'top_logprobs' needs 'logprobs' to be true"))
	}
	if !on {
		return -1
	}
	return int32(top)
}

func (o *object) templateArgs() json.RawMessage {
	raw, ok := o.take("chat_template_kwargs")
	if !ok {
		return nil
	}
	var v any
	switch {
	case kind(raw) != '{':
		o.fail(wrongType("chat_template_kwargs", "an object"))
	case json.Unmarshal(raw, &v) != nil:
		o.fail(invalid("chat_template_kwargs", "'chat_template_kwargs' holds a number out of range"))
	case len(v.(map[string]any)) == 0:
		return nil
	}
	return raw
}

// Prompt is one prompt of a completions request: IDs if it is not nil, else Text.
type Prompt struct {
	Text string
	IDs  []int32
}

// CompletionRequest is the body of POST /v1/completions.
type CompletionRequest struct {
	Options
	Prompts []Prompt
	// Echo says that the prompt comes before the answer.
	Echo bool
	// nested says that ids came as an array of arrays.
	nested bool
}

// ParseCompletion parses and checks a body.
func ParseCompletion(body []byte) (*CompletionRequest, *Error) {
	o, err := open(body)
	if err != nil {
		return nil, err
	}
	r := &CompletionRequest{Options: o.options(0)}
	o.emptyList("tools")
	o.toolChoice("tool_choice")
	r.Echo, _ = o.bool("echo")
	if r.NoTokens && !r.Echo {
		o.fail(invalid(r.limitName, "'%s' may be 0 only with 'echo'", r.limitName))
	}
	r.Logprobs = -1
	if v, ok := o.integer("logprobs", 0, MaxTopLogprobs); ok {
		r.Logprobs = int32(v)
	}
	o.prompts(r)
	r.Ignored = o.unknown()
	if o.err != nil {
		return nil, o.err
	}
	return r, nil
}

// prompts takes the prompt in any of its four forms.
func (o *object) prompts(r *CompletionRequest) {
	raw, ok := o.take("prompt")
	if !ok {
		o.fail(missing("prompt"))
		return
	}
	switch kind(raw) {
	case '"':
		o.addText(r, raw, "prompt")
	case '[':
		o.promptList(r, raw)
	default:
		o.fail(wrongType("prompt", "a string, an array of strings, an array of ids or an array of arrays of ids"))
	}
	if len(r.Prompts) == 0 {
		o.fail(invalid("prompt", "'prompt' is empty"))
	}
}

// promptList takes an array, whose first element says what it is an array of.
func (o *object) promptList(r *CompletionRequest, raw json.RawMessage) {
	var first byte
	elements(raw, func(_ int, e []byte) bool { first = kind(e); return false })
	if first == '0' {
		if ids := o.ids(raw, "prompt", "prompt"); ids != nil {
			r.Prompts = append(r.Prompts, Prompt{IDs: ids})
		}
		return
	}
	r.nested = true
	elements(raw, func(i int, e []byte) bool {
		where := fmt.Sprintf("prompt[%d]", i)
		switch k := kind(e); {
		case i >= MaxPrompts:
			o.fail(invalid("prompt", "'prompt' holds more than %d prompts", MaxPrompts))
		case k != first || k != '"' && k != '[':
			o.fail(invalid("prompt", "'%s' must be a string or an array of ids, like its neighbours", where))
		case k == '"':
			o.addText(r, e, where)
		default:
			if ids := o.ids(e, "prompt", where); ids != nil {
				r.Prompts = append(r.Prompts, Prompt{IDs: ids})
			}
		}
		return o.err == nil
	})
}

func (o *object) addText(r *CompletionRequest, raw []byte, where string) {
	s, _ := text(raw)
	if s == "" {
		o.fail(invalid("prompt", "'%s' is empty", where))
		return
	}
	r.Prompts = append(r.Prompts, Prompt{Text: s})
}

// ids parses an array of token ids, and names the position of a bad one.
func (o *object) ids(raw []byte, param, where string) []int32 {
	var out []int32
	elements(raw, func(i int, e []byte) bool {
		v, err := integer(e)
		if kind(e) != '0' || err != nil || v < 0 || v > math.MaxInt32 {
			o.fail(invalid(param, "'%s[%d]' is not a token id", where, i))
			return false
		}
		out = append(out, int32(v))
		return true
	})
	if len(out) == 0 {
		o.fail(invalid(param, "'%s' is empty", where))
	}
	return out
}
