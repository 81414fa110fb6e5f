package fakeexec

import (
	"context"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

func small() Config {
	cfg := Default()
	cfg.Info.PageSize, cfg.Info.Pages, cfg.Info.MaxSlots = 4, 8, 3
	cfg.Info.MaxTokens, cfg.Info.MaxRows, cfg.Info.MaxContext = 12, 2, 24
	return cfg
}

func newExecutor(t *testing.T, cfg Config) *Executor {
	t.Helper()
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func open(t *testing.T, e *Executor, seed uint64) step.Slot {
	t.Helper()
	s, err := e.Open(executor.SeqConfig{Sampling: sampling.Params{Seed: seed}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// run launches and waits.
func run(t *testing.T, e *Executor, b *step.Batch) step.Result {
	t.Helper()
	ticket, err := e.Launch(b)
	if err != nil {
		t.Fatal(err)
	}
	var r step.Result
	if err := e.Wait(t.Context(), ticket, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestNewRefusesConfig(t *testing.T) {
	for name, change := range map[string]func(*executor.Info){
		"vocab":   func(i *executor.Info) { i.Vocab = 0 },
		"pages":   func(i *executor.Info) { i.Pages = -1 },
		"depth":   func(i *executor.Info) { i.Depth = 0 },
		"hidden":  func(i *executor.Info) { i.Hidden = -1 },
		"too big": func(i *executor.Info) { i.Pages, i.PageSize = 1<<20, 1<<20 },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Default()
			change(&cfg.Info)
			if _, err := New(cfg); !errors.Is(err, ErrBadConfig) {
				t.Fatalf("error %v", err)
			}
		})
	}
}

// TestRefusesBadBatches starts from slot 0 with 5 valid positions on pages 0
// and 1, and slot 1 open and empty. Every change breaks one rule of a good batch.
func TestRefusesBadBatches(t *testing.T) {
	good := func() *step.Batch {
		return &step.Batch{
			Step: 2,
			Rows: []step.Row{
				{Slot: 0, Start: 5, Tokens: []int32{1, 2, 3, 4}, Sample: 1, Logprobs: -1},
				{Slot: 1, Start: 0, Tokens: []int32{9}, Sample: 1, Logprobs: -1},
			},
			Patches: []step.PagePatch{{Slot: 0, Index: 2, Page: 2}, {Slot: 1, Index: 0, Page: 3}},
		}
	}
	for _, c := range []struct {
		want   string
		change func(*step.Batch)
	}{
		{"step follows", func(b *step.Batch) { b.Step = 3 }},
		{"0 rows", func(b *step.Batch) { b.Rows = nil }},
		{"3 rows", func(b *step.Batch) { b.Rows = append(b.Rows, b.Rows[1]) }},
		{"limit 12", func(b *step.Batch) { b.Rows[1].Tokens = make([]int32, 9) }},
		{"twice", func(b *step.Batch) { b.Rows[1] = b.Rows[0] }},
		{"not open", func(b *step.Batch) { b.Rows[1].Slot = 2 }},
		{"not open", func(b *step.Batch) { b.Rows[1].Slot = -1 }},
		{"no tokens", func(b *step.Batch) { b.Rows[1].Tokens = nil }},
		{"start 4", func(b *step.Batch) { b.Rows[0].Start = 4 }},
		{"start 6", func(b *step.Batch) { b.Rows[0].Start = 6 }},
		{"sample mask", func(b *step.Batch) { b.Rows[1].Sample = 2 }},
		{"features", func(b *step.Batch) { b.Rows[0].Want = 1 << 20 }},
		{"top 0", func(b *step.Batch) { b.Rows[0].Want = step.FTopK }},
		{"top -1", func(b *step.Batch) { b.Rows[0].TopK = -1 }},
		{"log-probabilities", func(b *step.Batch) { b.Rows[0].Logprobs = sampling.MaxLogprobs + 1 }},
		{"vocabulary", func(b *step.Batch) { b.Rows[0].Tokens[3] = 1000 }},
		{"vocabulary", func(b *step.Batch) { b.Rows[0].Tokens[3] = -1 }},
		{"vocabulary", func(b *step.Batch) { b.Rows[0].Given, b.Rows[0].Logprobs = []int32{1000}, 0 }},
		{"5 given ids for 4 tokens", func(b *step.Batch) { b.Rows[0].Given = make([]int32, 5) }},
		{"beside 4 given ids", func(b *step.Batch) { b.Rows[0].Given, b.Rows[0].Logprobs = make([]int32, 4), 0 }},
		{"without log-probabilities", func(b *step.Batch) { b.Rows[0].Given = make([]int32, 2) }},
		{"features", func(b *step.Batch) { b.Rows[0].Want = step.FAdopt }},
		{"prefix of 5 ids, 0 adopted", func(b *step.Batch) { b.Rows[0].Prefix = make([]int32, 5) }},
		{"entry 2 is not patched", func(b *step.Batch) { b.Patches = b.Patches[1:] }},
		{"in use", func(b *step.Batch) { b.Patches[1].Page = 1 }},
		{"page 2 patched twice", func(b *step.Batch) { b.Patches[1].Page = 2 }},
		{"index 2 twice", func(b *step.Batch) { b.Patches = append(b.Patches, step.PagePatch{Slot: 0, Index: 2, Page: 5}) }},
		{"valid positions", func(b *step.Batch) { b.Patches[0].Index = 1 }},
		{"index 6", func(b *step.Batch) { b.Patches[0].Index = 6 }},
		{"page 8 of 8", func(b *step.Batch) { b.Patches[0].Page = 8 }},
		{"slot 2, which is not open", func(b *step.Batch) { b.Patches[0].Slot = 2 }},
		{"9 patches", func(b *step.Batch) { b.Patches = make([]step.PagePatch, 9) }},
	} {
		t.Run(c.want, func(t *testing.T) {
			e := newExecutor(t, small())
			open(t, e, 1)
			open(t, e, 2)
			run(t, e, &step.Batch{
				Step:    1,
				Rows:    []step.Row{{Slot: 0, Tokens: []int32{1, 2, 3, 4, 5}}},
				Patches: []step.PagePatch{{Slot: 0, Index: 0, Page: 0}, {Slot: 0, Index: 1, Page: 1}},
			})
			b := good()
			c.change(b)
			if _, err := e.Launch(b); !errors.Is(err, executor.ErrBadBatch) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error %v, want %q", err, c.want)
			}
			// Nothing was run: the good batch still fits.
			if r := run(t, e, good()); len(r.Out) != 2 || r.Out[0].Position != 9 {
				t.Fatalf("result %+v", r)
			}
		})
	}
}

// TestAdopt starts slot 1 on the pages that slot 0 has filled: 9 positions on
// pages 0 to 2, of which pages 0 and 1 are full.
func TestAdopt(t *testing.T) {
	prompt := []int32{1, 2, 3, 4, 5, 6, 7, 8, 9}
	patches := func(slot step.Slot, pages ...int32) (out []step.PagePatch) {
		for i, page := range pages {
			out = append(out, step.PagePatch{Slot: slot, Index: int32(i), Page: page})
		}
		return out
	}
	good := func() *step.Batch {
		return &step.Batch{
			Step:    2,
			Rows:    []step.Row{{Slot: 1, Start: 8, Tokens: []int32{9}, Sample: 1, Logprobs: -1}},
			Patches: patches(1, 0, 1, 3),
		}
	}
	for _, c := range []struct {
		want   string
		change func(*step.Batch)
	}{
		{"page 0 is in use", func(b *step.Batch) { b.Rows[0].Start = 7 }},
		{"page 1 does not hold position 0", func(b *step.Batch) { b.Patches = patches(1, 1, 0, 3) }},
		{"page 4 does not hold position 4", func(b *step.Batch) { b.Patches = patches(1, 0, 4, 3) }},
		{"page 2 does not hold position 9", func(b *step.Batch) { b.Patches, b.Rows[0].Start = patches(1, 0, 1, 2, 3), 12 }},
		{"page 2 is in use", func(b *step.Batch) { b.Patches = patches(1, 0, 1, 2) }},
		{"page 1 is in use", func(b *step.Batch) { b.Rows[0].Start, b.Rows[0].Tokens = 4, []int32{5} }},
		{"not patched", func(b *step.Batch) { b.Patches = b.Patches[1:] }},
		{"page 0 holds id 2 at position 1, the prefix has 9", func(b *step.Batch) { b.Rows[0].Prefix = []int32{1, 9, 3, 4, 5, 6, 7, 8} }},
		{"prefix of 4 ids, 8 adopted", func(b *step.Batch) { b.Rows[0].Prefix = prompt[:4] }},
		{"page 3 is written by this step", func(b *step.Batch) { b.Patches[1].Page = 3 }},
	} {
		t.Run(c.want, func(t *testing.T) {
			e := newExecutor(t, small())
			open(t, e, 1)
			open(t, e, 1)
			want := run(t, e, &step.Batch{
				Step: 1, Rows: []step.Row{{Slot: 0, Tokens: prompt, Sample: 1, Logprobs: -1}}, Patches: patches(0, 0, 1, 2),
			})
			b := good()
			c.change(b)
			if _, err := e.Launch(b); !errors.Is(err, executor.ErrBadBatch) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error %v, want %q", err, c.want)
			}
			if got := run(t, e, good()); !reflect.DeepEqual(got.Out, want.Out) {
				t.Fatalf("adopted pages gave %+v, want %+v", got.Out, want.Out)
			}
			// A slot that is cut inside a shared page must not write there.
			if err := e.Truncate(1, 6); err != nil {
				t.Fatal(err)
			}
			cut := &step.Batch{Step: 3, Rows: []step.Row{{Slot: 1, Start: 6, Tokens: []int32{7}}}}
			if _, err := e.Launch(cut); err == nil || !strings.Contains(err.Error(), "other slots have too") {
				t.Fatalf("error %v", err)
			}
			e.Close(0)
			run(t, e, cut)
		})
	}
}

// A sequence that penalizes ids cannot adopt pages without being told them.
func TestPrefixOfPenalized(t *testing.T) {
	e := newExecutor(t, small())
	a := open(t, e, 1)
	b, err := e.Open(executor.SeqConfig{Sampling: sampling.Params{PresencePenalty: 1}})
	if err != nil {
		t.Fatal(err)
	}
	run(t, e, &step.Batch{Step: 1, Rows: []step.Row{{Slot: a, Tokens: []int32{1, 2, 3, 4}}}, Patches: []step.PagePatch{{Slot: a, Page: 5}}})
	second := &step.Batch{
		Step: 2, Rows: []step.Row{{Slot: b, Start: 4, Tokens: []int32{1}}},
		Patches: []step.PagePatch{{Slot: b, Page: 5}, {Slot: b, Index: 1, Page: 6}},
	}
	if _, err := e.Launch(second); !errors.Is(err, executor.ErrBadBatch) || !strings.Contains(err.Error(), "prefix of 0 ids") {
		t.Fatalf("error %v", err)
	}
	second.Rows[0].Prefix = []int32{1, 2, 3, 4}
	run(t, e, second)
}

// Given ids have the log-probabilities that sampling the same positions reports.
func TestGiven(t *testing.T) {
	cfg := small()
	cfg.Info.Vocab = 7
	e := newExecutor(t, cfg)
	a := open(t, e, 3)
	ids := []int32{1, 2, 3, 4, 5, 6}
	plain := run(t, e, &step.Batch{Step: 1, Patches: []step.PagePatch{{Slot: a}, {Slot: a, Index: 1, Page: 1}}, Rows: []step.Row{
		{Slot: a, Tokens: ids, Sample: 1<<6 - 1, Want: step.FLogits, Logprobs: 2}}})
	if err := e.Truncate(a, 0); err != nil {
		t.Fatal(err)
	}
	r := run(t, e, &step.Batch{Step: 2, Patches: []step.PagePatch{{Slot: a}, {Slot: a, Index: 1, Page: 1}}, Rows: []step.Row{
		{Slot: a, Tokens: ids, Given: ids[1:], Sample: 1, Logprobs: 2}}})
	if len(r.Out) != 6 || r.Out[5].Given || r.Out[5].Token != plain.Out[5].Token {
		t.Fatalf("result %+v", r.Out)
	}
	for i, o := range r.Out[:5] {
		want := plain.Out[i]
		logprob := want.Logprob - want.Logits[want.Token] + want.Logits[ids[i+1]]
		if !o.Given || o.Token != ids[i+1] || o.Position != want.Position || math.Abs(float64(o.Logprob-logprob)) > 1e-5 || !reflect.DeepEqual(o.Top, want.Top) {
			t.Errorf("given %+v, want log-probability %v and %v", o, logprob, want.Top)
		}
	}
}

// What Info does not offer is refused, and so are parameters out of range.
func TestOpenChecks(t *testing.T) {
	cfg := small()
	cfg.Info.Features = step.Outputs
	e := newExecutor(t, cfg)
	if _, err := e.Open(executor.SeqConfig{Sampling: sampling.Params{MinP: 0.5}}); !errors.Is(err, executor.ErrUnsupported) {
		t.Errorf("error %v", err)
	}
	if _, err := e.Open(executor.SeqConfig{Sampling: sampling.Params{TopK: -1}}); err == nil {
		t.Error("no error")
	}
	a := open(t, e, 1)
	b := &step.Batch{Step: 1, Patches: []step.PagePatch{{Slot: a}}, Rows: []step.Row{{Slot: a, Tokens: []int32{1, 2}, Given: []int32{2}}}}
	if _, err := e.Launch(b); !errors.Is(err, executor.ErrBadBatch) || !strings.Contains(err.Error(), "not offered") {
		t.Errorf("error %v", err)
	}
}

// Pages that a step in flight writes must not be adopted.
func TestRefusesAdoptionInFlight(t *testing.T) {
	cfg := small()
	cfg.Info.Depth = 2
	e := newExecutor(t, cfg)
	a, b := open(t, e, 1), open(t, e, 2)
	ticket, err := e.Launch(&step.Batch{
		Step: 1, Rows: []step.Row{{Slot: a, Tokens: []int32{1, 2, 3, 4}}}, Patches: []step.PagePatch{{Slot: a, Page: 5}},
	})
	if err != nil {
		t.Fatal(err)
	}
	second := &step.Batch{
		Step: 2, Rows: []step.Row{{Slot: b, Start: 4, Tokens: []int32{1}}},
		Patches: []step.PagePatch{{Slot: b, Page: 5}, {Slot: b, Index: 1, Page: 6}},
	}
	if _, err := e.Launch(second); err == nil || !strings.Contains(err.Error(), "written by a step in flight") {
		t.Fatalf("error %v", err)
	}
	var r step.Result
	if err := e.Wait(t.Context(), ticket, &r); err != nil {
		t.Fatal(err)
	}
	run(t, e, second)
}

func TestContextLimit(t *testing.T) {
	cfg := small()
	cfg.Info.MaxTokens = 64
	e := newExecutor(t, cfg)
	open(t, e, 1)
	b := &step.Batch{Step: 1, Rows: []step.Row{{Tokens: make([]int32, 25)}}}
	if _, err := e.Launch(b); !errors.Is(err, executor.ErrBadBatch) {
		t.Fatalf("error %v", err)
	}
}

// A page given up in flight must not go to another sequence before its step was waited for.
func TestRefusesPageOfStepInFlight(t *testing.T) {
	cfg := small()
	cfg.Info.Depth = 2
	e := newExecutor(t, cfg)
	a := open(t, e, 1)
	ticket, err := e.Launch(&step.Batch{
		Step: 1, Rows: []step.Row{{Slot: a, Tokens: []int32{1}}},
		Patches: []step.PagePatch{{Slot: a, Page: 5}},
	})
	if err != nil {
		t.Fatal(err)
	}
	e.Close(a)
	b := open(t, e, 2)
	if a != b {
		t.Fatalf("slot %d not reused, got %d", a, b)
	}
	second := &step.Batch{
		Step: 2, Rows: []step.Row{{Slot: b, Tokens: []int32{1}}},
		Patches: []step.PagePatch{{Slot: b, Page: 5}},
	}
	if _, err := e.Launch(second); !errors.Is(err, executor.ErrBadBatch) {
		t.Fatalf("error %v", err)
	}
	var r step.Result
	if err := e.Wait(t.Context(), ticket, &r); err != nil {
		t.Fatal(err)
	}
	run(t, e, second)
}

// Pages past the truncated length belong to nobody: feeding again needs patches.
func TestTruncate(t *testing.T) {
	e := newExecutor(t, small())
	a := open(t, e, 1)
	run(t, e, &step.Batch{
		Step: 1, Rows: []step.Row{{Slot: a, Tokens: []int32{1, 2, 3, 4, 5, 6}}},
		Patches: []step.PagePatch{{Slot: a, Index: 0, Page: 0}, {Slot: a, Index: 1, Page: 1}},
	})
	for _, n := range []int{7, -1} {
		if err := e.Truncate(a, n); !errors.Is(err, executor.ErrBadBatch) {
			t.Errorf("truncate to %d: %v", n, err)
		}
	}
	if err := e.Truncate(a+1, 0); !errors.Is(err, executor.ErrBadBatch) {
		t.Errorf("truncate of a closed slot: %v", err)
	}
	if err := e.Truncate(a, 3); err != nil {
		t.Fatal(err)
	}
	b := open(t, e, 2)
	run(t, e, &step.Batch{
		Step: 2, Rows: []step.Row{{Slot: b, Tokens: []int32{8}}},
		Patches: []step.PagePatch{{Slot: b, Page: 1}},
	})
	row := step.Row{Slot: a, Start: 3, Tokens: []int32{7, 8}, Sample: 1, Logprobs: -1}
	if _, err := e.Launch(&step.Batch{Step: 3, Rows: []step.Row{row}}); !errors.Is(err, executor.ErrBadBatch) {
		t.Fatalf("error %v", err)
	}
	r := run(t, e, &step.Batch{Step: 3, Rows: []step.Row{row}, Patches: []step.PagePatch{{Slot: a, Index: 1, Page: 2}}})
	cfg := executor.SeqConfig{Sampling: sampling.Params{Seed: 1}}
	if want := Hashed(1000)(cfg, []int32{1, 2, 3, 7, 8}).Token; r.Out[0].Token != want {
		t.Errorf("token %d, want %d", r.Out[0].Token, want)
	}
}

func TestDepthAndOrder(t *testing.T) {
	cfg := small()
	cfg.Info.Depth = 2
	e := newExecutor(t, cfg)
	var tickets []executor.Ticket
	for n := range 3 {
		s := open(t, e, uint64(n))
		ticket, err := e.Launch(&step.Batch{
			Step: uint64(n + 1), Rows: []step.Row{{Slot: s, Tokens: []int32{1}}},
			Patches: []step.PagePatch{{Slot: s, Page: int32(n)}},
		})
		if n == 2 {
			if !errors.Is(err, executor.ErrBadBatch) {
				t.Fatalf("third step in flight: %v", err)
			}
			break
		}
		tickets = append(tickets, ticket)
	}
	var r step.Result
	if err := e.Wait(t.Context(), tickets[1], &r); err == nil {
		t.Fatal("waited out of order")
	}
	for _, ticket := range tickets {
		if err := e.Wait(t.Context(), ticket, &r); err != nil {
			t.Fatal(err)
		}
	}
}

func TestStepTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := small()
		cfg.Info.Depth = 2
		cfg.StepTime = Roofline(10*time.Millisecond, 4*time.Millisecond)
		e := newExecutor(t, cfg)
		a, b := open(t, e, 1), open(t, e, 2)
		start := time.Now()
		first, err1 := e.Launch(&step.Batch{
			Step: 1, Rows: []step.Row{{Slot: a, Tokens: []int32{1}}}, Patches: []step.PagePatch{{Slot: a, Page: 0}},
		})
		second, err2 := e.Launch(&step.Batch{
			Step: 2, Rows: []step.Row{{Slot: b, Tokens: []int32{1, 2, 3, 4, 5}}},
			Patches: []step.PagePatch{{Slot: b, Page: 1}, {Slot: b, Index: 1, Page: 2}},
		})
		if err1 != nil || err2 != nil || time.Since(start) != 0 {
			t.Fatalf("launch: %v, %v, blocked for %v", err1, err2, time.Since(start))
		}
		var r step.Result
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Millisecond)
		defer cancel()
		if err := e.Wait(ctx, first, &r); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 3*time.Millisecond {
			t.Fatalf("wait: %v after %v", err, time.Since(start))
		}
		if err := e.Wait(t.Context(), first, &r); err != nil || time.Since(start) != 10*time.Millisecond {
			t.Fatalf("wait again: %v after %v", err, time.Since(start))
		}
		// The second step queued behind the first. Shutdown waits for it.
		if err := e.Shutdown(); err != nil || time.Since(start) != 30*time.Millisecond {
			t.Fatalf("shutdown: %v after %v", err, time.Since(start))
		}
		if err := e.Wait(t.Context(), second, &r); !errors.Is(err, executor.ErrClosed) {
			t.Fatalf("wait after shutdown: %v", err)
		}
		if s := e.Stats(); s.Steps != 1 || s.StepTime != 10*time.Millisecond {
			t.Errorf("stats %+v", s)
		}
	})
}

func TestFailure(t *testing.T) {
	cfg := small()
	xid := errors.New("fell off the bus")
	cfg.Fail = func(n uint64) error {
		if n == 2 {
			return xid
		}
		return nil
	}
	e := newExecutor(t, cfg)
	a := open(t, e, 1)
	run(t, e, &step.Batch{Step: 1, Rows: []step.Row{{Slot: a, Tokens: []int32{1}}}, Patches: []step.PagePatch{{Slot: a}}})
	next := &step.Batch{Step: 2, Rows: []step.Row{{Slot: a, Start: 1, Tokens: []int32{1}}}}
	ticket, err := e.Launch(next)
	if err != nil {
		t.Fatal(err)
	}
	var r step.Result
	if err := e.Wait(t.Context(), ticket, &r); !errors.Is(err, executor.ErrFailed) || !errors.Is(err, xid) {
		t.Fatalf("error %v", err)
	}
	_, openErr := e.Open(executor.SeqConfig{})
	_, launchErr := e.Launch(next)
	for name, err := range map[string]error{"open": openErr, "launch": launchErr, "truncate": e.Truncate(a, 0)} {
		if !errors.Is(err, executor.ErrFailed) {
			t.Errorf("%s after failure: %v", name, err)
		}
	}
	e.Close(a)
	if err := e.Shutdown(); err != nil {
		t.Error(err)
	}
}

func TestSlots(t *testing.T) {
	e := newExecutor(t, small())
	for range 3 {
		open(t, e, 0)
	}
	if _, err := e.Open(executor.SeqConfig{}); !errors.Is(err, executor.ErrNoSlot) {
		t.Fatalf("error %v", err)
	}
	e.Close(1)
	e.Close(1)
	e.Close(-1)
	e.Close(99)
	if got := e.Stats().OpenSlots; got != 2 {
		t.Errorf("%d open", got)
	}
	if s := open(t, e, 0); s != 1 {
		t.Errorf("slot %d", s)
	}
	if err := errors.Join(e.Shutdown(), e.Shutdown()); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Open(executor.SeqConfig{}); !errors.Is(err, executor.ErrClosed) {
		t.Errorf("error %v", err)
	}
}

// Features agree with each other, and several positions of a row can be sampled.
func TestFeatures(t *testing.T) {
	cfg := small()
	cfg.Info.Vocab = 7
	e := newExecutor(t, cfg)
	a := open(t, e, 3)
	row := step.Row{
		Slot: a, Tokens: []int32{1, 2, 3}, Sample: 0b101,
		Want: step.Outputs, TopK: 5, Logprobs: 2,
	}
	r := run(t, e, &step.Batch{Step: 1, Rows: []step.Row{row}, Patches: []step.PagePatch{{Slot: a}}})
	if len(r.Out) != 2 || r.Out[0].Position != 1 || r.Out[1].Position != 3 {
		t.Fatalf("result %+v", r.Out)
	}
	for _, o := range r.Out {
		sum := 0.0
		best := 0
		for id, z := range o.Logits {
			sum += math.Exp(float64(z))
			if z > o.Logits[best] {
				best = id
			}
		}
		if int32(best) != o.Token || len(o.Top) != 5 || o.Top[0].ID != o.Token || len(o.Hidden) != cfg.Info.Hidden {
			t.Errorf("token %d, best %d, top %v", o.Token, best, o.Top)
		}
		for i, top := range o.Top {
			want := float64(o.Logits[top.ID]) - math.Log(sum)
			if top.Logit != o.Logits[top.ID] || math.Abs(float64(top.Logprob)-want) > 1e-5 || i > 0 && top.Logit >= o.Top[i-1].Logit {
				t.Errorf("entry %d of %+v, want log-probability %v", i, o.Top, want)
			}
		}
		if o.Logprob != o.Top[0].Logprob || o.Margin != o.Top[0].Logit-o.Top[1].Logit {
			t.Errorf("log-probability %v, margin %v of %+v", o.Logprob, o.Margin, o.Top)
		}
		if o.Entropy < 0 || o.Entropy > o.LogV || o.Score < 0 || o.Score >= 1 {
			t.Errorf("entropy %v of %v, score %v", o.Entropy, o.LogV, o.Score)
		}
	}
}

func TestHashedDependsOnSeedModelAndIDs(t *testing.T) {
	script := Hashed(1 << 20)
	cfg := executor.SeqConfig{Sampling: sampling.Params{Seed: 1}}
	base := script(cfg, []int32{1, 2, 3})
	if !reflect.DeepEqual(base, script(cfg, []int32{1, 2, 3})) {
		t.Error("not deterministic")
	}
	other, second := cfg, cfg
	other.Sampling.Seed = 2
	second.Model = 1
	for name, got := range map[string]Sampled{
		"seed": script(other, []int32{1, 2, 3}), "model": script(second, []int32{1, 2, 3}),
		"first id": script(cfg, []int32{0, 2, 3}), "length": script(cfg, []int32{1, 2}),
	} {
		if got.Token == base.Token {
			t.Errorf("%s makes no difference", name)
		}
	}
}
