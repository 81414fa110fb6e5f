package generate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/tokenrouter/tokenrouter/api/sampling"
)

// ErrBadRequest says that a request breaks the protocol between gateway and
// entry; a gateway never sends one.
var ErrBadRequest = errors.New("generate: bad request")

// EncodeRequest returns the JSON body of a request. It returns ErrTooLarge if
// that is over MaxRequestBytes, and ErrBadRequest if an entry would refuse it.
func EncodeRequest(r *Request) ([]byte, error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	if buf.Len() > MaxRequestBytes {
		return nil, fmt.Errorf("%w: request of %d bytes", ErrTooLarge, buf.Len())
	}
	return buf.Bytes(), nil
}

// DecodeRequest reads one request from r, which must hold nothing else. It
// stops reading at MaxRequestBytes. Errors wrap ErrTooLarge, ErrBadRequest or
// the reader's error.
func DecodeRequest(r io.Reader) (*Request, error) {
	body, err := io.ReadAll(io.LimitReader(r, MaxRequestBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read request: %w", err)
	}
	if len(body) > MaxRequestBytes {
		return nil, fmt.Errorf("%w: request over %d bytes", ErrTooLarge, MaxRequestBytes)
	}
	req := new(Request)
	if err := json.Unmarshal(body, req); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadRequest, err)
	}
	if err := req.Check(); err != nil {
		return nil, err
	}
	return req, nil
}

// Check reports the first rule of the protocol that r breaks: exactly one kind
// of prompt, every length within its limit, sampling parameters in range. Ids
// are not compared with a vocabulary here. Errors wrap ErrBadRequest.
func (r *Request) Check() error {
	prompts := 0
	for _, given := range []bool{len(r.Messages) > 0, r.Prompt != "", len(r.PromptIDs) > 0} {
		if given {
			prompts++
		}
	}
	switch {
	case len(r.Deployment) == 0 || len(r.Deployment) > MaxName:
		return badRequest("deployment name of %d bytes", len(r.Deployment))
	case prompts != 1 || r.Chat != (len(r.Messages) > 0):
		return badRequest("exactly one kind of prompt is wanted")
	case len(r.Messages) > MaxMessages:
		return badRequest("%d messages", len(r.Messages))
	case len(r.PromptIDs) > MaxIDs:
		return badRequest("%d prompt ids", len(r.PromptIDs))
	case len(r.Salt) != 0 && len(r.Salt) != SaltBytes:
		return badRequest("salt of %d bytes", len(r.Salt))
	case len(r.Session) > MaxSession:
		return badRequest("session of %d bytes", len(r.Session))
	case r.Sampling.MaxTokens == 0 && !r.Echo:
		return badRequest("nothing to generate")
	case len(r.TemplateArgs) > 0 && !json.Valid(r.TemplateArgs):
		return badRequest("template arguments are not JSON")
	case len(r.Tools) > 0 && (!r.Chat || !json.Valid(r.Tools)):
		return badRequest("tools are not JSON, or of no chat")
	}
	for i := range r.Messages {
		switch m := &r.Messages[i]; {
		case len(m.ToolCalls) > 0 && !json.Valid(m.ToolCalls):
			return badRequest("tool calls of message %d are not JSON", i)
		case m.ContentNull && m.Content != "":
			return badRequest("message %d has null for content, and a text", i)
		}
	}
	for _, id := range r.PromptIDs {
		if id < 0 {
			return badRequest("negative prompt id")
		}
	}
	if err := checkSampling(&r.Sampling); err != nil {
		return err
	}
	if err := r.Routing.Check(); err != nil {
		return fmt.Errorf("%w: %w", ErrBadRequest, err)
	}
	return r.Resume.check()
}

func checkSampling(p *sampling.Params) error {
	if p.MaxTokens > MaxIDs {
		return badRequest("max tokens %d", p.MaxTokens)
	}
	if err := p.Check(0); err != nil {
		return fmt.Errorf("%w: %w", ErrBadRequest, err)
	}
	return nil
}

func (r *Resume) check() error {
	if r == nil {
		return nil
	}
	switch {
	case len(r.PromptIDs) == 0 || len(r.PromptIDs) > MaxIDs:
		return badRequest("resume with %d prompt ids", len(r.PromptIDs))
	case len(r.Tokens) > MaxIDs:
		return badRequest("resume with %d tokens", len(r.Tokens))
	case len(r.State) > MaxState:
		return badRequest("resume with a policy state of %d bytes", len(r.State))
	case r.Owner >= MaxModels:
		return badRequest("resume with owner %d", r.Owner)
	}
	for _, id := range r.PromptIDs {
		if id < 0 {
			return badRequest("negative prompt id")
		}
	}
	for _, t := range r.Tokens {
		if t.ID < 0 || t.Model >= MaxModels {
			return badRequest("resume with token %d of model %d", t.ID, t.Model)
		}
	}
	return nil
}

func badRequest(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrBadRequest}, args...)...)
}
