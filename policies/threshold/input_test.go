package threshold

import (
	"errors"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
)

func parseOne(t *testing.T, text string) *System {
	t.Helper()
	in, err := ParseInputs(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	s, err := in[0].System()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSystemGrid(t *testing.T) {
	const two = `{"n":4,"p":[[0.65,0.35],[1,0]],`
	tests := []struct {
		name, text string
		tick       float64
		t          []int // first values
		jitter     int
		more       float64 // of the second model
	}{
		{"largest unit", two + `"t":[[6],[27.9]],"exact":true}`, 0.3, []int{20, 93}, 0, 0},
		{"whole milliseconds", two + `"t":[[6],[27]],"exact":true}`, 3, []int{2, 9}, 0, 0},
		{"unit of hold too", two + `"t":[[6],[27]],"hold":[0,0.5],"exact":true}`, 0.5, []int{12, 54}, 0, 0},
		{"given tick", two + `"t":[[6],[27.9]],"tick":1,"exact":true}`, 1, []int{6, 28}, 0, 0},
		{"jitter by default", two + `"t":[[6],[27]]}`, 0.75, []int{8, 36}, 1, 0},
		{"default keeps the mean", two + `"t":[[6],[27.9]]}`, 0.75, []int{8, 37}, 1, 0.2},
		{"default on a given tick", two + `"t":[[6],[27]],"tick":0.25}`, 0.25, []int{24, 108}, 3, 0},
		{"default jitter stays within its step", two + `"t":[[1],[1]],"tick":1}`, 1, []int{1, 1}, 0, 0},
		{"own jitter, though exact", two + `"t":[[8],[36]],"slow_jitter":3,"tick":1,"exact":true}`, 1, []int{8, 36}, 3, 0},
		{"own jitter of none", two + `"t":[[8],[36]],"slow_jitter":0}`, 4, []int{2, 9}, 0, 0},
		{"own jitter counts for the unit", two + `"t":[[8],[36]],"slow_jitter":0.5}`, 0.5, []int{16, 72}, 1, 0},
		{"one model", `{"n":2,"p":[[1]],"t":[[5.5]]}`, 5.5, []int{1}, 0, 0},
		{"near a simple ratio", two + `"t":[[5],[5.001]],"exact":true}`, 0.001, []int{5000, 5001}, 0, 0},
		{"near a simple ratio, many states", `{"n":32,"p":[[0.5,0.5],[1,0]],"t":[[5],[5.001]],"exact":true}`, 0.001, []int{5000, 5001}, 0, 0},
		{"ratio by its continued fraction", two + `"t":[[1.0000001],[3.1415926]],"exact":true}`, 1.0000001 / 113, []int{113, 355}, 0, 0},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			s := parseOne(t, tc.text)
			var first []int
			for _, row := range s.T {
				first = append(first, row[0])
			}
			if math.Abs(s.Tick-tc.tick) > 1e-12 || !slices.Equal(first, tc.t) || s.SlowJitter != tc.jitter {
				t.Errorf("tick %g, T %v, jitter %d", s.Tick, first, s.SlowJitter)
			}
			var more float64
			if s.Extra != nil {
				more = s.Extra[1][0]
			}
			if math.Abs(more-tc.more) > 1e-9 {
				t.Errorf("one tick more with %g, want %g", more, tc.more)
			}
		})
	}
}

func TestParseInputs(t *testing.T) {
	const two = `{"n":4,"p":[[0.65,0.35],[1,0]],"t":[[6],[27]]`
	tests := []struct{ name, text, want string }{
		{"nothing", " \n", "no case"},
		{"unknown key", two + `,"jiter":1}`, `unknown field "jiter"`},
		{"unknown key of a setting", two + `,"evals":[{"b":[1,1],"x":1}]}`, `unknown field "x"`},
		{"not a number", `{"n":4,"p":[[0.65,0.35],[1,0]],"t":[[6],[NaN]]}`, "invalid character 'N'"},
		{"too large a number", `{"n":4,"p":[[0.65,0.35],[1,0]],"t":[[6],[1e400]]}`, "1e400"},
		{"negative time", `{"n":4,"p":[[0.65,0.35],[1,0]],"t":[[6],[-1]]}`, "t[1][0]: -1 ms"},
		{"negative probability", `{"n":4,"p":[[1.5,-0.5],[1,0]],"t":[[6],[1]]}`, "p[0][0]: 1.5"},
		{"no model", `{"n":4}`, "p has 0 models"},
		{"no requests", `{"p":[[1]],"t":[[6]]}`, "n: 0 requests"},
		{"many requests", `{"n":1000000,"p":[[1]],"t":[[6]]}`, "n: 1000000 requests, want 1 to 2048"},
		{"fine tick", two + `,"tick":1e-9}`, "6e+09 ticks"},
		{"no tick", two + `,"tick":0}`, "tick: 0 ms"},
		{"negative jitter", two + `,"slow_jitter":-1}`, "slow_jitter: -1 ms"},
		{"negative hold", two + `,"hold":[0,-1]}`, "hold[1]: -1 ms"},
		{"threshold", two + `,"evals":[[1,0]]}`, "evals[0]"},
		{"second line", two + "}\n" + two + `,"n":0}`, "case 2 (line 2)"},
		{"garbage after", two + "}\nx", "case 2"},
		{"half a case", two, "unexpected EOF"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			_, err := ParseInputs(strings.NewReader(tc.text))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
	if _, err := ParseInputs(strings.NewReader(strings.Repeat(" ", MaxInputBytes+1))); !errors.Is(err, ErrInvalid) {
		t.Errorf("a long input: %v", err)
	}
	in, err := ParseInputs(strings.NewReader(two + "}\n\n" + two + `,"evals":[[1,1],{"b":[1,2],"theta":0.3}]}`))
	if err != nil || len(in) != 2 || len(in[1].Evals) != 2 || *in[1].Evals[1].Theta != 0.3 {
		t.Errorf("%+v, %v", in, err)
	}
}

// The default jitter, spec of the ratio trap: throughput at T_L/T_S = 6.9, 7.0
// and 7.1 jumps on the exact grid and does not with the jitter.
func TestDefaultJitterHasNoJump(t *testing.T) {
	theta := func(tl, rest string) float64 {
		s := parseOne(t, `{"n":8,"p":[[0.9,0.1],[1,0]],"t":[[10],[`+tl+`]]`+rest+`}`)
		return mustEvaluate(t, s.Case, []int{1, 1}).Theta / s.Tick
	}
	exact := theta("70", `,"exact":true`) / ((theta("69", `,"exact":true`) + theta("71", `,"exact":true`)) / 2)
	jittered := theta("70", "") / ((theta("69", "") + theta("71", "")) / 2)
	if exact < 1.02 {
		t.Errorf("exact: %.4f, want a jump", exact)
	}
	if math.Abs(jittered-1) > 0.002 {
		t.Errorf("jittered: %.4f, want none", jittered)
	}
}

func FuzzInputs(f *testing.F) {
	text, err := os.ReadFile("testdata/reference.jsonl")
	if err != nil {
		f.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		f.Add(line)
	}
	f.Add(`{"n":4,"p":[[0.65,0.35],[1,0]],"t":[[6.0],[27.9]],"tick":0.1,"evals":[[1,1],{"b":[2,2]}],"search":false}`)
	f.Add(`{"n":3,"p":[[1]],"t":[[1e-9]]} {"n":1e3}`)
	f.Fuzz(func(t *testing.T, text string) {
		inputs, err := ParseInputs(strings.NewReader(text))
		if err != nil {
			return
		}
		for _, in := range inputs {
			s, err := in.System()
			if err != nil {
				t.Fatalf("accepted, then refused: %v", err)
			}
			if err := s.Validate(); err != nil || !(s.Tick > 0) {
				t.Fatalf("tick %g, %v", s.Tick, err)
			}
			if s.N > 4 || len(s.P) > 2 {
				continue
			}
			e, err := newEvaluator(s.Case)
			if err != nil {
				t.Fatal(err)
			}
			e.maxStates = 2000
			if e.pair != nil && e.pair.ts/e.pair.grid > 500 {
				continue
			}
			r, err := e.evaluate(t.Context(), slices.Repeat([]int{1}, len(s.P)))
			if errors.Is(err, ErrTooLarge) {
				continue
			}
			if err != nil || !(r.Theta >= 0) || math.IsInf(r.Theta, 0) {
				t.Fatalf("%+v: %+v, %v", *s.Case, r, err)
			}
		}
	})
}
