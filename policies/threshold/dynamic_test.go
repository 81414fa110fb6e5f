package threshold

import (
	"math"
	"slices"
	"testing"
)

// TestDynamicBound computes the best of all start rules that see the whole state,
// and holds it against the reference values, the thresholds and the look-ahead rule.
func TestDynamicBound(t *testing.T) {
	for _, r := range references(t) {
		if r.Dynamic == 0 || raced && r.N > 4 {
			continue
		}
		t.Run(r.ID, func(t *testing.T) {
			low, high := bestRule(r.model())
			if low > r.Dynamic*(1+2e-5) || high < r.Dynamic*(1-2e-5) || high-low > 1e-4*low {
				t.Errorf("best rule between %.7g and %.7g, want %.7g", low, high, r.Dynamic)
			}
			look, err := EvaluateLookAhead(t.Context(), r.model(), &LookAhead{Caution: DefaultLookAhead, P: r.P})
			if err != nil || look.Theta > high*(1+1e-9) {
				t.Errorf("look-ahead %+v, %v, bound %.7g", look, err, high)
			}
		})
	}
}

// decision is a state after an event, before the starts: q, x and r by model.
type decision [9]int32

// ruleProblem is the semi-Markov decision problem of the start rule.
type ruleProblem struct {
	c       *Case
	route   *router
	number  map[decision]int
	all     []decision
	actions [][]ruleAction
}

// ruleAction is one set of starts: what it earns until the next event, how long
// that takes, and where it leads.
type ruleAction struct {
	earn, tau float64
	to        []int
	p         []float64
}

// bestRule brackets the largest throughput of any start rule by value iteration.
func bestRule(c *Case) (low, high float64) {
	d := &ruleProblem{c: c, route: newRouter(c), number: map[decision]int{}}
	var first decision
	first[0] = int32(c.N)
	d.id(first)
	for k := 0; k < len(d.all); k++ {
		d.actions = append(d.actions, d.choices(d.all[k]))
	}
	// With steps of half the shortest possible time the problem becomes one in
	// discrete time; the half keeps it from being periodic.
	const step = 0.5
	value, next := make([]float64, len(d.all)), make([]float64, len(d.all))
	for range 100_000 {
		low, high = math.Inf(1), math.Inf(-1)
		for s, actions := range d.actions {
			best := math.Inf(-1)
			for _, a := range actions {
				v := a.earn / a.tau
				for k, to := range a.to {
					v += step / a.tau * a.p[k] * (value[to] - value[s])
				}
				best = max(best, v)
			}
			low, high = min(low, best), max(high, best)
			next[s] = value[s] + best
		}
		value, next = next, value
		if high-low < 2e-6*high {
			break
		}
	}
	return low, high
}

func (d *ruleProblem) id(s decision) int {
	n, ok := d.number[s]
	if !ok {
		n = len(d.all)
		d.number[s] = n
		d.all = append(d.all, s)
	}
	return n
}

// choices are all sets of idle models with something queued, but for none when
// nothing runs.
func (d *ruleProblem) choices(s decision) []ruleAction {
	m := len(d.c.P)
	var out []ruleAction
	for set := range 1 << m {
		u, ok, running := s, true, false
		for i := range m {
			q, x, r := &u[3*i], &u[3*i+1], &u[3*i+2]
			if set>>i&1 == 1 {
				if *x > 0 || *q == 0 {
					ok = false
					break
				}
				*x, *q = *q, 0
				*r = int32(at(d.c.T[i], int(*x)))
			}
			running = running || *x > 0
		}
		if ok && running {
			out = append(out, d.act(u))
		}
	}
	return out
}

func (d *ruleProblem) act(u decision) ruleAction {
	m := len(d.c.P)
	var a ruleAction
	tau := int32(math.MaxInt32)
	for i := range m {
		if u[3*i+1] > 0 {
			tau = min(tau, u[3*i+2])
		}
	}
	ended := make([]int32, m)
	for i := range m {
		if u[3*i+1] == 0 {
			continue
		}
		if u[3*i+2] -= tau; u[3*i+2] == 0 {
			ended[i] = u[3*i+1]
			a.earn += float64(ended[i]) * d.c.kept(i)
			u[3*i+1] = 0
		}
	}
	a.tau = float64(tau)
	outcomes, err := d.route.outcomes(slices.Clone(ended))
	if err != nil {
		panic(err) // the cases are small
	}
	for _, o := range outcomes {
		w := u
		for i, n := range o.arrive {
			w[3*i] += n
		}
		a.to, a.p = append(a.to, d.id(w)), append(a.p, o.p)
	}
	return a
}
