package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"time"
)

// maxPieces bounds the pieces of one stream that carry a token.
const maxPieces = 1 << 20

// drainTime bounds the wait for the end of a body after the stream's end mark.
const drainTime = time.Second

// outcome is what one request showed.
type outcome struct {
	start, sent time.Time // planned and true start
	end         time.Time
	// failure is nil for a success; then the rest holds.
	failure *failure

	first, last time.Time // first and last piece with a token; zero if none
	final       time.Time // last piece with a choice: the token that ends an answer has no text
	// gaps are between pieces with a token, in seconds.
	gaps   []float64
	pieces int
	// reads are the reads that brought pieces with a token.
	reads int

	counted            bool // the server counted tokens
	prompt, completion int64
	choices            bool // a choice came
	finish             string
	extension          []byte
}

func (o *outcome) clear(planned time.Time) {
	*o = outcome{start: planned, gaps: o.gaps[:0], extension: o.extension[:0]}
}

// tokens is the number of output tokens, and whether it is known.
func (o *outcome) tokens() (int64, bool) {
	if o.counted {
		return o.completion, true
	}
	return int64(o.pieces), !o.first.IsZero()
}

// note takes what a piece that came at a certain time says.
func (o *outcome) note(p *piece, at time.Time) {
	if p.counted {
		o.counted, o.prompt, o.completion = true, p.prompt, p.completion
	}
	if len(p.finish) > 0 {
		o.finish = string(p.finish)
	}
	if p.extension != nil {
		o.extension = append(o.extension[:0], p.extension...)
	}
	if p.choices == 0 {
		return
	}
	o.choices = true
	o.final = at
	if !p.token() || at.IsZero() {
		return
	}
	if o.first.IsZero() {
		o.first = at
		o.reads = 1
	} else {
		if at != o.last {
			o.reads++
		}
		o.gaps = append(o.gaps, at.Sub(o.last).Seconds())
	}
	o.last = at
	o.pieces++
}

// sender sends requests one after the other and reuses its buffers.
type sender struct {
	b      *Bench
	events events
	body   []byte
	out    outcome
}

// send does request i and returns its outcome, which is valid until the next
// call. The request was to start at planned.
func (s *sender) send(ctx context.Context, i int, planned time.Time) *outcome {
	if s.b.cfg.Timeout > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, s.b.cfg.Timeout)
		defer stop()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.body = s.b.appendBody(s.body[:0], i)
	s.out.clear(planned)
	s.out.sent = time.Now()
	s.out.failure = s.exchange(ctx, cancel)
	if s.out.end.IsZero() {
		s.out.end = time.Now()
	}
	return &s.out
}

// exchange sends the request and reads the answer.
func (s *sender) exchange(ctx context.Context, cancel func()) *failure {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.b.target, bytes.NewReader(s.body))
	if err != nil {
		return fail(KindConnect, "%v", err)
	}
	req.Header = s.b.header.Clone()
	resp, err := s.b.http.RoundTrip(req)
	if err != nil {
		return transport(KindConnection, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		// What is unreadable of an error's body is only a message.
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxEventBytes))
		return refused(resp.StatusCode, text)
	}
	if !s.b.cfg.Stream {
		return s.whole(resp.Body)
	}
	if f := s.stream(resp.Body); f != nil {
		return f
	}
	s.out.end = s.events.at
	// A body read to its end lets the connection be used again.
	late := time.AfterFunc(drainTime, cancel)
	defer late.Stop()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, startBytes))
	return s.out.check()
}

// whole reads an answer that is not streamed.
func (s *sender) whole(body io.Reader) *failure {
	text, err := io.ReadAll(io.LimitReader(body, maxReplyBytes+1))
	s.out.end = time.Now()
	if err != nil {
		return transport(KindCut, err)
	}
	if len(text) > maxReplyBytes {
		return fail(KindTooLarge, "the answer has more than %d bytes", maxReplyBytes)
	}
	if f := s.take(text, time.Time{}); f != nil {
		return f
	}
	return s.out.check()
}

// stream reads a stream up to its end mark.
func (s *sender) stream(body io.Reader) *failure {
	s.events.reset(body)
	for {
		e, err := s.events.next()
		switch {
		case errors.Is(err, io.EOF):
			return fail(KindCut, "the stream ended without its end mark [DONE]")
		case err != nil:
			return transport(KindCut, err)
		}
		data := bytes.TrimSpace(e.data)
		switch {
		case len(data) == 0:
			continue
		case string(data) == "[DONE]":
			return nil
		case string(e.name) == "error":
			return inBand(data)
		}
		if f := s.take(data, e.at); f != nil {
			return f
		}
		if s.out.pieces > maxPieces {
			return fail(KindTooLarge, "the stream has more than %d pieces", maxPieces)
		}
	}
}

// take notes one piece that came at a certain time, zero without streaming.
func (s *sender) take(text []byte, at time.Time) *failure {
	p, err := readPiece(text)
	switch {
	case err != nil:
		return fail(KindMalformed, "%v: %s", err, clip(string(text[:min(len(text), maxMessageBytes)]), maxMessageBytes/2))
	case p.failure != nil:
		return inBand(p.failure)
	}
	s.out.note(&p, at)
	return nil
}

// check says what a complete answer lacks.
func (o *outcome) check() *failure {
	n, known := o.tokens()
	switch {
	case !o.choices || known && n == 0:
		return fail(KindEmpty, "the answer has no choice or no token")
	case o.finish == "":
		return fail(KindCut, "the answer has no finish reason")
	}
	return nil
}

// appendBody appends the body of request i.
func (b *Bench) appendBody(dst []byte, i int) []byte {
	c := &b.cfg
	dst = append(dst, b.head...)
	dst = append(dst, c.Prompts.field(i)...)
	if c.SendSeed {
		dst = append(dst, `,"seed":`...)
		dst = strconv.AppendInt(dst, int64(uint64(c.Seed)+uint64(i))&math.MaxInt64, 10)
	}
	return append(dst, '}')
}

// bodyHead is the part of every body that is the same, with a comma at its end.
func (c *Config) bodyHead() ([]byte, error) {
	fields := struct {
		Model       string   `json:"model"`
		MaxTokens   int      `json:"max_tokens,omitempty"`
		Temperature *float64 `json:"temperature,omitempty"`
		IgnoreEOS   bool     `json:"ignore_eos,omitempty"`
		Stream      bool     `json:"stream"`
		Options     *options `json:"stream_options,omitempty"`
	}{Model: c.Model, MaxTokens: c.MaxTokens, Temperature: c.Temperature, IgnoreEOS: c.IgnoreEOS, Stream: c.Stream}
	if c.Stream {
		fields.Options = &options{IncludeUsage: true}
	}
	text, err := json.Marshal(fields)
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	text[len(text)-1] = ','
	return text, nil
}

// options ask for the server's count of tokens at the end of a stream.
type options struct {
	IncludeUsage bool `json:"include_usage"`
}
