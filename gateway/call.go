package gateway

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sourcegraph/conc"
	"github.com/sourcegraph/conc/panics"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/api/openai"
	"github.com/tokenrouter/tokenrouter/api/sampling"
)

// call is one client request on its way through the gateway. All fields belong
// to the handler's goroutine; sessions belong to their pumps.
type call struct {
	g       *Gateway
	d       *deployment
	kind    openai.Kind
	options openai.Options
	choices []*choice

	id      string // of the answer, as the client sees it
	arrived time.Time
	events  chan event
	// waiting counts choices not yet admitted, running those not yet ended.
	waiting, running int
	firstToken       time.Duration // since arrived; 0 before the first token

	// The deployment's own series, looked up once: tokens by model index.
	tokens              []prometheus.Counter
	toFirst, interToken prometheus.Observer
}

// event is a message from the pump of a choice. Exactly one of admitted, a
// non-empty update and err is set.
type event struct {
	choice   int
	admitted bool
	prompt   int // tokens, with admitted
	update
	err error
}

// eventQueue bounds the events between the pumps and the client's writer. When
// it is full the pumps wait, which holds the entry's stream back.
const eventQueue = 32

func newCall(g *Gateway, d *deployment, kind openai.Kind, o openai.Options, requests []generate.Request) *call {
	prefix := "cmpl-"
	if kind == openai.Chat {
		prefix = "chatcmpl-"
	}
	c := &call{
		g: g, d: d, kind: kind, options: o, arrived: time.Now(),
		id:     prefix + strconv.FormatUint(requests[0].ID, 16),
		events: make(chan event, eventQueue), waiting: len(requests), running: len(requests),
		toFirst: g.metrics.firstToken.WithLabelValues(d.Name), interToken: g.metrics.interToken.WithLabelValues(d.Name),
	}
	for _, m := range d.Models {
		c.tokens = append(c.tokens, g.metrics.tokens.WithLabelValues(d.Name, m))
	}
	for i, r := range requests {
		ch := &choice{index: i, logprobs: o.Logprobs >= 0, session: newSession(g, d, r)}
		ch.extension = openai.Extension{Policy: d.Policy, Models: d.Models, Ignored: o.Ignored}
		c.choices = append(c.choices, ch)
	}
	return c
}

// request fills a Generate request with what both endpoints share.
func (d *deployment) request(o *openai.Options) generate.Request {
	p := sampling.Params{
		Temperature: d.Defaults.Temperature, TopP: d.Defaults.TopP, TopK: d.Defaults.TopK,
		MaxTokens: int32(o.MaxTokens), Logprobs: o.Logprobs,
	}
	if o.Temperature != nil {
		p.Temperature = float32(*o.Temperature)
	}
	if o.TopP != nil {
		p.TopP = max(float32(*o.TopP), minTopP)
	}
	if o.TopK != nil {
		p.TopK = min(*o.TopK, int32(d.Vocab))
	}
	switch {
	case o.Seed != nil:
		p.Seed = *o.Seed
	default:
		p.Seed = random64()
	}
	r := generate.Request{ID: random64(), Deployment: d.Name, Sampling: p}
	if o.MaxTokens == 0 {
		r.DefaultMaxTokens = true
		r.Sampling.MaxTokens = int32(d.MaxContext)
	}
	return r
}

// minTopP keeps a tiny top_p from becoming zero in single precision. Any value
// this small keeps the most probable token alone.
const minTopP = 1e-9

func random64() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:])
}

// run serves the call: pumps read the entries' streams, out writes what they
// bring. It returns when every stream has ended and every pump has stopped. An
// error before out has started is for the caller to send.
func (c *call) run(ctx context.Context, out output) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var pumps conc.WaitGroup
	defer pumps.Wait()
	defer cancel(nil)
	timeout := time.AfterFunc(c.g.cfg.RequestTimeout, func() { cancel(errTimeout) })
	defer timeout.Stop()
	for _, ch := range c.choices {
		pumps.Go(func() { c.pump(ctx, ch) })
	}
	err := c.deliver(ctx, out)
	if err != nil {
		cancel(err)
	}
	return err
}

// pump drives one choice's session and ends with one last event, unless ctx
// ends first. A panic becomes the request's error.
func (c *call) pump(ctx context.Context, ch *choice) {
	send := func(e event) bool {
		e.choice = ch.index
		select {
		case c.events <- e:
			return true
		case <-ctx.Done():
			return false
		}
	}
	if caught := panics.Try(func() { ch.session.pump(ctx, send) }); caught != nil {
		c.g.cfg.Logger.Error("panic in a request", "request", ch.session.req.ID, "err", caught.AsError())
		ch.session.close()
		send(event{err: errPanic})
	}
}

// pump sends everything that the session brings.
func (s *session) pump(ctx context.Context, send func(event) bool) {
	defer s.close()
	if err := s.open(ctx); err != nil {
		send(event{err: err})
		return
	}
	if !send(event{admitted: true, prompt: len(s.ledger.prompt)}) {
		return
	}
	for {
		u, err := s.next(ctx)
		if err != nil {
			send(event{err: err})
			return
		}
		if !send(event{update: u}) || u.done {
			return
		}
	}
}

// deliver passes events to out until every choice has ended. Events that are
// already there are written together.
func (c *call) deliver(ctx context.Context, out output) error {
	beat := newHeartbeat(c.g.cfg.KeepAlive)
	defer beat.stop()
	for c.running > 0 {
		select {
		case e := <-c.events:
			if err := c.take(e, out); err != nil {
				return err
			}
		case <-beat.C:
			if err := out.keepAlive(); err != nil {
				return err
			}
			beat.reset()
			continue
		case <-ctx.Done():
			return endCause(ctx)
		case <-c.g.admission.stopped:
			return errDraining
		}
		for drained := false; !drained && c.running > 0; {
			select {
			case e := <-c.events:
				if err := c.take(e, out); err != nil {
					return err
				}
			default:
				drained = true
			}
		}
		if err := out.flush(); err != nil {
			return err
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
func (c *call) take(e event, out output) error {
	ch := c.choices[e.choice]
	switch {
	case e.err != nil:
		return e.err
	case e.admitted:
		ch.usage.Prompt = e.prompt
		if c.waiting--; c.waiting == 0 {
			return out.start()
		}
		return nil
	}
	now := time.Now()
	c.observe(ch, e.tokens, now)
	ch.extension.Epoch = e.epoch
	for i := range e.tokens {
		t := &e.tokens[i]
		ch.usage.Completion++
		ch.extension.Add(t.Model, 1)
		out.token(ch, t)
		ch.offset += openai.Characters(t.Text)
	}
	if e.done {
		c.running--
		ch.finish = finishName(e.finish)
		out.finish(ch, e.tail)
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
func (c *call) observe(ch *choice, tokens []generate.TokenEvent, now time.Time) {
	for i := range tokens {
		c.tokens[tokens[i].Model].Inc()
	}
	switch {
	case len(tokens) == 0:
		return
	case ch.last.IsZero():
		c.toFirst.Observe(now.Sub(c.arrived).Seconds())
		if c.firstToken == 0 {
			c.firstToken = now.Sub(c.arrived)
		}
	default:
		c.interToken.Observe(now.Sub(ch.last).Seconds() / float64(len(tokens)))
	}
	ch.last = now
}

// usage sums the counts of all choices.
func (c *call) usage() openai.Usage {
	var u openai.Usage
	for _, ch := range c.choices {
		u = u.Add(ch.usage)
	}
	return u
}

// choice is one answer of a call, as far as the client has been told.
type choice struct {
	index    int
	session  *session // belongs to the pump
	logprobs bool

	usage     openai.Usage
	extension openai.Extension
	finish    string
	// offset is the length of the answer so far, in characters.
	offset int
	last   time.Time // of the latest token
}

// logprobToken converts a token for the client.
func logprobToken(t *generate.TokenEvent) openai.Token {
	out := openai.Token{Text: t.Text, Bytes: t.Bytes, Logprob: t.Logprob}
	for _, a := range t.Top {
		out.Top = append(out.Top, openai.Alternative{Text: a.Text, Bytes: a.Bytes, Logprob: a.Logprob})
	}
	return out
}

// output is where a call's answer goes: a stream of chunks or one body. Its
// methods are called by one goroutine, and flush after every batch of others.
type output interface {
	// start is called once, when all choices are admitted.
	start() error
	token(ch *choice, t *generate.TokenEvent)
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
