package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/api/openai"
	"github.com/tokenrouter/tokenrouter/gateway/session"
)

// client writes to a client that may not read. All methods belong to one
// goroutine.
type client struct {
	w       http.ResponseWriter
	control *http.ResponseController
	// slow is how long a client may take nothing, last how much longer the error
	// that tells it may take.
	slow, last time.Duration
	// watchdog runs during a write; it fires when the client has taken nothing
	// for slow. Nil unless watch was called.
	watchdog *time.Timer
	fired    atomic.Bool
	// wrote says that a write was tried, so that no other answer can be sent.
	wrote bool
	// told says that the client is being told why its answer ends.
	told bool
}

func newClient(w http.ResponseWriter, cfg *Config) *client {
	return &client{w: w, control: http.NewResponseController(w), slow: cfg.SlowAfter, last: cfg.WriteTimeout}
}

// watch has f called, once and from another goroutine, when the client has taken
// nothing for SlowAfter. The write then goes on for at most WriteTimeout.
func (c *client) watch(f func()) {
	c.watchdog = time.AfterFunc(c.slow, func() {
		c.fired.Store(true)
		f()
	})
	c.watchdog.Stop()
}

// piece is how much a client has to take within SlowAfter, in bytes.
const piece = 4 << 10

// write sends b at once. Errors wrap errClientGone, or are errTooSlow if the
// client took too long, even if it has taken b by now.
func (c *client) write(b []byte) error {
	c.wrote = true
	for ; len(b) > 0; b = b[min(len(b), piece):] {
		c.guard()
		if _, err := c.w.Write(b[:min(len(b), piece)]); err != nil {
			return c.failure(err)
		}
	}
	c.guard()
	return c.failure(c.control.Flush())
}

// guard sets the deadline and the watchdog for one write. Once the watchdog has
// fired, the deadline stays where it is.
func (c *client) guard() {
	if c.fired.Load() {
		return
	}
	_ = c.control.SetWriteDeadline(time.Now().Add(c.slow + c.last)) // not every writer has deadlines
	if c.watchdog != nil {
		c.watchdog.Reset(c.slow)
	}
}

// failure stops the watchdog after a write and says what the write amounts to. On a machine
// that was held up the deadline may come before the watchdog, which was due earlier.
func (c *client) failure(err error) error {
	if c.watchdog != nil {
		c.watchdog.Stop()
	}
	switch {
	case (c.fired.Load() || errors.Is(err, os.ErrDeadlineExceeded)) && !c.told:
		return errTooSlow
	case err != nil:
		return fmt.Errorf("%w: %w", errClientGone, err)
	}
	return nil
}

// done lifts the deadline for the connection's next request.
func (c *client) done() { _ = c.control.SetWriteDeadline(time.Time{}) }

// sendJSON writes a whole answer.
func (c *client) sendJSON(status int, body []byte) error {
	h := c.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	c.w.WriteHeader(status)
	return c.write(body)
}

// sendError writes an error as the whole answer and returns its status.
func (c *client) sendError(e *openai.Error) int {
	if c.wrote || e.Status == statusClientGone {
		return e.Status
	}
	setRetryHeaders(c.w.Header(), e)
	_ = c.sendJSON(e.Status, e.AppendJSON(nil)) // the client may have gone; nothing to do about it
	return e.Status
}

// streamOutput sends an answer as server-sent events, one chunk per token.
type streamOutput struct {
	*client
	call   *call
	chunks *openai.ChunkWriter
	// buf holds events that are not sent yet.
	buf     []byte
	started bool
	chunk   openai.Chunk
	token1  [1]openai.Token
	counted openai.Usage
	// spoken says which choices have had their first chunk.
	spoken []bool
}

func newStreamOutput(c *client, call *call) *streamOutput {
	return &streamOutput{
		client: c, call: call, spoken: make([]bool, len(call.choices)),
		chunks: openai.NewChunkWriter(call.kind, call.id, call.arrived.Unix(), call.d.Name),
	}
}

func (o *streamOutput) start() error {
	h := o.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
	o.w.WriteHeader(http.StatusOK)
	o.started = true
	return o.write(nil)
}

// prompt adds a chunk with a part of the prompt.
func (o *streamOutput) prompt(ch *choice, tokens []generate.TokenEvent) {
	o.chunk = openai.Chunk{Content: true, Offset: ch.offset}
	o.chunk.Text, o.chunk.Logprobs = ch.recite(tokens)
	ch.offset += openai.Characters(o.chunk.Text)
	if o.chunk.Text != "" || ch.logprobs {
		o.add(ch)
	}
}

// token adds a chunk, except for a token that adds neither text nor a
// log-probability: its bytes come with a later one.
func (o *streamOutput) token(ch *choice, t *session.Token) {
	text, calls := ch.read(t.Show)
	if text == "" && calls == nil && !ch.logprobs {
		return
	}
	o.chunk = openai.Chunk{Content: text != "" || calls == nil, Text: text, ToolCalls: calls, Model: o.call.d.Models[t.Model]}
	if ch.logprobs {
		o.token1[0] = logprobToken(&t.TokenEvent)
		o.chunk.Logprobs, o.chunk.Offset = o.token1[:], ch.offset
	}
	o.add(ch)
}

// add completes the present chunk and appends it.
func (o *streamOutput) add(ch *choice) {
	o.introduce()
	o.chunk.Index = ch.index
	o.chunk.Role = !o.spoken[ch.index]
	o.spoken[ch.index] = true
	if o.call.options.ContinuousUsage {
		o.counted = o.call.usage()
		o.chunk.Usage = &o.counted
	}
	o.buf = o.chunks.Append(o.buf, &o.chunk)
}

// introduce begins the choices of a chat, if there are several, before the first of
// them speaks: with the role and an empty text, in order, in the same write as that
// choice's text. The stream helper of the official Python client appends choices as it
// meets them and takes the place for the index, and counts log-probabilities in the
// first chunk of a choice twice.
func (o *streamOutput) introduce() {
	if o.call.kind != openai.Chat || len(o.spoken) == 1 {
		return
	}
	for i, spoken := range o.spoken {
		if !spoken {
			o.spoken[i] = true
			o.buf = o.chunks.Append(o.buf, &openai.Chunk{Index: i, Role: true, Content: true})
		}
	}
}

func (o *streamOutput) finish(ch *choice, tail string) {
	if text, calls := ch.readEnd(tail); text != "" || calls != nil {
		o.chunk = openai.Chunk{Content: text != "", Text: text, ToolCalls: calls}
		o.add(ch)
	}
	o.chunk = openai.Chunk{Finish: ch.finish, Extension: &ch.extension, Content: !o.spoken[ch.index]}
	o.add(ch)
}

func (o *streamOutput) flush() error {
	if !o.started || len(o.buf) == 0 {
		return nil
	}
	err := o.write(o.buf)
	o.buf = o.buf[:0]
	return err
}

func (o *streamOutput) keepAlive() error {
	if !o.started {
		return nil
	}
	return o.write([]byte(openai.KeepAlive))
}

func (o *streamOutput) end() error {
	if o.call.options.IncludeUsage {
		u := o.call.usage()
		o.buf = o.chunks.Append(o.buf, &openai.Chunk{UsageOnly: true, Usage: &u})
	}
	o.buf = append(o.buf, openai.Done...)
	return o.flush()
}

func (o *streamOutput) fail(e *openai.Error) int {
	if !o.started {
		return o.sendError(e)
	}
	if e.Status != statusClientGone {
		o.told = true
		o.buf = openai.AppendErrorEvent(o.buf, e)
		o.buf = append(o.buf, openai.Done...)
		_ = o.flush() // the client may have gone; nothing to do about it
	}
	return e.Status
}

// bodyOutput collects an answer and sends it as one JSON body.
type bodyOutput struct {
	*client
	call     *call
	texts    []strings.Builder
	calls    [][]openai.ToolCall
	logprobs [][]openai.Token
}

func newBodyOutput(c *client, call *call) *bodyOutput {
	return &bodyOutput{
		client: c, call: call,
		texts: make([]strings.Builder, len(call.choices)), calls: make([][]openai.ToolCall, len(call.choices)),
		logprobs: make([][]openai.Token, len(call.choices)),
	}
}

func (o *bodyOutput) start() error     { return nil }
func (o *bodyOutput) flush() error     { return nil }
func (o *bodyOutput) keepAlive() error { return nil }

func (o *bodyOutput) prompt(ch *choice, tokens []generate.TokenEvent) {
	text, logprobs := ch.recite(tokens)
	o.texts[ch.index].WriteString(text)
	o.logprobs[ch.index] = append(o.logprobs[ch.index], logprobs...)
}

func (o *bodyOutput) token(ch *choice, t *session.Token) {
	o.add(ch, t.Show, ch.read)
	if ch.logprobs {
		o.logprobs[ch.index] = append(o.logprobs[ch.index], logprobToken(&t.TokenEvent))
	}
}

// add collects a piece of the answer as read takes it apart.
func (o *bodyOutput) add(ch *choice, piece string, read func(string) (string, []openai.ToolCall)) {
	text, calls := read(piece)
	o.texts[ch.index].WriteString(text)
	o.calls[ch.index] = append(o.calls[ch.index], calls...)
}

func (o *bodyOutput) finish(ch *choice, tail string) {
	o.add(ch, tail, ch.readEnd)
	if ch.logprobs && o.logprobs[ch.index] == nil {
		o.logprobs[ch.index] = []openai.Token{}
	}
}

func (o *bodyOutput) end() error {
	choices := make([]openai.Choice, len(o.call.choices))
	for i, ch := range o.call.choices {
		choices[i] = openai.Choice{Text: o.texts[i].String(), Finish: ch.finish, ToolCalls: o.calls[i], Logprobs: o.logprobs[i], Extension: &ch.extension}
	}
	body := openai.AppendResponse(nil, o.call.kind, o.call.id, o.call.arrived.Unix(), o.call.d.Name, choices, o.call.usage())
	return o.sendJSON(http.StatusOK, body)
}

func (o *bodyOutput) fail(e *openai.Error) int { return o.sendError(e) }
