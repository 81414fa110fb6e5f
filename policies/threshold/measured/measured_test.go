package measured

import (
	"math"
	"slices"
	"testing"

	"github.com/tokenrouter/tokenrouter/policies/threshold"
)

// Means of values in the wrong order are pooled by their weights.
func TestRising(t *testing.T) {
	for _, c := range []struct{ values, weights, want []float64 }{
		{[]float64{1, 2, 3}, []float64{1, 1, 1}, []float64{1, 2, 3}},
		{[]float64{1, 5, 2, 3}, []float64{1, 1, 2, 1}, []float64{1, 3, 3, 3}},
		{[]float64{4, 3, 2}, []float64{1, 1, 2}, []float64{2.75, 2.75, 2.75}},
		{nil, nil, nil},
	} {
		got := slices.Clone(c.values)
		rising(got, c.weights)
		for i, v := range got {
			if math.Abs(v-c.want[i]) > 1e-12 {
				t.Errorf("%v becomes %v, want %v", c.values, got, c.want)
				break
			}
		}
	}
}

func TestMoved(t *testing.T) {
	input := func(p, small, large float64) *threshold.Input {
		return &threshold.Input{N: 2, P: [][]float64{{1 - p, p}, {1, 0}}, T: [][]float64{{small}, {large}}}
	}
	old := input(0.2, 6, 27)
	for _, c := range []struct {
		name string
		now  *threshold.Input
		want bool
	}{
		{"same", input(0.2, 6, 27), false},
		{"a little", input(0.25, 6.5, 29), false},
		{"probability", input(0.27, 6, 27), true},
		{"probability down", input(0.15, 6, 27), true},
		{"small time", input(0.2, 7, 27), true},
		{"large time", input(0.2, 6, 23), true},
	} {
		if got := Moved(old, c.now); got != c.want {
			t.Errorf("%s: moved %t", c.name, got)
		}
	}
	if !Moved(nil, old) || Moved(input(0.001, 6, 27), input(0.004, 6, 27)) {
		t.Error("no old input has not moved, or a rare hand-off has")
	}
}

// Replicas count by what they have routed and by the steps that they have made.
func TestPool(t *testing.T) {
	one := Model{Routed: 3000, To: []float64{0.8, 0.2}, Kept: []float64{1, 0.5}, Steps: []Step{{N: 10, MS: 4}}, Slowdown: 1, Prefill: 0.4}
	two := Model{Routed: 1000, To: []float64{0.4, 0.6}, Kept: []float64{1, 0.1}, Steps: []Step{{N: 30, MS: 8}, {N: 5, MS: 9}}, Prefill: 0.8}
	got := Pool([]Model{one, {}, two, {Routed: 9, To: []float64{1}, Kept: []float64{1}}, {Routed: 9, To: []float64{1, 0}}})
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 1e-12 {
			t.Errorf("%s is %g, want %g", what, got, want)
		}
	}
	near("share", got.To[1], 0.3)
	near("kept", got.Kept[1], (3*0.2*0.5+0.6*0.1)/(3*0.2+0.6))
	near("time", got.Steps[0].MS, 7)
	near("slowdown", got.Slowdown, 1)
	near("prefill", got.Prefill, 0.5)
	if got.Routed != 4000 || got.Steps[0].N != 40 || got.Steps[1] != (Step{5, 9}) {
		t.Errorf("%+v", got)
	}
	if empty := Pool(nil); empty.Routed != 0 || empty.To != nil {
		t.Errorf("nothing is %+v", empty)
	}
}

// What is not enough, or does not fit, is no input; At shortens one.
func TestInput(t *testing.T) {
	small := Model{Routed: 3000, To: []float64{0.8, 0.2}, Kept: []float64{1, 0}, Steps: []Step{{N: 10, MS: 4}, {N: 10, MS: 8}}}
	large := Model{Routed: 300, To: []float64{1, 0}, Kept: []float64{1, 0}, Steps: []Step{{N: 10, MS: 20}}}
	with := func(change func(*Model)) Model {
		m := large
		change(&m)
		return m
	}
	for name, list := range map[string][]Model{
		"little routed": {small, with(func(m *Model) { m.Routed = 199 })},
		"no times":      {small, with(func(m *Model) { m.Steps = []Step{{N: 4, MS: 20}} })},
		"other models":  {small, with(func(m *Model) { m.To = []float64{1} })},
		"no shares":     {small, with(func(m *Model) { m.To = []float64{0, 0} })},
		"no kept":       {small, with(func(m *Model) { m.Kept = nil })},
	} {
		if in, ok := Input(list, 4, LeastRouted); ok {
			t.Errorf("%s: %+v", name, in)
		}
	}
	in, ok := Input([]Model{small, large}, 4, LeastRouted)
	if !ok || in.N != 4 || len(in.T[0]) != 4 {
		t.Fatalf("%+v, %v", in, ok)
	}
	if short := At(in, 2); short.N != 2 || len(short.T[0]) != 2 || in.N != 4 || len(in.T[0]) != 4 {
		t.Errorf("%+v from %+v", short, in)
	}
	if !Moved(&threshold.Input{N: 4}, in) || !Moved(&threshold.Input{N: 4, P: [][]float64{{1}, {1}}, T: in.T}, in) {
		t.Error("an input of other models has not moved")
	}
}
