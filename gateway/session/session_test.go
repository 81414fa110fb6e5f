package session_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/gateway/session"
	"github.com/tokenrouter/tokenrouter/gateway/session/sessiontest"
	"github.com/tokenrouter/tokenrouter/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// served is a deployment of two models with the given entries.
func served(t *testing.T, entries ...session.Entry) *session.Served {
	t.Helper()
	table, err := session.NewTable([]session.Deployment{{
		Name: "tiny", Models: []string{"tiny-s", "tiny-l"}, Entries: entries, MaxContext: 512, Vocab: 1000,
	}}, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return table.Find("tiny")
}

// result is all that a session told.
type result struct {
	prompt string
	text   string
	tokens []generate.Token
	finish generate.Finish
	epoch  uint32
	cached int
}

// drive runs one session to its end.
func drive(t *testing.T, cfg session.Config, d *session.Served, set session.Settings) (r result, err error) {
	t.Helper()
	if cfg.Backoff == 0 {
		cfg.Backoff = time.Microsecond
	}
	cfg = cfg.WithDefaults()
	requests, err := d.Requests(&set, generate.Request{Prompt: "x"})
	if err != nil {
		return r, err
	}
	s := session.New(&cfg, d, &requests[0])
	defer s.Close()
	if err := s.Open(t.Context()); err != nil {
		return r, err
	}
	for {
		u, err := s.Next(t.Context())
		if err != nil {
			return r, err
		}
		for i := range u.Prompt {
			r.prompt += u.Prompt[i].Text
		}
		for i := range u.Tokens {
			r.text += u.Tokens[i].Show
			r.tokens = append(r.tokens, generate.Token{ID: u.Tokens[i].ID, Model: u.Tokens[i].Model})
		}
		r.epoch, r.cached = u.Epoch, max(r.cached, u.Cached)
		if u.Done {
			r.text += u.Tail
			r.finish = u.Finish
			return r, nil
		}
	}
}

// spelled is a script of one token for each text; an empty one is half of a character.
func spelled(tail string, texts ...string) *sessiontest.Script {
	s := &sessiontest.Script{Finish: generate.FinishStop, Tail: tail}
	for i, text := range texts {
		s.Tokens = append(s.Tokens, generate.TokenEvent{ID: int32(10 + i), Model: uint8(i % 2), Text: text})
	}
	return s
}

// stopCases are answers with stops, and what must be seen of them.
func stopCases() []struct {
	name   string
	script *sessiontest.Script
	set    session.Settings
	text   string
	tokens int
	finish generate.Finish
} {
	alphabet := spelled("", " H", " I", " J", " K", " L", " M", " N", " O", " P", " Q")
	halves := spelled("�", "a", "", "🦄", "b", "", "漢", "c", "")
	return []struct {
		name   string
		script *sessiontest.Script
		set    session.Settings
		text   string
		tokens int
		finish generate.Finish
	}{
		{"B01 over five tokens", alphabet, session.Settings{Stops: []string{"K L M N O"}}, " H I J ", 8, generate.FinishStop},
		{"never", alphabet, session.Settings{Stops: []string{"K L M X", "###END###"}}, " H I J K L M N O P Q", 10, generate.FinishStop},
		{"inside a token", spelled("", "ab", "cdef", "g"), session.Settings{Stops: []string{"de"}}, "abc", 2, generate.FinishStop},
		{"first token", alphabet, session.Settings{Stops: []string{" H"}}, "", 1, generate.FinishStop},
		{"last token", alphabet, session.Settings{Stops: []string{" Q"}}, " H I J K L M N O P", 10, generate.FinishStop},
		{"four stops", alphabet, session.Settings{Stops: []string{"X", "N O P", "M N", "Z"}}, " H I J K L ", 7, generate.FinishStop},
		{"characters over tokens", halves, session.Settings{Stops: []string{"b漢"}}, "a🦄", 6, generate.FinishStop},
		{"in the tail", halves, session.Settings{Stops: []string{"c�"}}, "a🦄b漢", 8, generate.FinishStop},
		{"B04 held at the end", alphabet, session.Settings{Stops: []string{"P Q R"}}, " H I J K L M N O P Q", 10, generate.FinishStop},
		{"held at the limit", alphabet, session.Settings{Stops: []string{"K L M X"}, MaxTokens: 5}, " H I J K L", 5, generate.FinishLength},
		{"at the limit", alphabet, session.Settings{Stops: []string{"K L"}, MaxTokens: 5}, " H I J ", 5, generate.FinishStop},
		{"min tokens", spelled("", "x", "x", "x", "x"), session.Settings{Stops: []string{"x"}, MinTokens: 3}, "xx", 3, generate.FinishStop},
	}
}

// TestStopsAtEveryPosition kills the entry before every event, once and after
// every token. The answer must stay what it is, and the entry must be let go.
func TestStopsAtEveryPosition(t *testing.T) {
	for _, tc := range stopCases() {
		for position := -2; position <= len(tc.script.Tokens); position++ {
			edit := func(r *generate.Request, at int, e *generate.Event) ([]*generate.Event, error) {
				if at == position && r.Epoch == 1 {
					return nil, sessiontest.ErrKilled
				}
				if position == -2 && at >= 0 && r.Resume != nil && at > len(r.Resume.Tokens) && at < len(tc.script.Tokens) {
					return nil, sessiontest.ErrKilled // one token a life
				}
				return sessiontest.Pass(e)
			}
			e := &sessiontest.Entry{ID: "e", Script: tc.script, Edit: edit}
			tc.set.Logprobs = -1
			synctest.Test(t, func(t *testing.T) {
				got, err := drive(t, session.Config{}, served(t, e), tc.set)
				if err != nil {
					t.Fatalf("%s, killed at %d: %v", tc.name, position, err)
				}
				if got.text != tc.text || len(got.tokens) != tc.tokens || got.finish != tc.finish {
					t.Errorf("%s, killed at %d: %q, %d tokens, finish %d", tc.name, position, got.text, len(got.tokens), got.finish)
				}
				synctest.Wait()
				if n := e.Active.Load(); n != 0 {
					t.Errorf("%s: %d streams are left", tc.name, n)
				}
			})
		}
	}
}

// TestStopDropsLaterTokens has all tokens arrive in one event, as when a
// collaborator has committed past the stop.
func TestStopDropsLaterTokens(t *testing.T) {
	for _, tc := range stopCases() {
		e := &sessiontest.Entry{ID: "e", Script: tc.script}
		limit := len(tc.script.Tokens)
		if tc.set.MaxTokens > 0 {
			limit = min(limit, int(tc.set.MaxTokens))
		}
		e.Edit = func(_ *generate.Request, at int, ev *generate.Event) ([]*generate.Event, error) {
			if at == 0 {
				ev.Tokens = slices.Clone(tc.script.Tokens[:limit])
			}
			return sessiontest.Pass(ev)
		}
		tc.set.Logprobs = -1
		got, err := drive(t, session.Config{}, served(t, e), tc.set)
		if err != nil || got.text != tc.text || len(got.tokens) != tc.tokens || got.finish != tc.finish || got.epoch != 1 {
			t.Errorf("%s: %+v, %v", tc.name, got, err)
		}
	}
}

// TestEcho checks the prompt's tokens, also when the entry dies before, among
// and after them.
func TestEcho(t *testing.T) {
	s := sessiontest.Words(4)
	s.Prompt = []generate.TokenEvent{{ID: 7, Text: "A"}, {ID: 8, Text: " B", Logprob: -1}, {ID: 9, Text: " C", Logprob: -2}}
	for _, none := range []bool{false, true} {
		for died := -1; died < 6; died++ {
			e := &sessiontest.Entry{ID: "e", Script: s}
			e.Edit = func(r *generate.Request, at int, ev *generate.Event) ([]*generate.Event, error) {
				if r.Epoch > 1 {
					return sessiontest.Pass(ev)
				}
				if at == died {
					return nil, sessiontest.ErrKilled
				}
				return sessiontest.Pass(ev)
			}
			got, err := drive(t, session.Config{}, served(t, e), session.Settings{Logprobs: 0, Echo: true, NoTokens: none})
			text, n, finish := s.Text(), 4, generate.FinishStop
			if none {
				text, n, finish = "", 0, generate.FinishLength
			}
			if err != nil || got.prompt != "A B C" || got.text != text || len(got.tokens) != n || got.finish != finish {
				t.Errorf("none %t, died at %d: %+v, %v", none, died, got, err)
			}
			if last := e.Requests()[len(e.Requests())-1]; died > 0 && !none && died < 4 && last.Echo {
				t.Errorf("the prompt was asked for again at %d", died)
			}
		}
	}
	bad := &sessiontest.Entry{ID: "e", Script: s, Edit: func(_ *generate.Request, at int, ev *generate.Event) ([]*generate.Event, error) {
		if at < 0 {
			ev.PromptIDs = []int32{7, 8, 9, 10} // the last is never recited
		}
		return sessiontest.Pass(ev)
	}}
	if _, err := drive(t, session.Config{}, served(t, bad), session.Settings{Logprobs: -1, Echo: true}); !errors.Is(err, session.ErrLost) {
		t.Errorf("an entry that does not recite: %v", err)
	}
}

// A dial that was given up fails with a context's error. That is not the end of the
// client's own context: callers would say nothing to a client that is still there.
func TestLostIsNoEndOfTheClient(t *testing.T) {
	for _, failure := range []error{context.Canceled, context.DeadlineExceeded} {
		e := &sessiontest.Entry{ID: "e", Script: sessiontest.Words(2), Submit: func(context.Context) error { return fmt.Errorf("dial: %w", failure) }}
		_, err := drive(t, session.Config{}, served(t, e), session.Settings{Logprobs: -1})
		if !errors.Is(err, session.ErrLost) || errors.Is(err, failure) || !strings.Contains(err.Error(), failure.Error()) {
			t.Errorf("after %v: %v", failure, err)
		}
	}
}

// silent waits for ever at one position of the first epoch, or of all.
func silent(at int, always bool) func(context.Context, int) error {
	epochs := 0
	return func(ctx context.Context, position int) error {
		if position != at || epochs > 0 && !always {
			return nil
		}
		epochs++
		<-ctx.Done()
		return ctx.Err()
	}
}

// TestStall has an entry fall silent: before a sign of life that is a queue,
// after one it is a stall and the request moves.
func TestStall(t *testing.T) {
	s := sessiontest.Words(6)
	t.Run("after a token", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			e := &sessiontest.Entry{ID: "e", Script: s, Gate: silent(3, false)}
			got, err := drive(t, session.Config{}, served(t, e), session.Settings{Logprobs: -1})
			if took := time.Since(began); err != nil || got.text != s.Text() || got.epoch != 2 || took < 30*time.Second || took > 31*time.Second {
				t.Errorf("%+v, %v after %s", got, err, took)
			}
		})
	})
	t.Run("always", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := &sessiontest.Entry{ID: "e", Script: s, Gate: silent(1, true)}
			other := &sessiontest.Entry{ID: "o", Script: s}
			got, err := drive(t, session.Config{StallAfter: time.Second}, served(t, e, other), session.Settings{Logprobs: -1})
			if err != nil || got.text != s.Text() || got.epoch > 3 {
				t.Errorf("%+v, %v", got, err)
			}
		})
	})
	// An entry that waits in its queue and says so is never given up; one that has
	// shown no sign of life yet may wait too.
	for _, every := range []time.Duration{generate.AliveEvery, 0} {
		synctest.Test(t, func(t *testing.T) {
			e := &sessiontest.Entry{ID: "e", Script: s}
			e.Gate = func(ctx context.Context, position int) error {
				if position == 0 && every == 0 {
					return sessiontest.After(10 * time.Minute)(ctx)
				}
				return nil
			}
			e.Edit = func(_ *generate.Request, at int, ev *generate.Event) ([]*generate.Event, error) {
				out := []*generate.Event{ev}
				if at == -1 && every > 0 {
					for range 100 {
						out = append(out, &generate.Event{Kind: generate.EventAlive, Epoch: ev.Epoch})
					}
				}
				return out, nil
			}
			e.Added = sessiontest.After(every)
			got, err := drive(t, session.Config{}, served(t, e), session.Settings{Logprobs: -1})
			if err != nil || got.epoch != 1 || got.text != s.Text() {
				t.Errorf("alive every %s: %+v, %v", every, got, err)
			}
		})
	}
}

// TestSubmissionStalls has an entry that never answers a submission.
func TestSubmissionStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hung := &sessiontest.Entry{ID: "hung", Script: sessiontest.Words(2), Submit: sessiontest.After(time.Hour)}
		good := &sessiontest.Entry{ID: "good", Script: sessiontest.Words(2)}
		for range 2 {
			got, err := drive(t, session.Config{}, served(t, hung, good), session.Settings{Logprobs: -1})
			if err != nil || len(got.tokens) != 2 {
				t.Errorf("%+v, %v", got, err)
			}
		}
	})
}

func TestRequests(t *testing.T) {
	d := served(t)
	seed, zero, tiny, k := uint64(7), 0.0, 1e-50, int32(1<<30)
	set := session.Settings{
		Temperature: &zero, TopP: &tiny, TopK: &k, MinP: 0.5, RepetitionPenalty: 2, FrequencyPenalty: 1, PresencePenalty: -1,
		LogitBias: map[int32]float32{9: 1, 3: -100, 5: 2}, Seed: &seed, MaxTokens: 5, MinTokens: 2, Logprobs: 3,
		StopIDs: []int32{4}, IgnoreEOS: true, N: 8, Salt: make([]byte, generate.SaltBytes),
	}
	rs, err := d.Requests(&set, generate.Request{Prompt: "x"})
	if err != nil || len(rs) != 8 {
		t.Fatalf("%d requests, %v", len(rs), err)
	}
	p := rs[0].Sampling
	want := []sampling.Bias{{ID: 3, Value: -100}, {ID: 5, Value: 2}, {ID: 9, Value: 1}}
	if !p.Greedy() || !(p.TopP > 0) || p.TopK != 1000 || p.MinP != 0.5 || p.RepetitionPenalty != 2 || p.FrequencyPenalty != 1 || p.PresencePenalty != -1 ||
		!slices.Equal(p.LogitBias, want) || p.MaxTokens != 5 || p.MinTokens != 2 || p.Logprobs != 3 || !slices.Equal(p.StopIDs, []int32{4}) ||
		!rs[0].IgnoreEOS || len(rs[0].Salt) != generate.SaltBytes || rs[0].DefaultMaxTokens {
		t.Errorf("%+v", rs[0])
	}
	// The seeds of choices are pinned: they are part of what a seed promises.
	seeds := map[uint64]bool{}
	ids := map[uint64]bool{}
	for _, r := range rs {
		seeds[r.Sampling.Seed] = true
		ids[r.ID] = true
		if err := r.Check(); err != nil {
			t.Error(err)
		}
	}
	if len(seeds) != 8 || len(ids) != 8 || p.Seed != 7 || rs[1].Sampling.Seed != 0x63cbe1e459320dd7 {
		t.Errorf("seeds %v, the second is %#x", seeds, rs[1].Sampling.Seed)
	}
	for field, set := range map[string]session.Settings{
		"n":              {N: 9},
		"stop":           {Stops: []string{strings.Repeat("x", 257)}},
		"max_tokens":     {MaxTokens: 513},
		"min_tokens":     {MaxTokens: 4, MinTokens: 5},
		"logit_bias":     {LogitBias: map[int32]float32{1000: 1}},
		"stop_token_ids": {StopIDs: []int32{1000}},
		"min_p":          {MinP: 2},
	} {
		_, err := d.Requests(&set, generate.Request{Prompt: "x"})
		var f *sampling.FieldError
		if !errors.Is(err, session.ErrSettings) || !errors.As(err, &f) || f.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestCauses(t *testing.T) {
	stop, length := generate.FinishStop, generate.FinishLength
	for _, tc := range []struct {
		got, want session.Cause
	}{
		{session.CauseOf(stop), session.CauseStop},
		{session.CauseOf(length, length), session.CauseLength},
		{session.CauseOf(stop, length), session.CauseDone},
		{session.CauseOfError(fmt.Errorf("x: %w", session.ErrLost)), session.CauseWorkerLost},
		{session.CauseOfError(session.ErrNoCapacity), session.CauseShed},
		{session.CauseOfError(context.Canceled), session.CauseClientClosed},
		{session.CauseOfError(context.DeadlineExceeded), session.CauseDeadline},
		{session.CauseOfError(&generate.Error{Code: generate.CodeContextLength}), session.CauseBadRequest},
		{session.CauseOfError(&generate.Error{Code: generate.CodeQueueFull}), session.CauseShed},
		{session.CauseOfError(&generate.Error{Code: generate.CodeUnavailable}), session.CauseWorkerLost},
		{session.CauseOfError(&generate.Error{Code: generate.CodeInternal}), session.CauseInternal},
		{session.CauseOfError(session.ErrPanic), session.CauseInternal},
	} {
		if tc.got != tc.want {
			t.Errorf("got %s, want %s", tc.got, tc.want)
		}
	}
}
