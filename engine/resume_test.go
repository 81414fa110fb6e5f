package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/gateway/session"
)

// cutter is an entry whose streams break after a number of tokens each, also in the
// middle of an event unless events are to stay whole.
type cutter struct {
	session.Entry
	every int
	whole bool
}

func (c cutter) Generate(ctx context.Context, r *generate.Request) (session.Stream, error) {
	s, err := c.Entry.Generate(ctx, r)
	if err != nil {
		return nil, err
	}
	return &cutStream{Stream: s, left: c.every, whole: c.whole}, nil
}

type cutStream struct {
	session.Stream
	left  int
	whole bool
}

func (s *cutStream) Next() (*generate.Event, error) {
	if s.left <= 0 {
		return nil, errKilled
	}
	e, err := s.Stream.Next()
	if err == nil && e.Kind == generate.EventTokens {
		// What the cut leaves of the event's tokens was not seen.
		if n := len(e.Tokens); n > s.left && !s.whole {
			e.Tokens, e.Turn = e.Tokens[:s.left], false
		}
		s.left -= len(e.Tokens)
	}
	return e, err
}

// cut puts cutters in front of all entries. No request is running.
func (e *Engine) cut(t *testing.T, every int, whole bool) {
	t.Helper()
	served := slices.Clone(e.served)
	for i := range served {
		served[i].Entries = slices.Clone(served[i].Entries)
		for j, entry := range served[i].Entries {
			served[i].Entries[j] = cutter{entry, every, whole}
		}
	}
	table, err := session.NewTable(served, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	e.table = table
	e.session.MaxMoves, e.session.Backoff, e.session.EjectFor = 1<<20, time.Microsecond, time.Nanosecond
}

// kinds are requests that use what must survive a move, each with what shows
// that it was obeyed. plain is the answer without them.
func kinds(plain []said) map[string]struct {
	change func(*Request)
	void   func(plain, got []said) string
} {
	differs := func(plain, got []said) string {
		if plain[0].Text == got[0].Text {
			return "nothing changed"
		}
		return ""
	}
	return map[string]struct {
		change func(*Request)
		void   func(plain, got []said) string
	}{
		"plain": {func(*Request) {}, func(_, got []said) string {
			if got[0].End.Count("tiny-s") == 0 || got[0].End.Count("tiny-l") == 0 {
				return "one model wrote all"
			}
			return ""
		}},
		"n": {func(r *Request) { r.N = 3 }, func(plain, got []said) string {
			switch {
			case got[0].Text != plain[0].Text:
				return "the first choice is not the answer of n = 1"
			case r3(got):
				return "all choices are the same"
			}
			return ""
		}},
		"penalties": {func(r *Request) { r.FrequencyPenalty, r.PresencePenalty, r.RepetitionPenalty = 0.4, 0.3, 1.1 }, differs},
		"bias": {func(r *Request) { r.LogitBias = map[int32]float32{plain[0].IDs[4]: -100} }, func(_, got []said) string {
			if slices.Contains(got[0].IDs, plain[0].IDs[4]) {
				return "a banned id was written"
			}
			return ""
		}},
		"min p": {func(r *Request) { r.MinP, r.TopP = 0.9, nil }, differs},
		"stop": {func(r *Request) { r.Stop = []string{"</think>\n\nThe", " = 1"} }, func(plain, got []said) string {
			for _, s := range []string{"</think>\n\nThe", " = 1"} {
				if strings.Contains(got[0].Text, s) {
					return "the stop is in the text"
				}
			}
			if !strings.HasPrefix(plain[0].Text, got[0].Text) || len(plain[0].Text) == len(got[0].Text) {
				return "the text is no beginning of the plain one"
			}
			return ""
		}},
		"logprobs": {func(r *Request) { r.Logprobs, r.TopLogprobs = true, 3 }, func(plain, got []said) string {
			if len(got[0].Logprobs) != 7*len(got[0].IDs) || got[0].Text != plain[0].Text {
				return fmt.Sprintf("%d values of %d tokens", len(got[0].Logprobs), len(got[0].IDs))
			}
			return ""
		}},
		"ignore eos": {func(r *Request) { r.IgnoreEOS, r.MaxTokens = true, 120 }, func(_, got []said) string {
			if got[0].End.Completion != 120 || got[0].End.Finish != "length" {
				return fmt.Sprintf("%+v", got[0].End)
			}
			return ""
		}},
		"min tokens": {func(r *Request) { r.MinTokens, r.MaxTokens = 100, 120 }, func(_, got []said) string {
			if got[0].End.Completion < 100 {
				return fmt.Sprintf("%+v", got[0].End)
			}
			return ""
		}},
		"all": {func(r *Request) {
			r.N, r.FrequencyPenalty, r.Stop, r.Logprobs, r.TopLogprobs = 3, 0.2, []string{"</think>"}, true, 2
			r.MinP, r.MinTokens, r.LogitBias = 0.02, 5, map[int32]float32{10: -1}
		}, differs},
	}
}

// r3 says that three answers are the same.
func r3(a []said) bool { return a[0].Text == a[1].Text && a[1].Text == a[2].Text }

// TestResumeCoversEverything breaks the entry's stream after every token, every
// third and every seventh, for requests that use everything which must survive a
// move. The answers must be those of an undisturbed run, bit for bit.
func TestResumeCoversEverything(t *testing.T) {
	quiet := start(t, nil)
	base := seeded(questions(1, 90))[0]
	hot, all := 1.8, 1.0 // enough that choices differ
	base.Temperature, base.TopP = &hot, &all
	plain, err := ask(quiet, base)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]said{}
	for name, k := range kinds(plain) {
		r := base
		k.change(&r)
		got, err := ask(quiet, r)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if v := k.void(plain, got); v != "" {
			t.Errorf("%s: void: %s: %q", name, v, got[0].Text)
		}
		want[name] = got
	}
	cuts := []int{1, 3, 7}
	if testing.Short() {
		cuts = []int{5}
	}
	for _, every := range cuts {
		e := start(t, func(cfg *Config) { cfg.Models[0].Replicas = 2 })
		e.cut(t, every, false)
		var asked sync.WaitGroup
		for name, k := range kinds(plain) {
			asked.Go(func() {
				r := base
				k.change(&r)
				got, err := ask(e, r)
				switch {
				case err != nil:
					t.Errorf("%s, cut after %d: %v", name, every, err)
				case got[0].End.Epoch < len(got[0].IDs)/every:
					t.Errorf("%s, cut after %d: void: %d moves for %d tokens", name, every, got[0].End.Epoch-1, len(got[0].IDs))
				default:
					if d := differs(got, want[name]); d != "" {
						t.Errorf("%s, cut after %d: %s", name, every, d)
					}
				}
			})
		}
		asked.Wait()
		awaitIdle(t, e)
	}
}

// TestEcho checks the prompt's tokens and log-probabilities (B17), also when the
// stream breaks after them.
func TestEcho(t *testing.T) {
	r := Request{Model: "tiny", Prompt: "What is 48 + 72?", MaxTokens: 8, Echo: true, Logprobs: true, TopLogprobs: 1, Seed: new(uint64)}
	e := start(t, nil)
	type echoed struct {
		prompt, text string
		logprobs     []float32
		n            int
	}
	get := func(r Request) (out echoed) {
		t.Helper()
		for tok, err := range e.Generate(t.Context(), r) {
			switch {
			case err != nil:
				t.Fatal(err)
			case tok.Prompt:
				out.prompt += tok.Text
				out.logprobs = append(out.logprobs, tok.Logprob)
			case tok.End != nil:
				out.n = tok.End.Prompt
				out.text += tok.Text
			default:
				out.text += tok.Text
			}
		}
		return out
	}
	whole := get(r)
	if whole.prompt != r.Prompt || len(whole.logprobs) != whole.n || whole.n < 3 || !(whole.logprobs[1] < 0) {
		t.Errorf("%+v", whole)
	}
	none := r
	none.MaxTokens, none.PromptOnly = 0, true
	if got := get(none); got.prompt != r.Prompt || got.text != "" || !slices.Equal(got.logprobs, whole.logprobs) {
		t.Errorf("the prompt alone: %+v", got)
	}
	e.cut(t, 1, false)
	if got := get(r); got.text != whole.text || got.prompt != whole.prompt || !slices.Equal(got.logprobs, whole.logprobs) {
		t.Errorf("cut: %+v, want %+v", got, whole)
	}
	awaitIdle(t, e)
}
