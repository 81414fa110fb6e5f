package gateway

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/api/openai"
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
	d, err := g.find(r.Model)
	if err != nil {
		return err
	}
	if bad := r.Check(openai.Limits{MaxContext: d.MaxContext, Vocab: d.Vocab}); bad != nil {
		return bad
	}
	req := d.request(&r.Options)
	req.Chat = true
	req.TemplateArgs = r.TemplateArgs
	for _, m := range r.Messages {
		// Newer clients write developer for what templates know as system.
		if m.Role == "developer" {
			m.Role = "system"
		}
		req.Messages = append(req.Messages, generate.Message{
			Role: m.Role, Content: m.Content, ToolCalls: m.ToolCalls, ToolCallID: m.ToolCallID, Name: m.Name,
		})
	}
	return g.serve(c, newCall(g, d, openai.Chat, r.Options, []generate.Request{req}))
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
	d, err := g.find(r.Model)
	if err != nil {
		return err
	}
	if bad := r.Check(openai.Limits{MaxContext: d.MaxContext, Vocab: d.Vocab}); bad != nil {
		return bad
	}
	if len(r.Prompts) > g.cfg.MaxInFlight {
		return &openai.Error{
			Status: http.StatusBadRequest, Type: openai.TypeInvalidRequest, Code: openai.CodeInvalidValue,
			Param: "prompt", Message: "'prompt' holds more prompts than this server computes at a time",
		}
	}
	requests := make([]generate.Request, len(r.Prompts))
	for i, p := range r.Prompts {
		requests[i] = d.request(&r.Options)
		requests[i].Prompt, requests[i].PromptIDs = p.Text, p.IDs
	}
	return g.serve(c, newCall(g, d, openai.Text, r.Options, requests))
}

// find looks a deployment up by its name.
func (g *Gateway) find(name string) (*deployment, error) {
	t := g.table.Load()
	if d := t.byName[name]; d != nil {
		return d, nil
	}
	return nil, modelNotFound(t, name)
}

// serve runs a call and notes how it ended for the access log.
func (g *Gateway) serve(c echo.Context, call *call) error {
	n := len(call.choices)
	if err := g.admission.acquire(n); err != nil {
		return publicError(err)
	}
	g.metrics.inFlight.Add(float64(n))
	defer func() {
		g.metrics.inFlight.Sub(float64(n))
		g.admission.release(n)
	}()
	to := newClient(c.Response(), g.cfg.WriteTimeout)
	defer to.done()
	var out output
	if call.options.Stream {
		out = newStreamOutput(to, call)
	} else {
		out = newBodyOutput(to, call)
	}
	ended := outcomeOf(c)
	ended.call = call
	if err := call.run(c.Request().Context(), out); err != nil {
		public := publicError(err)
		ended.cause, ended.err = public.Code, err
		ended.status = out.fail(public)
	}
	return nil
}
