package threshold

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
)

const (
	// exhaustiveN is the largest N at which every setting of two models is evaluated,
	// tableN that in a table that the chain makes: there the entry before is a good start.
	exhaustiveN, tableN = 16, 8
	// exhaustiveCount bounds the settings that are all evaluated on request, and
	// exhaustiveFew those that always are.
	exhaustiveCount, exhaustiveFew = 300, 20
	// exactSearchN is the largest N at which a search evaluates exactly; above it
	// the fluid model chooses.
	exactSearchN = 32
	// same is the relative difference below which two settings count as equal.
	same = 1e-9
	// searchStates bounds a chain within a search: above it, simulation is faster.
	// tableStates bounds that of an entry of a table, once the search has found it.
	searchStates, tableStates = 20_000, 40_000
)

// Search is how the best setting was found.
type Search string

// The searches. Only the first proves that nothing is better.
const (
	Exhaustive Search = "exhaustive"
	Climb      Search = "climb"
	Fluid      Search = "fluid"
)

// Options say what Solve does besides looking for the best setting.
type Options struct {
	// Evals are evaluated and put into Solution.All, and nothing else is.
	Evals [][]int
	// SkipSearch leaves out the search.
	SkipSearch bool
	// All asks for every feasible setting, if there are not more than 300.
	All bool
}

// Solution is what Solve found.
type Solution struct {
	// Best is nil when there was no search.
	Best *Result
	// Gap is 1 − second/best over all feasible settings; NaN unless the search was exhaustive.
	Gap    float64
	Search Search
	// Evaluated counts the settings evaluated by the search.
	Evaluated int
	// All are the settings asked for: Options.Evals in their order, or all that the
	// search evaluated, in order of B.
	All []*Result
}

// Solve finds the thresholds with the most tokens per tick.
func Solve(ctx context.Context, c *Case, o Options) (*Solution, error) {
	e, err := newEvaluator(c)
	if err != nil {
		return nil, err
	}
	s := &searcher{evaluator: e, found: map[string]*Result{}, most: exhaustiveN, final: MaxStates}
	out := &Solution{Gap: math.NaN()}
	for _, b := range o.Evals {
		r, err := s.evaluate(ctx, b)
		if err != nil {
			return nil, fmt.Errorf("evaluate B = %v: %w", b, err)
		}
		out.All = append(out.All, r)
	}
	if o.SkipSearch {
		return out, nil
	}
	if err := s.search(ctx, out, o.All && len(o.Evals) == 0); err != nil {
		return nil, err
	}
	if len(o.Evals) == 0 {
		for _, r := range s.found {
			out.All = append(out.All, r)
		}
		slices.SortFunc(out.All, func(x, y *Result) int { return slices.Compare(x.B, y.B) })
	}
	out.Evaluated = len(s.found)
	return out, nil
}

// searcher looks for the best setting and remembers what it has evaluated.
type searcher struct {
	*evaluator
	found map[string]*Result
	hints [][]int // more places to start from
	most  int     // the largest N at which every setting of two models is evaluated
	final int     // the largest chain for the setting that was found
}

func (s *searcher) search(ctx context.Context, out *Solution, all bool) error {
	settings := s.count()
	s.maxStates = searchStates
	var err error
	switch {
	case len(s.c.P) <= 2 && s.c.N <= s.most, settings <= exhaustiveFew, all && settings <= exhaustiveCount:
		out.Search = Exhaustive
		out.Best, out.Gap, err = s.exhaust(ctx)
	case s.c.N <= exactSearchN:
		out.Search = Climb
		out.Best, err = s.climb(ctx)
	default:
		out.Search = Fluid
		out.Best, err = s.fluid(ctx)
	}
	if err != nil || out.Best.Method != BySimulation {
		return err
	}
	s.maxStates = s.final
	exact, err := s.evaluate(ctx, out.Best.B)
	switch {
	case err == nil:
		out.Best = exact
	case !errors.Is(err, ErrTooLarge):
		return err
	}
	return nil
}

// count is the number of feasible settings with thresholds up to N, or more than
// exhaustiveCount.
func (s *searcher) count() int {
	n := 0
	s.each(func([]int) bool { n++; return n <= exhaustiveCount })
	return n
}

// each calls visit with every feasible setting until it returns false. Settings
// with smaller thresholds come first.
func (s *searcher) each(visit func(b []int) bool) {
	m := len(s.c.P)
	b := make([]int, m)
	var fill func(i, left int) bool
	fill = func(i, left int) bool {
		if i == m-1 {
			if left >= s.c.N {
				return true
			}
			b[i] = left + 1
			return !s.c.Feasible(b) || visit(b)
		}
		for v := range min(left+1, s.c.N) {
			b[i] = v + 1
			if !fill(i+1, left-v) {
				return false
			}
		}
		return true
	}
	most := s.c.N - 1
	if s.c.Hold != nil {
		most = m * (s.c.N - 1)
	}
	for left := 0; left <= most; left++ {
		if !fill(0, left) {
			return
		}
	}
}

// try evaluates a setting of a search. What is too large for the chain is
// simulated: a search compares, and a simulation is good enough for that.
func (s *searcher) try(ctx context.Context, b []int) (*Result, error) {
	key := fmt.Sprint(b)
	if r := s.found[key]; r != nil {
		return r, nil
	}
	r, err := s.evaluate(ctx, b)
	if errors.Is(err, ErrTooLarge) {
		r, err = s.simulate(ctx, b, searchSteps)
		s.maxStates = 0 // the next one is not smaller by much
	}
	if err != nil {
		return nil, fmt.Errorf("evaluate B = %v: %w", b, err)
	}
	s.found[key] = r
	return r, nil
}

func better(a, than *Result) bool { return than == nil || a.Theta > than.Theta*(1+same) }

func (s *searcher) exhaust(ctx context.Context) (*Result, float64, error) {
	var best *Result
	var second float64
	var err error
	s.each(func(b []int) bool {
		var r *Result
		if r, err = s.try(ctx, b); err != nil {
			return false
		}
		switch {
		case better(r, best):
			if best != nil {
				second = best.Theta
			}
			best = r
		default:
			second = max(second, r.Theta)
		}
		return true
	})
	if err != nil {
		return nil, 0, err
	}
	gap := math.NaN()
	if second > 0 {
		gap = max(0, 1-second/best.Theta)
	}
	return best, gap, nil
}

// climb goes uphill by unit moves from several places. One start is not enough:
// eager can be a local maximum far below the best.
func (s *searcher) climb(ctx context.Context) (*Result, error) {
	var best *Result
	for _, b := range s.starts() {
		now, err := s.try(ctx, b)
		if err != nil {
			return nil, err
		}
		for moved := true; moved; {
			moved = false
			from := now
			for _, next := range s.neighbours(from.B, 1) {
				r, err := s.try(ctx, next)
				if err != nil {
					return nil, err
				}
				if better(r, now) {
					now, moved = r, true
				}
			}
		}
		if better(now, best) {
			best = now
		}
	}
	return best, nil
}

// neighbours are the feasible settings one move of the given size away.
func (s *searcher) neighbours(b []int, size int) [][]int {
	var out [][]int
	for i := range b {
		for _, by := range []int{-size, size} {
			next := slices.Clone(b)
			next[i] = min(s.c.N, max(1, b[i]+by))
			if next[i] != b[i] && s.c.Feasible(next) {
				out = append(out, next)
			}
		}
	}
	return out
}

// starts are the places to climb from: eager, thresholds in proportion to the
// load of each model and half of that, a slow model that takes three quarters or
// all of the requests, the closed form for two models, and the hints.
func (s *searcher) starts() [][]int {
	m, n := len(s.c.P), s.c.N
	eager := slices.Repeat([]int{1}, m)
	share, load := make([]float64, m), 0.0
	for i, v := range visits(s.c.P) {
		share[i] = v * s.c.meanStep(i, min(n, s.c.limit(i)))
		load += share[i]
	}
	full, half := slices.Clone(eager), slices.Clone(eager)
	for i := range share {
		full[i] = max(1, int(math.Round(share[i]/load*float64(n))))
		half[i] = max(1, full[i]/2)
	}
	with := func(slow int) []int {
		b := slices.Clone(eager)
		b[s.c.Slow()] = max(1, slow)
		return b
	}
	out := [][]int{eager, full, half, with(3 * n / 4), with(n)}
	if m == 2 {
		l := s.c.Slow()
		ts, tl := s.c.meanStep(1-l, 1), s.c.meanStep(l, 1)
		a := s.c.P[1-l][l] * (tl - ts) / ts
		out = append(out, with(int(math.Ceil(float64(n)*a/(1+a)))))
	}
	out = append(out, s.hints...)
	for i, b := range out {
		out[i] = Clamp(b, n)
	}
	return out
}

// visits are the shares of the steps by model: νP = ν.
func visits(p [][]float64) []float64 {
	m := len(p)
	v := make([]float64, m)
	v[0] = 1
	mean := make([]float64, m)
	const rounds = 4096 // averaged, as routing may be periodic
	for range rounds {
		next := make([]float64, m)
		for i, row := range p {
			axpy(v[i], row, next)
		}
		v = next
		axpy(1.0/rounds, v, mean)
	}
	return mean
}

// Entry is a line of Table: the best thresholds at N live requests.
type Entry struct {
	N int
	*Result
}

// Table is the best thresholds for every number of live requests up to c.N.
// Entry n−1 is for n requests.
func Table(ctx context.Context, c *Case) ([]Entry, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	var out []Entry
	var hint [][]int
	for n := 1; n <= c.N; n++ {
		e, err := newEvaluator(c.With(n))
		if err != nil {
			return nil, err
		}
		s := &searcher{evaluator: e, found: map[string]*Result{}, hints: hint, most: exhaustiveN, final: tableStates}
		if e.pair == nil {
			s.most = tableN
		}
		var found Solution
		if err := s.search(ctx, &found, false); err != nil {
			return nil, fmt.Errorf("n = %d: %w", n, err)
		}
		out = append(out, Entry{n, found.Best})
		hint = [][]int{found.Best.B}
	}
	return out, nil
}

// With is the same system with n requests, at most c.N.
func (c *Case) With(n int) *Case {
	out := *c
	out.N = n
	out.T = slices.Clone(c.T)
	out.Extra = slices.Clone(c.Extra)
	for i, row := range c.T {
		if len(row) > 1 {
			out.T[i] = row[:n]
			if c.Extra != nil {
				out.Extra[i] = c.Extra[i][:n]
			}
		}
	}
	return &out
}
