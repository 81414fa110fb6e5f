package engine

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"time"

	"github.com/sourcegraph/conc"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/gateway/session"
)

// NoID is the id of the last element of an answer, which is no token.
const NoID = -1

// Token is one committed token of an answer, or its end.
type Token struct {
	// Choice is the index of the answer that the token belongs to.
	Choice int
	// ID is the token's id, or NoID.
	ID int32
	// Model is the served name of the model that wrote the token. Empty for tokens
	// of the prompt and for NoID.
	Model string
	// Prompt says that the token is an echoed one of the prompt.
	Prompt bool
	// Text is what can be shown now. Joined over an answer it is the answer's
	// text. Half of a character, or what may become a stop string, comes with a
	// later token.
	Text string
	// Logprob, Bytes and Top are set if log-probabilities were asked for. The
	// first token of a prompt has none.
	Logprob float32
	Bytes   []byte
	Top     []Alternative
	// End is set in the last element of every answer.
	End *End
}

// Alternative is another token that could have been taken.
type Alternative struct {
	ID      int32
	Logprob float32
	Bytes   []byte
}

// End is what is known once an answer has ended well.
type End struct {
	// Finish is "stop" or "length".
	Finish string
	// Prompt and Completion count tokens; Cached is the part of Prompt that came
	// from the prefix cache.
	Prompt, Completion, Cached int
	// Runs say which model wrote what, in order.
	Runs []Run
	// Epoch is 1, and one more for every time that the request moved to another
	// entry.
	Epoch int
}

// Run is a stretch of tokens by one model.
type Run struct {
	Model  string
	Tokens int
}

// Generate computes the answers to a request and yields their tokens as they
// are committed. Nothing happens before the iteration, and it may be done once
// more to ask again. Leaving the loop cancels the request wherever it is. An
// error is the last element; it wraps ErrModel, ErrRequest, ErrClosed, an error
// of package session, a *generate.Error, or is the cause of ctx's end.
//
// A caller that takes its time between tokens pauses the request, not others.
func (e *Engine) Generate(ctx context.Context, r Request) iter.Seq2[Token, error] {
	return func(yield func(Token, error) bool) {
		began := time.Now()
		d, sessions, err := e.sessions(&r)
		if err != nil {
			e.session.Metrics.Ended("", session.CauseBadRequest)
			yield(Token{}, err)
			return
		}
		a := &answering{e: e, d: d, series: e.session.Metrics.Series(d), began: began, yield: yield}
		a.answers = make([]answer, len(sessions))
		err = a.run(ctx, sessions)
		a.record(sessions[0].ID(), err)
		if err != nil && !errors.Is(err, errLeft) {
			yield(Token{}, err)
		}
	}
}

// errLeft says that the caller has left the loop.
var errLeft = errors.New("the caller has left")

// answering is one call of Generate.
type answering struct {
	e       *Engine
	d       *session.Served
	series  *session.Series
	began   time.Time
	yield   func(Token, error) bool
	answers []answer
}

// answer is one choice, as far as the caller has been told.
type answer struct {
	end    End
	finish generate.Finish
	last   time.Time // of the latest token
}

// run yields everything. The sessions have ended when it returns.
func (a *answering) run(ctx context.Context, sessions []*session.Session) error {
	feed := session.NewFeed(&a.e.session, sessions)
	inner, cancel := context.WithCancel(ctx)
	var pumps conc.WaitGroup
	defer pumps.Wait()
	defer cancel()
	pumps.Go(func() { feed.Run(inner) })
	for running := len(sessions); running > 0; {
		select {
		case <-feed.Ready():
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-a.e.closing:
			return ErrClosed
		}
		events := feed.Take()
		for i := range events {
			if err := a.take(&events[i]); err != nil {
				return err
			}
			if events[i].Done {
				running--
			}
		}
	}
	return nil
}

// take yields what one event brings.
func (a *answering) take(ev *session.Event) error {
	an := &a.answers[ev.Choice]
	switch {
	case ev.Err != nil:
		select {
		case <-a.e.closing: // the replicas have ended before this loop has seen it
			return ErrClosed
		default:
		}
		return ev.Err
	case ev.Admitted:
		an.end.Prompt = ev.PromptLen
		return nil
	}
	an.end.Epoch = int(ev.Epoch)
	an.end.Cached = max(an.end.Cached, min(ev.Cached, an.end.Prompt))
	for i := range ev.Prompt {
		t := token(ev.Choice, &ev.Prompt[i])
		t.Prompt = true
		if !a.yield(t, nil) {
			return errLeft
		}
	}
	a.observe(an, ev.Tokens)
	for i := range ev.Tokens {
		t := token(ev.Choice, &ev.Tokens[i].TokenEvent)
		t.Text, t.Model = ev.Tokens[i].Show, a.d.Models[ev.Tokens[i].Model]
		an.end.add(t.Model)
		if !a.yield(t, nil) {
			return errLeft
		}
	}
	if !ev.Done {
		return nil
	}
	an.finish, an.end.Finish = ev.Finish, "stop"
	if ev.Finish == generate.FinishLength {
		an.end.Finish = "length"
	}
	if !a.yield(Token{Choice: ev.Choice, ID: NoID, Text: ev.Tail, End: &an.end}, nil) {
		return errLeft
	}
	return nil
}

func token(choice int, t *generate.TokenEvent) Token {
	out := Token{Choice: choice, ID: t.ID, Text: t.Text, Logprob: t.Logprob, Bytes: t.Bytes}
	for _, alt := range t.Top {
		out.Top = append(out.Top, Alternative{ID: alt.ID, Logprob: alt.Logprob, Bytes: alt.Bytes})
	}
	return out
}

// add counts one token of a model.
func (e *End) add(model string) {
	e.Completion++
	if n := len(e.Runs); n > 0 && e.Runs[n-1].Model == model {
		e.Runs[n-1].Tokens++
		return
	}
	e.Runs = append(e.Runs, Run{Model: model, Tokens: 1})
}

// Count is the number of tokens that a model wrote.
func (e *End) Count(model string) int {
	n := 0
	for _, r := range e.Runs {
		if r.Model == model {
			n += r.Tokens
		}
	}
	return n
}

// observe updates the metrics of tokens.
func (a *answering) observe(an *answer, tokens []session.Token) {
	if len(tokens) == 0 {
		return
	}
	now := time.Now()
	a.series.Count(tokens)
	if an.last.IsZero() {
		a.series.First(now.Sub(a.began).Seconds())
	} else {
		a.series.Between(now.Sub(an.last).Seconds() / float64(len(tokens)))
	}
	an.last = now
}

// record counts and logs the end of a request. The line never holds text of a
// prompt or an answer.
func (a *answering) record(id uint64, err error) {
	cause := session.CauseOfError(err)
	switch {
	case err == nil:
		finishes := make([]generate.Finish, len(a.answers))
		for i := range a.answers {
			finishes[i] = a.answers[i].finish
		}
		cause = session.CauseOf(finishes...)
	case errors.Is(err, errLeft):
		cause = session.CauseClientClosed
	case errors.Is(err, ErrClosed):
		cause = session.CauseShed
	}
	a.e.session.Metrics.Ended(a.d.Name, cause)
	completion := 0
	for i := range a.answers {
		completion += a.answers[i].end.Completion
	}
	attrs := []any{"request", id, "deployment", a.d.Name, "cause", string(cause), "choices", len(a.answers),
		"prompt_tokens", a.answers[0].end.Prompt, "completion_tokens", completion, "took", time.Since(a.began)}
	level := slog.LevelDebug // a library is quiet; its user sees every error anyway
	if err != nil && cause != session.CauseClientClosed {
		level, attrs = slog.LevelWarn, append(attrs, "err", err)
	}
	a.e.log.Log(context.Background(), level, "request ended", attrs...)
}
