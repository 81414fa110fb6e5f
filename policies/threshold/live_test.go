package threshold

import (
	"math/rand/v2"
	"testing"
)

// liveInput is what a server has measured on a CPU: times that grow with the
// batch, are multiples of nothing, and longer in company.
func liveInput(n int) *Input {
	in := &Input{N: n, P: [][]float64{{.8, .2}, {1, 0}}, Commit: [][]float64{{1, 0}, {1, 0}}, Speed: [][]float64{{1, 1, 1, .83}, {1, 1, 1, .91}}}
	var s, l []float64
	for b := range n {
		s, l = append(s, .052+.0113*float64(b)), append(l, .2637+.0917*float64(b))
	}
	in.T = [][]float64{s, l}
	return in
}

// BenchmarkTableLive is the table that a server solves from what it has measured.
// heavy is a large model whose steps grow fast and last many small ones.
func BenchmarkTableLive(b *testing.B) {
	heavy := liveInput(16)
	for k := range 16 {
		heavy.T[0][k], heavy.T[1][k] = .04+.005*float64(k), .5+.2*float64(k)
	}
	three := liveInput(6)
	three.P, three.Commit = [][]float64{{.8, .15, .05}, {1, 0, 0}, {1, 0, 0}}, nil
	three.T = append(three.T[:1:1], []float64{.13, .15, .17, .2, .24, .27}, three.T[1])
	three.Speed = nil
	for name, in := range map[string]*Input{"16": liveInput(16), "16 heavy": heavy, "three models 6": three} {
		system, err := in.System()
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := Table(b.Context(), system.Case); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A table's climbs lose nothing that matters against evaluating every setting.
func TestTableIsNearTheBest(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 22))
	worst, missed, entries := 0.0, 0, 0
	cases, most := 3, 11
	if raced {
		cases, most = 1, tableN+1
	}
	for range cases {
		c := measuredCase(rng, most)
		table, err := Table(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		for n := tableN + 1; n <= c.N; n++ {
			all, err := Solve(t.Context(), c.With(n), Options{})
			if err != nil {
				t.Fatal(err)
			}
			regret := 1 - table[n-1].Theta/all.Best.Theta
			entries++
			if worst = max(worst, regret); regret > 1e-9 {
				missed++
			}
		}
	}
	t.Logf("%d of %d entries are not the best, the worst is %.3f %% below it", missed, entries, 100*worst)
	if worst > 0.01 {
		t.Errorf("an entry is %.2f %% below the best", 100*worst)
	}
}

// measuredCase draws two models whose step times grow with the batch and that slow
// each other down.
func measuredCase(rng *rand.Rand, n int) *Case {
	p, stay, slow := .05+.6*rng.Float64(), .5*rng.Float64()*float64(rng.IntN(2)), 2+8*rng.Float64()
	c := &Case{N: n, P: [][]float64{{1 - p, p}, {1 - stay, stay}}, T: make([][]int, 2), SlowJitter: 1}
	growS, growL := .2*rng.Float64(), .3*rng.Float64()
	for b := range n {
		c.T[0] = append(c.T[0], int(6*(1+growS*float64(b))))
		c.T[1] = append(c.T[1], int(6*slow*(1+growL*float64(b))))
	}
	for range 2 {
		c.Speed = append(c.Speed, []float64{1, 1, 1, .5 + .5*rng.Float64()})
	}
	return c
}

// Approximate is exact where the chain is small, and near it elsewhere.
func TestApproximate(t *testing.T) {
	for _, n := range []int{4, 20} {
		system, err := liveInput(n).System()
		if err != nil {
			t.Fatal(err)
		}
		want := mustEvaluate(t, system.Case, []int{1, 2})
		got, err := Approximate(t.Context(), system.Case, []int{1, 2})
		if err != nil || apart(got.Theta, want.Theta) > 0.005 {
			t.Errorf("n %d: %+v, %v, want %.5g", n, got, err, want.Theta)
		}
		if by := map[int]Method{4: ByChain, 20: BySimulation}[n]; err == nil && got.Method != by {
			t.Errorf("n %d by %s", n, got.Method)
		}
		if n == 4 && got.Theta != want.Theta {
			t.Errorf("%.12g, exact %.12g", got.Theta, want.Theta)
		}
	}
}
