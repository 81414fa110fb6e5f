package floor

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tokenrouter/tokenrouter/models/catalogue"
	"github.com/tokenrouter/tokenrouter/worker/executor/stepbench"
	"github.com/tokenrouter/tokenrouter/worker/model"
)

// r2r draws requests whose small steps are replaced with probability p.
func r2r(n, tokens int, p float64, seed uint64) *Trace {
	rng := rand.New(rand.NewPCG(seed, 1))
	t := &Trace{}
	for range n {
		models := make([]uint8, tokens)
		for i := range models {
			if rng.Float64() < p {
				models[i] = 1
			}
		}
		t.Requests = append(t.Requests, FromProvenance(models, true, false))
	}
	return t
}

// Over a drawn trace the floor is the best that the paper's model predicts
// (paper.md section 3.6; times 6 and 27.9 ms, p 0.35).
func TestFloorOfThePaper(t *testing.T) {
	for n, want := range map[int]float64{1: 63.4, 2: 110.3, 3: 158.1, 4: 208.0, 8: 399.0} {
		got, err := Throughput(r2r(20*n, 1500, 0.35, uint64(n)), &Models{Step: [][]float64{{0.006}, {0.0279}}}, n)
		if err != nil || math.Abs(got/want-1) > 0.015 {
			t.Errorf("n %d: %.1f tokens/s, %v; want %.1f", n, got, err, want)
		}
	}
}

func TestOneRequest(t *testing.T) {
	trace := &Trace{[][]Visit{{{0, true}, {0, false}, {1, true}, {0, true}}}}
	got, err := Throughput(trace, &Models{Step: [][]float64{{1}, {3}}, Slowed: []float64{2, 2}}, 1)
	if err != nil || got != 3.0/6 { // alone, so nothing slows it down
		t.Errorf("%g tokens, %v; want 0.5", got, err)
	}
}

// Two requests on two models at the same time slow each other down.
func TestSlowed(t *testing.T) {
	trace := &Trace{[][]Visit{{{0, true}}, {{1, true}}}}
	got, err := Throughput(trace, &Models{Step: [][]float64{{2}, {2}}, Slowed: []float64{1.5, 1.5}}, 2)
	if err != nil || math.Abs(got-2.0/3) > 1e-12 {
		t.Errorf("%g, %v; want 2 tokens in 3", got, err)
	}
	got, err = Throughput(trace, &Models{Step: [][]float64{{2}, {3}}, Slowed: []float64{2, 1}}, 2)
	// Model 1 ends after 3; until then model 0 has done 1.5, and does the rest alone.
	if err != nil || math.Abs(got-2/3.5) > 1e-12 {
		t.Errorf("%g, %v; want 2 tokens in 3.5", got, err)
	}
}

func TestFromProvenance(t *testing.T) {
	got := FromProvenance([]uint8{0, 1, 1, 0}, true, false)
	want := []Visit{{0, true}, {0, false}, {1, true}, {0, false}, {1, true}, {0, true}}
	if !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
	if got := FromProvenance([]uint8{0, 1, 1}, false, false); len(got) != 3 {
		t.Errorf("kept hand-offs: %v", got)
	}
	if got := FromProvenance([]uint8{1, 1, 0, 1}, true, true); len(got) != 6 {
		t.Errorf("long visits: %v", got)
	}
}

func TestRefused(t *testing.T) {
	good, times := r2r(1, 3, 0.5, 1), &Models{Step: [][]float64{{1}, {2}}}
	for name, c := range map[string]struct {
		t *Trace
		m *Models
		n int
	}{
		"nobody":     {good, times, 0},
		"no trace":   {&Trace{}, times, 1},
		"no steps":   {&Trace{[][]Visit{{}}}, times, 1},
		"no model":   {&Trace{[][]Visit{{{Model: 2}}}}, times, 1},
		"no time":    {good, &Models{Step: [][]float64{{1}, {0}}}, 1},
		"no number":  {good, &Models{Step: [][]float64{{1}, {math.NaN()}}}, 1},
		"speeds":     {good, &Models{Step: times.Step, Slowed: []float64{1}}, 1},
		"faster":     {good, &Models{Step: times.Step, Slowed: []float64{0.5, 1}}, 1},
		"step times": {good, &Models{Step: [][]float64{{1}, {}}}, 1},
	} {
		if _, err := Throughput(c.t, c.m, c.n); !errors.Is(err, ErrTrace) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// rooflines are step times of a Qwen3 model on one H200 at a context of 2k, for rows of k tokens each.
func rooflines(t *testing.T, name string, n, k int) []float64 {
	t.Helper()
	all, err := catalogue.Default()
	if err != nil {
		t.Fatal(err)
	}
	entry, err := all.Find(name)
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.ParseConfig(entry.Config)
	if err != nil {
		t.Fatal(err)
	}
	var out []float64
	for rows := 1; rows <= n; rows++ {
		d, _ := stepbench.StepWork(&m, rows, k, 2048).Floor(stepbench.H200())
		out = append(out, d.Seconds())
	}
	return out
}

// With steps at the memory's speed and models that start at once the simulation gives the numbers that the design computed
// by another one: Qwen3-0.6B alone on one GPU, 32B alone on another, a context of 2k. The floor, which waits for more
// requests where that pays, is above them.
func TestFloorsOfTheDesign(t *testing.T) {
	for _, c := range []struct {
		p    float64
		want map[int]float64 // tokens a second by requests in flight
	}{
		{0.05, map[int]float64{1: 907, 4: 2426, 8: 4603, 16: 8105}},
		{0.10, map[int]float64{1: 537, 4: 1290, 8: 2536, 16: 4881}},
		{0.35, map[int]float64{1: 180, 4: 380, 8: 748, 16: 1449}},
	} {
		for n, want := range c.want {
			m := &Models{Step: [][]float64{rooflines(t, "qwen3-0.6b", n, 1), rooflines(t, "qwen3-32b", n, int(math.Round(1/c.p)))}}
			trace := r2r(12*n, 600, c.p, uint64(n))
			eager := run{t: trace, m: m, least: 1, slow: 1, queue: make([][]*request, 2), now: make([]step, 2)}
			once := eager.throughput(n)
			best, err := Throughput(trace, m, n)
			t.Logf("p %g, n %d: %.0f tokens/s at once, the design has %.0f (%+.1f %%); %.0f at best", c.p, n, once, want, 100*(once/want-1), best)
			if err != nil || math.Abs(once/want-1) > 0.06 || best < once {
				t.Errorf("p %g, n %d: %.0f tokens/s at once, %.0f at best, %v; want %.0f", c.p, n, once, best, err, want)
			}
		}
	}
}
