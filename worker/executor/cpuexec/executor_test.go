package cpuexec

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

func TestConfigDefaultsAndBounds(t *testing.T) {
	k := oddModel(t)
	defer k.Close()
	c, err := Config{Vocab: oddVocab}.withDefaults(k)
	if err != nil {
		t.Fatal(err)
	}
	want := Config{Name: "odd", Vocab: oddVocab, PageSize: 64, Pages: 64 * 4, MaxSlots: 64, MaxTokens: 512, MaxRows: 64, MaxContext: 256, Workers: 1}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("defaults %+v, want %+v", c, want)
	}
	tests := []struct {
		field string
		cfg   Config
	}{
		{"Vocab", Config{}},
		{"Vocab", Config{Vocab: 42}},
		{"PageSize", Config{Vocab: 1, PageSize: -1}},
		{"PageSize", Config{Vocab: 1, PageSize: 1 << 20}},
		{"MaxSlots", Config{Vocab: 1, MaxSlots: 1 << 30}},
		{"MaxTokens", Config{Vocab: 1, MaxTokens: -5}},
		{"MaxContext", Config{Vocab: 1, MaxContext: 257}},
		{"Workers", Config{Vocab: 1, Workers: -1}},
		{"Pages", Config{Vocab: 1, Pages: 1 << 40}},
		{"bytes", Config{Vocab: 1, Pages: maxPages, PageSize: maxPageSize}},
	}
	for _, tc := range tests {
		if _, err := New(tc.cfg, k); err == nil || !strings.Contains(err.Error(), tc.field) {
			t.Errorf("%+v: error %v does not mention %s", tc.cfg, err, tc.field)
		}
	}
}

func TestOpenRefusesBadSampling(t *testing.T) {
	e := newOdd(t, Config{MaxSlots: 2})
	for _, p := range []sampling.Params{{Temperature: -1}, {Temperature: 1e9}, {TopP: -0.1}, {TopP: 1.1}, {TopK: -1}, {LogitBias: []sampling.Bias{{ID: oddVocab}}}} {
		if _, err := e.Open(executor.SeqConfig{Sampling: p}); err == nil {
			t.Errorf("%+v: no error", p)
		}
	}
	if got := e.Stats().OpenSlots; got != 0 {
		t.Errorf("%d slots open", got)
	}
}

// TestWorkersLeaveNoTrace compares one worker with several on steps that are
// large enough to be split.
func TestWorkersLeaveNoTrace(t *testing.T) {
	logits := func(workers int) []float32 {
		e := newTrio(t, "tiny-m", Config{MaxSlots: 1, MaxContext: 256, Workers: workers})
		ids := make([]int32, 200)
		for i := range ids {
			ids[i] = int32(i * 13 % trioVocab)
		}
		s := open(t, e, sampling.Params{})
		var r step.Result
		run(t, e, &step.Batch{Patches: patches(s, 0, 4), Rows: []step.Row{{Slot: s, Tokens: ids, Sample: 1 << 20, Want: step.FLogits, Logprobs: -1}}}, &r)
		return r.Out[0].Logits
	}
	want := logits(1)
	for _, workers := range []int{2, 5} {
		if !slices.Equal(logits(workers), want) {
			t.Errorf("%d workers give other bits", workers)
		}
	}
}

// TestCloseDuringStep closes and reopens slots while a step reads their tables.
func TestCloseDuringStep(t *testing.T) {
	e := newOdd(t, Config{MaxSlots: 1, PageSize: 4, Pages: 8})
	// The counts of the ids are given away with the slot, too.
	penalized := sampling.Params{RepetitionPenalty: 2}
	row := func(s step.Slot) *step.Batch {
		return &step.Batch{Patches: patches(s, 0, 3), Rows: []step.Row{{Slot: s, Tokens: []int32{1, 2, 3, 4, 5, 6, 7, 8, 9}, Sample: 1, Want: step.FLogits, Logprobs: -1}}}
	}
	a := open(t, e, penalized)
	var want, got step.Result
	run(t, e, row(a), &want)
	e.Close(a)
	for range 20 {
		b := open(t, e, penalized)
		ticket, err := e.Launch(row(b))
		if err != nil {
			t.Fatal(err)
		}
		e.Close(b)
		c := open(t, e, penalized) // the only slot, while the step may still run
		e.Close(c)
		if err := e.Wait(context.Background(), ticket, &got); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got.Out[0].Logits, want.Out[0].Logits) || got.Out[0].Token != want.Out[0].Token {
			t.Fatal("the step in flight saw the slot's new life")
		}
	}
}

// TestPanicFailsTheModel breaks the weights, so that a helper or the step loop
// panics, and looks for a typed error instead of a crash.
func TestPanicFailsTheModel(t *testing.T) {
	for _, workers := range []int{1, 3} {
		e := newTrio(t, "tiny-s", Config{MaxSlots: 1, MaxContext: 256, Workers: workers})
		s := open(t, e, sampling.Params{})
		e.w.layers[1].down.bf16 = e.w.layers[1].down.bf16[:100:100]
		b := &step.Batch{Patches: patches(s, 0, 4), Rows: []step.Row{{Slot: s, Tokens: make([]int32, 200), Logprobs: -1}}}
		ticket, err := e.Launch(b)
		if err != nil {
			t.Fatal(err)
		}
		var r step.Result
		if err := e.Wait(context.Background(), ticket, &r); !errors.Is(err, executor.ErrFailed) {
			t.Errorf("wait: error %v, want ErrFailed", err)
		}
		if _, err := e.Launch(b); !errors.Is(err, executor.ErrFailed) {
			t.Errorf("launch: error %v, want ErrFailed", err)
		}
		if _, err := e.Open(executor.SeqConfig{}); !errors.Is(err, executor.ErrFailed) {
			t.Errorf("open: error %v, want ErrFailed", err)
		}
	}
}

// TestStepAllocatesLittle holds the hot path to a handful of small allocations.
func TestStepAllocatesLittle(t *testing.T) {
	tests := []struct {
		name string
		p    sampling.Params
		row  step.Row
	}{
		{"plain", sampling.Params{Temperature: 1, TopK: 5, TopP: 0.9},
			step.Row{Tokens: []int32{1}, Sample: 1, Want: step.FEntropy | step.FHidden, Logprobs: 2}},
		{"adjusted", sampling.Params{Temperature: 1, MinP: 0.1, RepetitionPenalty: 1.1, FrequencyPenalty: 1, LogitBias: []sampling.Bias{{ID: 1, Value: 1}}},
			step.Row{Tokens: []int32{1, 2, 1, 3}, Sample: 0b1101, Logprobs: 2}},
		{"scored", sampling.Params{},
			step.Row{Tokens: []int32{1}, Sample: 1, Want: step.FScore, Logprobs: -1}},
		{"given", sampling.Params{},
			step.Row{Tokens: []int32{1, 2, 1, 3}, Given: []int32{2, 1, 3}, Sample: 1, Logprobs: 5}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			e := newOdd(t, Config{MaxSlots: 1, Nets: fold(randomNets(20, 30, "F32"))})
			tc.row.Slot = open(t, e, tc.p)
			b := &step.Batch{Patches: patches(tc.row.Slot, 0, 1), Rows: []step.Row{tc.row}}
			var r step.Result
			got := testing.AllocsPerRun(50, func() {
				run(t, e, b, &r)
				if err := e.Truncate(tc.row.Slot, 0); err != nil {
					t.Fatal(err)
				}
			})
			if got > 2 {
				t.Errorf("%v allocations a step", got)
			}
		})
	}
}
