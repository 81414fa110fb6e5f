package sessiontest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/gateway/session"
)

// ErrKilled is for hooks that end an entry.
var ErrKilled = errors.New("fake entry killed")

// Script is an answer: what every replica computes for any prompt.
type Script struct {
	Tokens []generate.TokenEvent
	Finish generate.Finish
	Tail   string
	// Prompt are the prompt's tokens; nil means the ids 1, 2 and 3.
	Prompt []generate.TokenEvent
}

func (s *Script) promptIDs() []int32 {
	if s.Prompt == nil {
		return []int32{1, 2, 3}
	}
	var ids []int32
	for _, t := range s.Prompt {
		ids = append(ids, t.ID)
	}
	return ids
}

// Words is a script of n tokens, every fifth written by model 1.
func Words(n int) *Script {
	s := &Script{Finish: generate.FinishStop}
	for i := range n {
		t := generate.TokenEvent{ID: int32(10 + i), Text: fmt.Sprintf(" w%d", i)}
		if i%5 == 4 {
			t.Model = 1
		}
		s.Tokens = append(s.Tokens, t)
	}
	return s
}

// Text is the whole text of the answer.
func (s *Script) Text() string {
	var b strings.Builder
	for _, t := range s.Tokens {
		b.WriteString(t.Text)
	}
	return b.String() + s.Tail
}

// Entry answers with a script. Its hooks may be nil.
type Entry struct {
	ID     string
	Script *Script
	// Refuse is returned instead of a stream if it is not nil.
	Refuse func(r *generate.Request) error
	// Edit may change, add, or (with an error) replace the event at the given
	// position of the answer: -1 for the admission, len(tokens) for the finish.
	Edit func(r *generate.Request, position int, e *generate.Event) ([]*generate.Event, error)
	// Submit is waited for before a submission is looked at, Gate before every
	// token, Added before every event that Edit has added.
	Submit func(ctx context.Context) error
	Gate   func(ctx context.Context, position int) error
	Added  func(ctx context.Context) error

	// Active counts streams whose context has not ended.
	Active atomic.Int64
	// Sent counts tokens that were read from streams.
	Sent atomic.Int64
	mu   sync.Mutex
	seen []generate.Request
}

// Name implements session.Entry.
func (f *Entry) Name() string { return f.ID }

// Requests are the submissions so far.
func (f *Entry) Requests() []generate.Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]generate.Request(nil), f.seen...)
}

// Generate implements session.Entry.
func (f *Entry) Generate(ctx context.Context, r *generate.Request) (session.Stream, error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	f.mu.Lock()
	f.seen = append(f.seen, *r)
	f.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if f.Submit != nil {
		if err := f.Submit(ctx); err != nil {
			return nil, err
		}
	}
	if f.Refuse != nil {
		if err := f.Refuse(r); err != nil {
			return nil, err
		}
	}
	f.Active.Add(1)
	context.AfterFunc(ctx, func() { f.Active.Add(-1) })
	s := &stream{f: f, ctx: ctx, r: *r, position: -1}
	return s, nil
}

// stream is one run over the script. State of the policy is the position,
// so that a test sees that it travels.
type stream struct {
	f        *Entry
	ctx      context.Context
	r        generate.Request
	position int
	queue    []*generate.Event
}

func (s *stream) Close() error { return nil }

func (s *stream) Next() (*generate.Event, error) {
	if err := s.ctx.Err(); err != nil {
		return nil, err
	}
	if len(s.queue) > 0 {
		if s.f.Added != nil {
			if err := s.f.Added(s.ctx); err != nil {
				return nil, err
			}
		}
		e := s.queue[0]
		s.queue = s.queue[1:]
		return e, nil
	}
	script := s.f.Script
	limit := min(len(script.Tokens), int(s.r.Sampling.MaxTokens))
	e := &generate.Event{Epoch: s.r.Epoch}
	at := s.position
	switch {
	case at < 0:
		e.Kind, e.Replica, e.PromptIDs = generate.EventAdmitted, s.f.ID, script.promptIDs()
		s.position = 0
		if s.r.Resume != nil {
			s.position = len(s.r.Resume.Tokens)
		}
		if s.r.Echo {
			s.queue = append(s.queue, &generate.Event{Kind: generate.EventPrompt, Epoch: s.r.Epoch, Tokens: slices.Clone(script.Prompt)})
		}
	case at < limit:
		if s.f.Gate != nil {
			if err := s.f.Gate(s.ctx, at); err != nil {
				return nil, err
			}
		}
		t := script.Tokens[at]
		if s.r.Sampling.Logprobs < 0 {
			t.Bytes, t.Logprob, t.Top = nil, 0, nil
		}
		e.Kind, e.Base, e.Tokens = generate.EventTokens, int32(at), []generate.TokenEvent{t}
		s.f.Sent.Add(1)
		e.Turn, e.Owner, e.State = true, t.Model, []byte{byte(at + 1)}
		s.position++
	case at == limit:
		e.Kind, e.Finish, e.Tail = generate.EventFinish, script.Finish, script.Tail
		if limit < len(script.Tokens) {
			e.Finish = generate.FinishLength
		}
		s.position++
	default:
		return nil, io.EOF
	}
	if s.f.Edit == nil {
		return e, nil
	}
	events, err := s.f.Edit(&s.r, at, e)
	if err != nil {
		return nil, err
	}
	s.queue = append(slices.Clone(events[1:]), s.queue...)
	return events[0], nil
}

// After is a hook that takes d.
func After(d time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Pass is what Edit returns to change nothing.
func Pass(e *generate.Event) ([]*generate.Event, error) { return []*generate.Event{e}, nil }
