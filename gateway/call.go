package gateway

import (
	"context"
	"fmt"
	"time"

	"github.com/sourcegraph/conc"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/api/openai"
	"github.com/tokenrouter/tokenrouter/gateway/session"
)

// call is one client request on its way through the gateway. All fields belong
// to the handler's goroutine; sessions belong to the feed.
type call struct {
	g       *Gateway
	d       *session.Served
	kind    openai.Kind
	options openai.Options
	choices []*choice
	feed    *session.Feed
	series  *session.Series
	// letGo gives back what the call has of its key's bounds. It is called before the client
	// hears of the end, since it may then ask again at once.
	letGo func()

	id      string // of the answer, as the client sees it
	arrived time.Time
	// waiting counts choices not yet admitted, running those not yet ended.
	waiting, running int
	firstToken       time.Duration // since arrived; 0 before the first token
}

// newCall returns a call for the given prompts, each with options.N choices.
// Choice k of prompt p has index p·N+k.
func newCall(g *Gateway, d *session.Served, kind openai.Kind, o openai.Options, set session.Settings, prompts []generate.Request) (*call, error) {
	c := &call{g: g, d: d, kind: kind, options: o, arrived: time.Now(), series: g.cfg.Session.Metrics.Series(d)}
	var sessions []*session.Session
	for _, p := range prompts {
		requests, err := d.Requests(&set, p)
		if err != nil {
			return nil, err
		}
		for k := range requests {
			c.choices = append(c.choices, &choice{
				index: len(sessions), again: k > 0, logprobs: o.Logprobs >= 0,
				extension: extension(d, &o),
			})
			sessions = append(sessions, session.New(&g.cfg.Session, d, &requests[k]))
		}
	}
	prefix := "cmpl-"
	if kind == openai.Chat {
		prefix = "chatcmpl-"
	}
	id := fmt.Sprintf("%016x", sessions[0].ID())
	c.id = prefix + id
	if len(o.Tools) > 0 {
		for i, ch := range c.choices {
			ch.calls = &callReader{id: fmt.Sprintf("call_%s_%d_", id, i), tools: o.Tools, one: o.OneCall}
		}
	}
	c.feed = session.NewFeed(&g.cfg.Session, sessions)
	c.waiting, c.running = len(sessions), len(sessions)
	return c, nil
}

// fallbackAlone is the fallback's name in Extension.Fallback, as deployments have it.
const fallbackAlone = "small-only"

// extension is what a choice's extension object says before the first token.
func extension(d *session.Served, o *openai.Options) openai.Extension {
	x := openai.Extension{Policy: d.PolicyOf(o.Routing), Models: d.Models, Ignored: o.Ignored}
	if o.Routing != nil {
		x.Threshold, x.MaxLargeShare = o.Routing.Threshold, o.Routing.MaxLargeShare
	}
	return x
}

// settings are a client's options without the prompt.
func settings(o *openai.Options) session.Settings {
	return session.Settings{
		Temperature: o.Temperature, TopP: o.TopP, TopK: o.TopK, MinP: o.MinP,
		RepetitionPenalty: o.RepetitionPenalty, FrequencyPenalty: o.FrequencyPenalty, PresencePenalty: o.PresencePenalty,
		LogitBias: o.LogitBias, Seed: o.Seed,
		// Check has compared both limits with the context.
		MaxTokens: int32(o.MaxTokens), NoTokens: o.NoTokens, MinTokens: o.MinTokens,
		Logprobs: o.Logprobs, Stops: o.Stop, StopIDs: o.StopIDs, IgnoreEOS: o.IgnoreEOS, N: o.N, Session: o.CacheKey,
		Routing: o.Routing,
	}
}

// run serves the call: the feed reads the entries' streams, out writes what they
// bring. It returns when every stream has ended and nothing runs any more. An
// error before out has started is for the caller to send.
func (c *call) run(ctx context.Context, to *client, out output) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var feed conc.WaitGroup
	defer feed.Wait()
	defer cancel(nil)
	timeout := time.AfterFunc(c.g.cfg.RequestTimeout, func() { cancel(errTimeout) })
	defer timeout.Stop()
	// The entries are let go as soon as the client is too slow, also while a write
	// to it still blocks.
	to.watch(func() { cancel(errTooSlow) })
	feed.Go(func() { c.feed.Run(ctx) })
	err := c.deliver(ctx, out)
	if err != nil {
		cancel(err)
	}
	return err
}

// deliver passes events to out until every choice has ended. Events that are
// already there are written together.
func (c *call) deliver(ctx context.Context, out output) error {
	beat := newHeartbeat(c.g.cfg.KeepAlive)
	defer beat.stop()
	for c.running > 0 {
		select {
		case <-c.feed.Ready():
			events := c.feed.Take()
			for i := range events {
				if err := c.take(&events[i], out); err != nil {
					return err
				}
			}
			if c.running == 0 {
				c.letGo()
			}
			if err := out.flush(); err != nil {
				return err
			}
		case <-beat.C:
			if err := out.keepAlive(); err != nil {
				return err
			}
		case <-ctx.Done():
			return endCause(ctx)
		case <-c.g.admission.stopping.Done():
			return errDraining
		}
		beat.reset()
	}
	return out.end()
}

// endCause is why a call's context has ended: our own reason, or the client's
// leaving.
func endCause(ctx context.Context) error {
	if cause := context.Cause(ctx); cause != context.Canceled {
		return cause
	}
	return errClientGone
}

// take handles one event.
func (c *call) take(e *session.Event, out output) error {
	ch := c.choices[e.Choice]
	switch {
	case e.Err != nil:
		return e.Err
	case e.Admitted:
		if !ch.again {
			ch.usage.Prompt = e.PromptLen
		}
		if c.waiting--; c.waiting == 0 {
			return out.start()
		}
		return nil
	}
	c.observe(ch, e.Tokens)
	ch.extension.Epoch = e.Epoch
	if e.Alone {
		ch.extension.Fallback = fallbackAlone
	}
	if ch.usage.Cached == 0 && !ch.again {
		ch.usage.Cached = min(e.Cached, ch.usage.Prompt)
	}
	if len(e.Prompt) > 0 {
		out.prompt(ch, e.Prompt)
	}
	for i := range e.Tokens {
		t := &e.Tokens[i]
		ch.usage.Completion++
		ch.extension.Add(t.Model, 1)
		out.token(ch, t)
		ch.offset += openai.Characters(t.Text)
	}
	if e.Done {
		c.running--
		ch.finish, ch.ended = finishName(e.Finish), e.Finish
		out.finish(ch, e.Tail)
	}
	return nil
}

func finishName(f generate.Finish) string {
	if f == generate.FinishLength {
		return "length"
	}
	return "stop"
}

// observe updates the metrics of tokens.
func (c *call) observe(ch *choice, tokens []session.Token) {
	if len(tokens) == 0 {
		return
	}
	now := time.Now()
	c.series.Count(tokens)
	if ch.last.IsZero() {
		c.series.First(now.Sub(c.arrived).Seconds())
		if c.firstToken == 0 {
			c.firstToken = now.Sub(c.arrived)
		}
	} else {
		c.series.Between(now.Sub(ch.last).Seconds() / float64(len(tokens)))
	}
	ch.last = now
}

// usage sums the counts of all choices. A prompt counts once, however many
// answers it gets.
func (c *call) usage() openai.Usage {
	var u openai.Usage
	for _, ch := range c.choices {
		u = u.Add(ch.usage)
	}
	return u
}

// usedTokens is what the call has cost so far, in tokens.
func (c *call) usedTokens() int64 {
	u := c.usage()
	return int64(u.Prompt) + int64(u.Completion)
}

// likelyTokens is what a rate is charged with before the prompt's length and that of
// the answers are known. A token has at least one byte, so only answers without a
// bound can cost more; they are charged with the rest when they have ended.
func (c *call) likelyTokens(prompts []generate.Request) int64 {
	answer := min(int(c.options.MaxTokens), c.d.MaxContext)
	if answer == 0 && !c.options.NoTokens {
		answer = min(unboundedAnswer, c.d.MaxContext)
	}
	sum := int64(len(prompts)) * int64(c.options.N) * int64(answer)
	for i := range prompts {
		p := &prompts[i]
		prompt := len(p.Prompt) + len(p.PromptIDs)
		for _, m := range p.Messages {
			prompt += len(m.Content) + messageOverhead
		}
		sum += int64(min(prompt, c.d.MaxContext))
	}
	return sum
}

// unboundedAnswer is the length that an answer without a bound is taken to have.
const unboundedAnswer = 1024

// messageOverhead is what a chat template adds to a message, in tokens, generously.
const messageOverhead = 16

// cause is how a call that ended well did.
func (c *call) cause() session.Cause {
	finishes := make([]generate.Finish, len(c.choices))
	for i, ch := range c.choices {
		finishes[i] = ch.ended
	}
	return session.CauseOf(finishes...)
}

// choice is one answer of a call, as far as the client has been told.
type choice struct {
	index int
	// again says that another choice has the same prompt, and counts it.
	again    bool
	logprobs bool
	// calls takes the calls of tools out of the text; nil if there are no tools.
	calls *callReader

	usage     openai.Usage
	extension openai.Extension
	ended     generate.Finish
	finish    string
	// recited says that some of the prompt's tokens were sent.
	recited bool
	// offset is the length so far of the texts of all tokens, in characters.
	offset int
	last   time.Time // of the latest token
}

// read takes the calls of tools out of the next piece of the answer.
func (ch *choice) read(text string) (content string, calls []openai.ToolCall) {
	if ch.calls == nil {
		return text, nil
	}
	return ch.calls.push(text)
}

// readEnd takes the last piece, and says so if the answer ends with calls.
func (ch *choice) readEnd(text string) (content string, calls []openai.ToolCall) {
	if ch.calls == nil {
		return text, nil
	}
	content, calls = ch.calls.push(text)
	rest, more := ch.calls.end()
	if calls = append(calls, more...); ch.calls.told > 0 && ch.ended == generate.FinishStop {
		ch.finish = "tool_calls"
	}
	return content + rest, calls
}

// logprobToken converts a token for the client.
func logprobToken(t *generate.TokenEvent) openai.Token {
	out := openai.Token{Text: t.Text, Bytes: t.Bytes, Logprob: t.Logprob}
	for _, a := range t.Top {
		out.Top = append(out.Top, openai.Alternative{Text: a.Text, Bytes: a.Bytes, Logprob: a.Logprob})
	}
	return out
}

// recite returns the joined text of prompt tokens and, if they are wanted, their
// log-probabilities.
func (ch *choice) recite(tokens []generate.TokenEvent) (text string, logprobs []openai.Token) {
	for i := range tokens {
		text += tokens[i].Text
		if ch.logprobs {
			t := logprobToken(&tokens[i])
			t.First = !ch.recited
			logprobs = append(logprobs, t)
		}
		ch.recited = true
	}
	return text, logprobs
}

// output is where a call's answer goes: a stream of chunks or one body. Its
// methods are called by one goroutine, and flush after every batch of others.
type output interface {
	// start is called once, when all choices are admitted.
	start() error
	prompt(ch *choice, tokens []generate.TokenEvent)
	token(ch *choice, t *session.Token)
	finish(ch *choice, tail string)
	flush() error
	keepAlive() error
	// end is called when all choices have finished.
	end() error
	// fail sends err to the client if that is possible, and returns the status
	// to count.
	fail(err *openai.Error) int
}

// heartbeat is a timer that may be off.
type heartbeat struct {
	C     <-chan time.Time
	timer *time.Timer
	every time.Duration
}

func newHeartbeat(every time.Duration) *heartbeat {
	if every < 0 {
		return &heartbeat{}
	}
	t := time.NewTimer(every)
	return &heartbeat{C: t.C, timer: t, every: every}
}

func (h *heartbeat) reset() {
	if h.timer != nil {
		h.timer.Reset(h.every)
	}
}

func (h *heartbeat) stop() {
	if h.timer != nil {
		h.timer.Stop()
	}
}
