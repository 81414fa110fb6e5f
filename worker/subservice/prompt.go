package subservice

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/tokenizer/chat"
)

// prepare checks a request against this replica and makes its sequence: the
// deployment, the prompt's ids, the limits, and what a resumed request has
// committed. It runs in the client loop and touches nothing of the decode loop.
func (s *Subservice) prepare(req *generate.Request) (*submission, *generate.Error) {
	dep, refusal := s.entered(req)
	if refusal != nil {
		return nil, refusal
	}
	via := dep.via(req.Routing)
	if via == nil {
		return nil, refuseOverride(dep)
	}
	var prompt []int32
	if prompt, refusal = s.promptIDs(req); refusal != nil {
		return nil, refusal
	}
	params := req.Sampling
	if refusal := s.withoutLacking(dep, &params, prompt, promptParam(req)); refusal != nil {
		return nil, refusal
	}
	room := s.info.MaxContext - len(prompt)
	switch {
	case room < 0, room == 0 && (req.DefaultMaxTokens || params.MaxTokens > 0):
		return nil, contextError(fmt.Sprintf("this model's maximum context length is %d tokens, but the prompt has %d", s.info.MaxContext, len(prompt)), promptParam(req))
	case req.DefaultMaxTokens:
		params.MaxTokens = int32(room)
	case int(params.MaxTokens) > room:
		return nil, contextError(fmt.Sprintf("this model's maximum context length is %d tokens, but %d were asked for (%d in the prompt, %d in the answer)",
			s.info.MaxContext, len(prompt)+int(params.MaxTokens), len(prompt), params.MaxTokens), "max_tokens")
	}
	if !req.IgnoreEOS {
		params.StopIDs = slices.Concat(params.StopIDs, s.cfg.StopIDs)
		slices.Sort(params.StopIDs)
		params.StopIDs = slices.Compact(params.StopIDs)
	}
	params.MinTokens = min(params.MinTokens, params.MaxTokens)
	q := &sequence{
		id: req.ID, epoch: req.Epoch, dep: dep, via: via, params: params, ids: prompt, age: s.cfg.Start.Add(s.now()).UnixNano(),
		entry: &entryState{stream: newStream(), decoder: s.words.NewDecoder(true)},
	}
	q.q = policies.Req{ID: q.id, Self: dep.Self, From: policies.Client, Owner: dep.Self, PromptLen: len(prompt), Prompt: prompt, Sampling: &q.params, Override: req.Routing}
	sub := &submission{q: q, owner: dep.Self, reply: make(chan *generate.Error, 1)}
	if req.Resume != nil {
		if refusal := s.restore(sub, req.Resume); refusal != nil {
			return nil, refusal
		}
	}
	copy(q.salt[:], req.Salt)
	q.q.Key = conversationKey(req)
	if req.Echo {
		q.entry.echo = &echo{decoder: s.words.NewDecoder(false)}
	}
	cfg := q.seqConfig()
	if err := cfg.Check(&s.info); err != nil {
		return nil, samplingError(err)
	}
	q.q.Out = q.ids[len(prompt):]
	q.seen[dep.Self] = int32(len(q.ids))
	return sub, nil
}

// withoutLacking keeps tokens out of a request that another of its models lacks.
func (s *Subservice) withoutLacking(dep *deployment, params *sampling.Params, prompt []int32, field string) *generate.Error {
	if len(dep.Lacking) == 0 {
		return nil
	}
	for i, id := range prompt {
		if slices.Contains(dep.Lacking, id) {
			return &generate.Error{Code: generate.CodeInvalid, Param: field,
				Message: fmt.Sprintf("token %d at position %d is not known to every model of %s", id, i, dep.Name)}
		}
	}
	bias := slices.DeleteFunc(slices.Clone(params.LogitBias), func(b sampling.Bias) bool { return slices.Contains(dep.Lacking, b.ID) })
	for _, id := range dep.Lacking {
		bias = append(bias, sampling.Bias{ID: id, Value: -sampling.MaxBias})
	}
	slices.SortFunc(bias, func(a, b sampling.Bias) int { return int(a.ID) - int(b.ID) })
	params.LogitBias = bias
	return nil
}

// entered is the deployment that a request asks for, in the version that it began with.
func (s *Subservice) entered(req *generate.Request) (*deployment, *generate.Error) {
	r := s.roster.Load()
	dep := r.newest(req.Deployment)
	if req.Resume != nil {
		if began, known := r.version(req.Deployment, req.Resume.Version); known {
			dep = began
		}
	}
	switch {
	case s.draining.Load():
		return nil, &generate.Error{Code: generate.CodeUnavailable, Message: "the replica is draining", Retryable: true}
	case dep == nil || dep.Self != policies.Entry:
		// The gateway may have heard of a new deployment a moment earlier.
		return nil, &generate.Error{Code: generate.CodeNotFound, Message: fmt.Sprintf("replica %s is no entry of deployment %q", s.cfg.Replica, req.Deployment), Param: "model", Retryable: true}
	}
	if set := r.settings[req.Deployment]; set != nil && set.Fault != "" {
		return nil, &generate.Error{Code: generate.CodeUnavailable, Message: set.Fault, Param: "model"}
	}
	return dep, nil
}

// conversationKey is the policies' key of a request's conversation, 0 if the
// client named none. Equal names under two deployments or salts have two keys.
func conversationKey(req *generate.Request) uint64 {
	if req.Session == "" {
		return 0
	}
	h := sha256.New()
	for _, part := range []string{req.Deployment, string(req.Salt), req.Session} {
		_, _ = h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(part)))) // never fails
		_, _ = h.Write([]byte(part))
	}
	return max(binary.LittleEndian.Uint64(h.Sum(nil)), 1)
}

// restore rebuilds a moved request from its committed tokens: their ids and
// models, the text state of the decoder, the turn's owner and the policy's state.
func (s *Subservice) restore(sub *submission, r *generate.Resume) *generate.Error {
	q := sub.q
	if len(r.Tokens) > int(q.params.MaxTokens) || int(r.Owner) >= len(q.dep.Models) || len(r.State) > policies.MaxState {
		return &generate.Error{Code: generate.CodeInvalid, Message: "the resumed request does not fit its limits"}
	}
	for _, t := range r.Tokens {
		if t.ID < 0 || int(t.ID) >= s.info.Vocab || int(t.Model) >= len(q.dep.Models) {
			return &generate.Error{Code: generate.CodeInvalid, Message: fmt.Sprintf("token %d of model %d is not of deployment %s", t.ID, t.Model, q.dep.Name)}
		}
		q.commit(t.ID, policies.ModelID(t.Model))
		q.entry.decoder.Next(t.ID)
	}
	q.q.State.Set(r.State)
	sub.owner = policies.ModelID(r.Owner)
	q.entry.reportedTurn, q.entry.reportedState = sub.owner, q.q.State
	return nil
}

// promptIDs renders and tokenises the prompt. The ids of a resumed request are
// taken as they are: one prompt is tokenised once.
func (s *Subservice) promptIDs(req *generate.Request) ([]int32, *generate.Error) {
	var ids []int32
	switch {
	case req.Resume != nil:
		ids = slices.Clone(req.Resume.PromptIDs)
	case req.Chat:
		var refusal *generate.Error
		if ids, refusal = s.chatIDs(req); refusal != nil {
			return nil, refusal
		}
	case req.PromptIDs != nil:
		ids = slices.Clone(req.PromptIDs)
	default:
		var err error
		if ids, err = s.words.Encode(req.Prompt); err != nil {
			return nil, &generate.Error{Code: generate.CodeInvalid, Message: err.Error(), Param: "prompt"}
		}
	}
	if len(ids) == 0 {
		return nil, &generate.Error{Code: generate.CodeInvalid, Message: "the prompt is empty", Param: promptParam(req)}
	}
	for i, id := range ids {
		if id < 0 || int(id) >= s.info.Vocab {
			return nil, &generate.Error{Code: generate.CodeInvalid, Param: promptParam(req),
				Message: fmt.Sprintf("token %d at position %d is not below the vocabulary's size %d", id, i, s.info.Vocab)}
		}
	}
	return ids, nil
}

func (s *Subservice) chatIDs(req *generate.Request) ([]int32, *generate.Error) {
	if s.cfg.Tokenizer == nil {
		return nil, &generate.Error{Code: generate.CodeInvalid, Message: "the model has no tokenizer and so no chat; use /v1/completions with a list of token ids", Param: "messages"}
	}
	if s.cfg.Template == nil {
		return nil, &generate.Error{Code: generate.CodeInvalid, Message: "the model has no chat template; use /v1/completions", Param: "messages"}
	}
	conv := chat.Conversation{Tools: req.Tools, Args: req.TemplateArgs, AddGenerationPrompt: true}
	for _, m := range req.Messages {
		conv.Messages = append(conv.Messages, chat.Message{
			Role: m.Role, Content: m.Content, ContentNull: m.ContentNull, ToolCalls: m.ToolCalls, ToolCallID: m.ToolCallID, Name: m.Name,
		})
	}
	ids, err := chat.EncodeChat(s.cfg.Tokenizer, s.cfg.Template, conv)
	var template *chat.TemplateError
	switch {
	case err == nil:
		return ids, nil
	case errors.As(err, &template):
		return nil, &generate.Error{Code: generate.CodeTemplate, Message: template.Error(), Param: "messages"}
	case errors.Is(err, chat.ErrConversation), errors.Is(err, chat.ErrNoTools):
		return nil, &generate.Error{Code: generate.CodeInvalid, Message: err.Error(), Param: chat.FieldOf(err)}
	}
	s.log.Warn("chat template", "request", req.ID, "err", err)
	return nil, &generate.Error{Code: generate.CodeTemplate, Message: "the model's chat template cannot render this conversation", Param: "messages"}
}

// reserve is the number of positions that a sequence may come to need.
func (s *Subservice) reserve(q *sequence) int {
	return min(q.q.PromptLen+int(q.params.MaxTokens), s.info.MaxContext)
}

// samplingError is a sampling parameter that this model cannot take.
func samplingError(err error) *generate.Error {
	e := &generate.Error{Code: generate.CodeInvalid, Message: err.Error()}
	var field *sampling.FieldError
	if errors.As(err, &field) {
		e.Param = field.Field
	}
	return e
}

func contextError(message, param string) *generate.Error {
	return &generate.Error{Code: generate.CodeContextLength, Message: message, Param: param}
}

func promptParam(req *generate.Request) string {
	if req.Chat {
		return "messages"
	}
	return "prompt"
}
