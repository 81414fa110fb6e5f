package subservice

import (
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

func TestStepLimit(t *testing.T) {
	small := executor.Info{Device: "GPU", Hidden: 1024, Layers: 28, Vocab: 151936}
	large := executor.Info{Device: "GPU", Hidden: 8192, Layers: 80, Vocab: 151936}
	cpu := small
	cpu.Device = "cpu"
	decode, prefill := work{rows: 8, tokens: 8, pairs: 8 * 1000}, work{rows: 1, tokens: 512, pairs: 512 * 600}
	for _, tc := range []struct {
		name            string
		info            *executor.Info
		seen            int // steps of decode
		took            time.Duration
		now             work
		limit, expected time.Duration // the limit within a quarter
	}{
		{"nothing is known", &small, 0, 0, decode, 30 * time.Second, 0},
		{"nothing is known of a large model", &large, 0, 0, prefill, 112 * time.Second, 0},
		{"nothing is known on a CPU", &cpu, 0, 0, prefill, 890 * time.Second, 0},
		{"nothing is known of a short step on a CPU", &cpu, 0, 0, decode, 5 * time.Minute, 0},
		{"too little is known", &small, enough - 1, 5 * time.Millisecond, decode, 30 * time.Second, 0},
		{"quick steps", &small, enough, 5 * time.Millisecond, decode, 2 * time.Second, 5 * time.Millisecond},
		{"slow steps", &small, 1000, time.Second, decode, 10 * time.Second, time.Second},
		{"another size", &small, 1000, 5 * time.Millisecond, prefill, 30 * time.Second, 0},
		{"another size, slow steps", &small, 1000, 500 * time.Millisecond, prefill, 320 * time.Second, 0},
		{"half as many tokens", &small, 1000, time.Second, work{8, 4, 4 * 1000}, 30 * time.Second, 0},
		{"nearly twice as many tokens", &small, 1000, time.Second, work{8, 15, 15 * 1000}, 18750 * time.Millisecond, 1875 * time.Millisecond},
		{"ten times as long sequences", &small, 1000, time.Second, work{8, 8, 8 * 10000}, 100 * time.Second, 10 * time.Second},
		{"quick steps on a CPU", &cpu, 1000, 50 * time.Millisecond, decode, 5 * time.Minute, 50 * time.Millisecond},
		{"slow steps on a CPU", &cpu, 1000, 5 * time.Second, decode, 500 * time.Second, 5 * time.Second},
		{"for ever", &small, 1000, never, decode, longestLimit, longestLimit},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var h history
			for range tc.seen {
				h.add(decode, tc.took)
			}
			limit, expected := h.limit(patienceWith(tc.info, 0), tc.info, tc.now)
			if limit < tc.limit*3/4 || limit > tc.limit*5/4 || expected != tc.expected {
				t.Errorf("limit %v, expected %v; want %v, %v", limit, expected, tc.limit, tc.expected)
			}
		})
	}
}

// What is configured takes the place of the least, and makes what unknown steps have no shorter than itself.
func TestPatienceConfigured(t *testing.T) {
	const gpu, cpu = "GPU", "cpu"
	for _, tc := range []struct {
		device              string
		set, least, unknown time.Duration
	}{
		{gpu, 0, 2 * time.Second, 30 * time.Second},
		{gpu, 10 * time.Second, 10 * time.Second, 30 * time.Second},
		{gpu, time.Hour, time.Hour, time.Hour},
		{cpu, 0, 5 * time.Minute, 5 * time.Minute},
		{cpu, 30 * time.Second, 30 * time.Second, 30 * time.Second},
	} {
		if p := patienceWith(&executor.Info{Device: tc.device}, tc.set); p.least != tc.least || p.unknown != tc.unknown {
			t.Errorf("%s, %v: %+v", tc.device, tc.set, p)
		}
	}
}

// One slow step of 128 does not count, as a pause may have been in it; two do, and are forgotten after 128 others.
func TestSlowSteps(t *testing.T) {
	var h history
	w := work{rows: 1, tokens: 1, pairs: 10}
	slow := func() time.Duration { return h.slow(sizeOf(w), w) }
	for range remembered {
		h.add(w, time.Millisecond)
	}
	h.add(w, time.Minute)
	if slow() != time.Millisecond {
		t.Errorf("one slow step makes %v", slow())
	}
	h.add(w, time.Minute)
	if slow() != time.Minute {
		t.Errorf("two slow steps make %v", slow())
	}
	for range remembered {
		h.add(w, time.Millisecond)
	}
	if slow() != time.Millisecond {
		t.Errorf("slow steps are not forgotten: %v", slow())
	}
	h.add(work{tokens: 1 << 30}, time.Hour) // larger than any class
}

func TestWorkOf(t *testing.T) {
	b := &step.Batch{Rows: []step.Row{{Start: 100, Tokens: make([]int32, 1)}, {Start: 0, Tokens: make([]int32, 50)}, {Start: 64, Tokens: make([]int32, 10)}}}
	if got, want := workOf(b), (work{rows: 3, tokens: 61, pairs: 101 + 50*50 + 10*74}); got != want {
		t.Errorf("work %+v, want %+v", got, want)
	}
}
