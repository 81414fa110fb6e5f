package gateway

import (
	"context"
	"errors"
	"sync"

	"github.com/labstack/echo/v4"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/api/openai"
	"github.com/tokenrouter/tokenrouter/gateway/session"
)

// chat serves POST /v1/chat/completions.
func (g *Gateway) chat(c echo.Context) error {
	body, bad := readBody(c.Response(), c.Request(), g.cfg.MaxBody)
	if bad != nil {
		return bad
	}
	r, bad := openai.ParseChat(body)
	if bad != nil {
		return bad
	}
	req := generate.Request{Chat: true, Messages: turns(r.Messages), TemplateArgs: r.TemplateArgs, Tools: r.ToolList}
	return g.withModel(c, r.Model, g.find, func(d *session.Served) error {
		if bad := r.Check(openai.Limits{MaxContext: d.MaxContext, Vocab: d.Vocab}); bad != nil {
			return bad
		}
		return g.serve(c, d, openai.Chat, &r.Options, settings(&r.Options), []generate.Request{req})
	})
}

// turns are a chat's messages as entries take them.
func turns(messages []openai.Message) []generate.Message {
	out := make([]generate.Message, len(messages))
	for i, m := range messages {
		// Newer clients write developer for what templates know as system.
		if m.Role == "developer" {
			m.Role = "system"
		}
		out[i] = generate.Message{
			Role: m.Role, Content: m.Content, ContentNull: m.ContentNull, ToolCalls: m.ToolCalls, ToolCallID: m.ToolCallID, Name: m.Name,
		}
	}
	return out
}

// completions serves POST /v1/completions. Every prompt is a request of its own.
func (g *Gateway) completions(c echo.Context) error {
	body, bad := readBody(c.Response(), c.Request(), g.cfg.MaxBody)
	if bad != nil {
		return bad
	}
	r, bad := openai.ParseCompletion(body)
	if bad != nil {
		return bad
	}
	prompts := make([]generate.Request, len(r.Prompts))
	for i, p := range r.Prompts {
		prompts[i].Prompt, prompts[i].PromptIDs = p.Text, p.IDs
	}
	set := settings(&r.Options)
	set.Echo = r.Echo
	return g.withModel(c, r.Model, g.find, func(d *session.Served) error {
		if bad := r.Check(openai.Limits{MaxContext: d.MaxContext, Vocab: d.Vocab}); bad != nil {
			return bad
		}
		return g.serve(c, d, openai.Text, &r.Options, set, prompts)
	})
}

// maxChanges bounds how often one request begins anew.
const maxChanges = 8

// withModel serves a request by the deployment that find has of a name, and begins anew
// if that changes its models before any entry has taken the request: gateways and workers
// hear of a change one after the other, and nobody would serve what the first found.
func (g *Gateway) withModel(c echo.Context, name string, find finder, serve func(*session.Served) error) error {
	for range maxChanges {
		d, err := find(c.Request().Context(), name, outcomeOf(c).holder)
		if err != nil {
			return err
		}
		if err = serve(d); !errors.Is(err, session.ErrChanged) {
			return err
		}
	}
	return session.ErrChanged
}

// finder looks a deployment up by its name, for a holder that may ask for it.
type finder func(ctx context.Context, name string, holder *Holder) (*session.Served, error)

// find is a finder. Before it says that there is no such deployment it makes sure.
func (g *Gateway) find(ctx context.Context, name string, holder *Holder) (*session.Served, error) {
	if len(name) > generate.MaxName {
		return nil, modelNotFound(g.table.Load(), name, holder)
	}
	d, err := g.seek(ctx, func(t *session.Table) *session.Served { return t.Find(name) })
	switch {
	case err != nil:
		return nil, err
	case d == nil:
		return nil, modelNotFound(g.table.Load(), name, holder)
	case !holder.mayAsk(name):
		return nil, notAllowed("model", "this API key may not use the model %q", name)
	}
	return d, nil
}

// serve runs a call and notes how it ended for log and metrics. It has sent nothing if
// its error is session.ErrChanged.
func (g *Gateway) serve(c echo.Context, d *session.Served, kind openai.Kind, o *openai.Options, set session.Settings, prompts []generate.Request) error {
	n := len(prompts) * o.N
	if n > g.cfg.MaxInFlight {
		return tooManyAtOnce(len(prompts) > 1)
	}
	ended := outcomeOf(c)
	holder := ended.holder
	if err := holder.check(d, o); err != nil {
		return err
	}
	if holder != nil {
		set.Salt = holder.Salt[:]
	}
	call, err := newCall(g, d, kind, *o, set, prompts)
	if err != nil {
		return err
	}
	leave, err := g.perKey.acquire(holder, n)
	if err != nil {
		return err
	}
	defer leave()
	settle, err := holder.reserve(c, call.likelyTokens(prompts))
	if err != nil {
		return err
	}
	settled := sync.OnceFunc(func() { settle(call.usedTokens()) })
	defer settled()
	call.letGo = func() {
		settled()
		leave()
	}
	if err := g.admission.acquire(n); err != nil {
		return err
	}
	g.metrics.inFlight.Add(float64(n))
	defer func() {
		g.metrics.inFlight.Sub(float64(n))
		g.admission.release(n)
	}()
	to := newClient(c.Response(), &g.cfg)
	defer to.done()
	var out output
	if o.Stream {
		out = newStreamOutput(to, call)
	} else {
		out = newBodyOutput(to, call)
	}
	ended.call = call
	if err := call.run(c.Request().Context(), to, out); err != nil {
		if errors.Is(err, session.ErrChanged) {
			return err
		}
		ended.cause, ended.err = causeOf(err), err
		call.letGo()
		ended.status = out.fail(publicError(err))
		return nil
	}
	ended.cause = call.cause()
	return nil
}
