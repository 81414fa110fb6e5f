package gateway

import (
	"context"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/api/openai"
	"github.com/tokenrouter/tokenrouter/gateway/session"
)

// tokenize serves POST /tokenize. The gateway has no model files: an entry recites the
// prompt, which takes no forward pass.
func (g *Gateway) tokenize(c echo.Context) error {
	body, bad := readBody(c.Response(), c.Request(), g.cfg.MaxBody)
	if bad != nil {
		return bad
	}
	r, bad := openai.ParseTokenize(body)
	if bad != nil {
		return bad
	}
	prompt := generate.Request{Prompt: r.Text}
	if len(r.Messages) > 0 {
		prompt = generate.Request{Chat: true, Messages: turns(r.Messages), Tools: r.Tools, TemplateArgs: r.TemplateArgs}
	}
	var tokens []generate.TokenEvent
	maxContext := 0
	err := g.withModel(c, r.Model, g.findAny, func(d *session.Served) (err error) {
		maxContext = d.MaxContext
		if prompt.Chat || prompt.Prompt != "" {
			tokens, err = g.recite(c, d, prompt)
		}
		return err
	})
	if err != nil {
		return err
	}
	if r.Bare && !prompt.Chat {
		tokens = bare(tokens, r.Text)
	}
	ids := make([]int32, len(tokens))
	var texts []string
	if r.Strings {
		texts = make([]string, len(tokens))
	}
	for i := range tokens {
		ids[i] = tokens[i].ID
		if texts != nil {
			texts[i] = tokens[i].Text
		}
	}
	return c.JSONBlob(http.StatusOK, openai.AppendTokens(nil, ids, texts, maxContext))
}

// detokenize serves POST /detokenize.
func (g *Gateway) detokenize(c echo.Context) error {
	body, bad := readBody(c.Response(), c.Request(), g.cfg.MaxBody)
	if bad != nil {
		return bad
	}
	r, bad := openai.ParseDetokenize(body)
	if bad != nil {
		return bad
	}
	var tokens []generate.TokenEvent
	err := g.withModel(c, r.Model, g.findAny, func(d *session.Served) (err error) {
		if bad := r.Check(openai.Limits{MaxContext: d.MaxContext, Vocab: d.Vocab}); bad != nil {
			return bad
		}
		if len(r.IDs) > 0 {
			tokens, err = g.recite(c, d, generate.Request{PromptIDs: r.IDs})
		}
		return err
	})
	if err != nil {
		return err
	}
	return c.JSONBlob(http.StatusOK, openai.AppendText(nil, textOf(tokens)))
}

// findAny is find, and without a name the first deployment that the holder may ask for.
func (g *Gateway) findAny(ctx context.Context, name string, holder *Holder) (*session.Served, error) {
	if name != "" {
		return g.find(ctx, name, holder)
	}
	d, err := g.seek(ctx, func(t *session.Table) *session.Served {
		for d := range t.All() {
			if holder.mayAsk(d.Name) {
				return d
			}
		}
		return nil
	})
	if d == nil && err == nil {
		err = session.ErrNoCapacity
	}
	return d, err
}

// recite returns the tokens of a prompt. It counts as a request, of no tokens.
func (g *Gateway) recite(c echo.Context, d *session.Served, prompt generate.Request) ([]generate.TokenEvent, error) {
	requests, err := d.Requests(&session.Settings{Echo: true, NoTokens: true, Logprobs: -1}, prompt)
	if err != nil {
		return nil, err
	}
	holder := outcomeOf(c).holder
	leave, err := g.perKey.acquire(holder, 1)
	if err != nil {
		return nil, err
	}
	defer leave()
	settle, err := holder.reserve(c, 0)
	if err != nil {
		return nil, err
	}
	defer settle(0)
	if err := g.admission.acquire(1); err != nil {
		return nil, err
	}
	defer g.admission.release(1)
	ctx, release := g.admission.within(c.Request().Context())
	defer release()
	ctx, cancel := context.WithTimeoutCause(ctx, g.cfg.RequestTimeout, errTimeout)
	defer cancel()
	s := session.New(&g.cfg.Session, d, &requests[0])
	defer s.Close()
	if err := s.Open(ctx); err != nil {
		return nil, err
	}
	tokens := make([]generate.TokenEvent, 0, s.PromptLen())
	for {
		u, err := s.Next(ctx)
		if err != nil {
			return nil, err
		}
		if tokens = append(tokens, u.Prompt...); u.Done {
			return tokens, nil
		}
	}
}

// textOf joins the texts of tokens.
func textOf(tokens []generate.TokenEvent) string {
	var b strings.Builder
	for i := range tokens {
		b.WriteString(tokens[i].Text)
	}
	return b.String()
}

// bare drops a first token that the tokenizer has put before those of the text.
func bare(tokens []generate.TokenEvent, text string) []generate.TokenEvent {
	if len(tokens) > 1 && textOf(tokens) != text && textOf(tokens[1:]) == text {
		return tokens[1:]
	}
	return tokens
}

// version says which build this is.
func (g *Gateway) version(c echo.Context) error {
	return c.JSONBlob(http.StatusOK, openai.AppendVersion(nil, g.cfg.Version))
}
