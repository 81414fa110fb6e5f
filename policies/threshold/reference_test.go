package threshold

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"testing"
)

// reference is a case whose answers were computed by other programs: a unit-time
// chain and a simulation.
type reference struct {
	ID        string      `json:"id"`
	N         int         `json:"n"`
	P         [][]float64 `json:"p"`
	T         [][]int     `json:"t"`
	Commit    [][]float64 `json:"commit"`
	BMax      []int       `json:"bmax"`
	Hold      []int       `json:"hold"`
	Speed     [][]float64 `json:"speed"`
	Jitter    int         `json:"slow_jitter"`
	Best      []int       `json:"best"`
	Theta     float64     `json:"theta"`
	Gap       *float64    `json:"gap"`
	Tol       float64     `json:"tol"`
	Look      float64     `json:"look"`
	LookTheta float64     `json:"look_theta"`
	Dynamic   float64     `json:"dynamic"`
	Deadlock  [][]int     `json:"deadlock"`
	Evals     []struct {
		B     []int   `json:"b"`
		Theta float64 `json:"theta"`
	} `json:"evals"`
}

func (r *reference) model() *Case {
	return &Case{N: r.N, P: r.P, T: r.T, Commit: r.Commit, BMax: r.BMax, Hold: r.Hold, Speed: r.Speed, SlowJitter: r.Jitter}
}

func (r *reference) tolerance() float64 {
	if r.Tol > 0 {
		return r.Tol
	}
	return 1e-4
}

func references(t testing.TB) []reference {
	t.Helper()
	file, err := os.Open("testdata/reference.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var out []reference
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var r reference
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	if len(out) != 32 {
		t.Fatalf("%d reference cases", len(out))
	}
	return out
}

// apart is the relative difference of two numbers.
func apart(a, b float64) float64 { return math.Abs(a-b) / max(math.Abs(b), 1e-300) }

func TestReferenceEvaluations(t *testing.T) {
	for _, r := range references(t) {
		t.Run(r.ID, func(t *testing.T) {
			c := r.model()
			evals := r.Evals
			if r.Best != nil {
				evals = append(evals, struct {
					B     []int   `json:"b"`
					Theta float64 `json:"theta"`
				}{r.Best, r.Theta})
			}
			for _, want := range evals {
				got, err := Evaluate(t.Context(), c, want.B)
				if err != nil {
					t.Fatal(err)
				}
				if !got.Feasible || apart(got.Theta, want.Theta) > r.tolerance() {
					t.Errorf("B %v: %.7g by %s, want %.7g", want.B, got.Theta, got.Method, want.Theta)
				}
				if r.N <= 16 {
					checkBothWays(t, c, want.B, got)
				}
			}
			for _, b := range r.Deadlock {
				got, err := Evaluate(t.Context(), c, b)
				if err != nil || got.Feasible || !got.Deadlock || got.Theta != 0 {
					t.Errorf("B %v: %+v, %v, want a deadlock", b, got, err)
				}
			}
		})
	}
}

// checkBothWays compares a compressed result with the chain's.
func checkBothWays(t *testing.T, c *Case, b []int, got *Result) {
	t.Helper()
	if got.Method != ByCompressed {
		return
	}
	e, err := newEvaluator(c)
	if err != nil {
		t.Fatal(err)
	}
	e.pair, e.maxStates = nil, 5000
	if raced {
		e.maxStates = 1000
	}
	want, err := e.evaluate(t.Context(), b)
	if errors.Is(err, ErrTooLarge) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if apart(got.Theta, want.Theta) > 1e-9 {
		t.Errorf("B %v: compressed %.12g, chain %.12g", b, got.Theta, want.Theta)
	}
	for i := range b {
		if apart(got.Batch[i], want.Batch[i]) > 1e-8 || apart(got.Busy[i], want.Busy[i]) > 1e-8 || math.Abs(got.Wait[i]-want.Wait[i]) > 1e-7*(1+want.Wait[i]) {
			t.Errorf("B %v, model %d: compressed %v %v %v, chain %v %v %v", b, i, got.Batch, got.Busy, got.Wait, want.Batch, want.Busy, want.Wait)
		}
	}
}

// Section 3.6: throughput, reachable states, mean batches and busy shares of the
// published sweep.
func TestPaperSection3_6Sweep(t *testing.T) {
	tests := []struct {
		n, b           int
		theta          float64
		states         int
		batchS, batchL float64
		busyS, busyL   float64
	}{
		{1, 1, 63.4, 2, 1, 1, .38, .62},
		{2, 1, 99.0, 12, 1.09, 1.03, .54, .94},
		{2, 2, 110.3, 3, 1.43, 2, .46, .54},
		{3, 1, 142.3, 308, 1.35, 1.42, .63, .98},
		{3, 2, 158.1, 13, 1.6, 2.21, .59, .70},
		{3, 3, 151.9, 4, 1.8, 3, .51, .49},
		{4, 1, 187.2, 715, 1.6, 1.85, .70, .99},
		{4, 2, 195.4, 28, 1.67, 2.14, .70, .89},
		{4, 3, 208.0, 14, 1.96, 3.19, .64, .64},
		{4, 4, 190.7, 5, 2.14, 4, .53, .47},
		{6, 1, 278.0, 1862, 2.1, 2.72, .8, 1},
		{6, 4, 304.0, 30, 2.47, 4.38, .74, .68},
		{8, 5, 399.0, 51, 2.97, 5.57, .81, .70},
	}
	for _, tc := range tests {
		t.Run(fmt.Sprintf("N %d, B_L %d", tc.n, tc.b), func(t *testing.T) {
			c := published(tc.n)
			e, err := newEvaluator(c)
			if err != nil {
				t.Fatal(err)
			}
			e.pair = nil
			got, err := e.evaluate(t.Context(), []int{1, tc.b})
			if err != nil {
				t.Fatal(err)
			}
			checkBothWays(t, c, []int{1, tc.b}, mustEvaluate(t, c, []int{1, tc.b}))
			// Ticks of 0.1 ms, so tokens per tick are 10,000 tokens/s.
			if math.Abs(got.Theta*1e4-tc.theta) > 0.051 || got.States != tc.states {
				t.Errorf("%.2f tokens/s, %d states, want %.1f, %d", got.Theta*1e4, got.States, tc.theta, tc.states)
			}
			for i, want := range []float64{tc.batchS, tc.batchL} {
				if math.Abs(got.Batch[i]-want) > 0.00501 {
					t.Errorf("model %d: mean batch %.4f, want %.2f", i, got.Batch[i], want)
				}
			}
			for i, want := range []float64{tc.busyS, tc.busyL} {
				if math.Abs(got.Busy[i]-want) > 0.00501 {
					t.Errorf("model %d: busy %.4f, want %.2f", i, got.Busy[i], want)
				}
			}
		})
	}
}

// published is the paper's case, section 3.5, in ticks of 0.1 ms.
func published(n int) *Case {
	return &Case{N: n, P: [][]float64{{.65, .35}, {1, 0}}, Commit: [][]float64{{1, 0}, {1, 0}}, T: [][]int{{60}, {279}}}
}

func mustEvaluate(t testing.TB, c *Case, b []int) *Result {
	t.Helper()
	r, err := Evaluate(t.Context(), c, b)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
