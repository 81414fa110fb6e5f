package measured

import (
	"context"
	"fmt"
	"math"

	"github.com/tokenrouter/tokenrouter/policies/threshold"
)

const (
	// LeastRouted is how many routed steps of the entry model make routing known well
	// enough to solve.
	LeastRouted = 2000
	// LeastGain is what new thresholds must promise over those in use.
	LeastGain = 1.01
)

// TableSize is the number of live requests up to which a table is solved: larger
// ones use its last entry. More models multiply the work.
func TableSize(models int) int {
	switch models {
	case 2:
		return 16
	case 3:
		return 6
	}
	return 3
}

// Model is what replicas of one model have measured.
type Model struct {
	// Routed counts the steps of single sequences that were routed. To[k] is the share
	// that went on to model k, Kept[k] the share of those whose token was kept.
	Routed   uint64
	To, Kept []float64
	// Steps[b-1] is the time of a step of b sequences that is not in company.
	Steps []Step
	// Slowdown is how many times as long a step takes while another model runs; 0 counts as 1.
	Slowdown float64
	// Prefill is how much longer first passes of prompts make a step for each of its sequences, in milliseconds. The solver knows
	// requests that never end, so their steps carry it; and by sequence, since larger batches save nothing of it.
	Prefill float64
}

// Pool is what replicas of a model have measured together: each counts as much as it
// has routed and as many steps as it has made. Those that know other models than the
// first are left out.
func Pool(list []Model) Model {
	var out Model
	var all float64
	for _, m := range list {
		if m.Routed > 0 && (out.To == nil || len(m.To) == len(out.To)) && len(m.Kept) == len(m.To) {
			if out.To == nil {
				out.To, out.Kept = make([]float64, len(m.To)), make([]float64, len(m.To))
			}
			w := float64(m.Routed)
			out.Routed, all = out.Routed+m.Routed, all+w
			for k, share := range m.To {
				out.To[k] += w * share
				out.Kept[k] += w * share * m.Kept[k]
			}
			out.Slowdown += w * slowdown(&m)
			out.Prefill += w * m.Prefill
			out.Steps = poolSteps(out.Steps, m.Steps)
		}
	}
	if all == 0 {
		return out
	}
	for k := range out.To {
		if out.To[k] > 0 {
			out.Kept[k] = min(1, out.Kept[k]/out.To[k])
		}
		out.To[k] /= all
	}
	out.Slowdown, out.Prefill = out.Slowdown/all, out.Prefill/all
	return out
}

func slowdown(m *Model) float64 {
	if m.Slowdown == 0 {
		return 1
	}
	return m.Slowdown
}

func poolSteps(a, b []Step) []Step {
	out := make([]Step, max(len(a), len(b)))
	copy(out, a)
	for i, e := range b {
		if n := out[i].N + e.N; n > 0 {
			out[i] = Step{n, (float64(out[i].N)*out[i].MS + float64(e.N)*e.MS) / float64(n)}
		}
	}
	return out
}

// Input is what the threshold solver needs to know about models, by index, at n live
// requests. It reports false while the entry model has routed fewer than least
// sequences, another one fewer than a tenth of that, or no time of one is known.
func Input(models []Model, n int, least uint64) (*threshold.Input, bool) {
	in := &threshold.Input{N: n}
	slowed := make([]float64, len(models))
	for i := range models {
		m := &models[i]
		enough := least
		if i > 0 {
			enough = least / 10
		}
		if m.Routed < max(1, enough) || len(m.To) != len(models) || len(m.Kept) != len(models) {
			return nil, false
		}
		to, ok := shares(m.To)
		alone := Fit(m.Steps)
		if !ok || alone == nil {
			return nil, false
		}
		in.P, in.Commit = append(in.P, to), append(in.Commit, m.Kept)
		slowed[i] = slowdown(m)
		times := alone.Times(n)
		for k := range times {
			times[k] += m.Prefill * float64(k+1)
		}
		in.T = append(in.T, times)
	}
	for _, s := range slowed {
		if s > 1.03 || s < 0.97 {
			in.Speed = speeds(slowed)
			break
		}
	}
	if in.Speed == nil {
		flatten(in.T)
	}
	return in, true
}

// shares makes a row add up to exactly 1.
func shares(row []float64) ([]float64, bool) {
	out, sum := make([]float64, len(row)), 0.0
	for _, v := range row {
		sum += v
	}
	for i, v := range row {
		out[i] = v / sum
	}
	return out, sum > 0
}

// flatten takes one value for a model whose steps take the same time whatever
// the batch, so that the fast solver can be used.
func flatten(t [][]float64) {
	for _, row := range t {
		if last := row[len(row)-1]; last > row[0]*1.05 {
			return
		}
	}
	for i, row := range t {
		t[i] = row[(len(row)-1)/2 : (len(row)-1)/2+1]
	}
}

// speeds is threshold.Input.Speed of models that are slowed by any other one.
func speeds(slowed []float64) [][]float64 {
	out := make([][]float64, len(slowed))
	for i, s := range slowed {
		out[i] = make([]float64, 1<<len(slowed))
		for mask := range out[i] {
			out[i][mask] = 1
			if mask&^(1<<i) != 0 {
				out[i][mask] = min(1000, max(0.001, 1/s))
			}
		}
	}
	return out
}

// At is the same input for n live requests, at most in.N.
func At(in *threshold.Input, n int) *threshold.Input {
	now := *in
	now.N, now.T = n, nil
	for _, row := range in.T {
		if len(row) > 1 {
			row = row[:n]
		}
		now.T = append(now.T, row)
	}
	return &now
}

// Predict is the throughput, in tokens a second, that the model of delayed batching
// gives for thresholds b with n live requests.
func Predict(ctx context.Context, in *threshold.Input, b []int) (float64, error) {
	system, err := in.System()
	if err != nil {
		return 0, err
	}
	if !system.Feasible(b) {
		return 0, fmt.Errorf("thresholds %v can deadlock with %d requests", b, in.N)
	}
	r, err := threshold.Approximate(ctx, system.Case, b)
	if err != nil {
		return 0, err
	}
	return r.Theta / system.Tick * 1000, nil
}

// Moved says that two inputs differ enough to solve again: a probability by a
// factor of 1.3, a time by 15 %, or more requests than the old one was for.
func Moved(old, now *threshold.Input) bool {
	if old == nil || now.N > old.N || len(old.P) != len(now.P) || len(old.T) != len(now.T) {
		return true
	}
	const rare = 0.01 // probabilities below it do not matter
	for i, row := range now.P {
		if len(old.P[i]) != len(row) || len(old.T[i]) == 0 {
			return true
		}
		for j, p := range row {
			if beyond(math.Max(p, rare), math.Max(old.P[i][j], rare), 1.3) {
				return true
			}
		}
		a, b := old.T[i], now.T[i]
		if beyond(a[0], b[0], 1.15) || beyond(a[len(a)-1], b[len(b)-1], 1.15) {
			return true
		}
		if beyond(sharedSpeed(old, i), sharedSpeed(now, i), 1.15) {
			return true
		}
	}
	return false
}

func sharedSpeed(in *threshold.Input, i int) float64 {
	if i >= len(in.Speed) || len(in.Speed[i]) == 0 {
		return 1
	}
	return in.Speed[i][len(in.Speed[i])-1]
}

// beyond says that a and b differ by more than a factor.
func beyond(a, b, factor float64) bool { return a > b*factor || b > a*factor }
