package threshold

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
)

const (
	fluidEvents = 2000
	fluidWarm   = 400
	// polishN is the largest N at which the fluid choice is improved by exact
	// moves, and polishMoves bounds the settings evaluated then.
	polishN, polishMoves = 128, 24
)

// fluid searches with the fluid model, whose cost does not grow with N, and then
// evaluates its choices exactly. Moves start long and are halved.
func (s *searcher) fluid(ctx context.Context) (*Result, error) {
	flow := newFlow(s.c)
	seen := map[string]float64{}
	value := func(b []int) float64 {
		key := fmt.Sprint(b)
		v, ok := seen[key]
		if !ok {
			v = flow.theta(b)
			seen[key] = v
		}
		return v
	}
	starts := s.starts()
	chosen := [][]int{starts[0]} // eager, so that the choice is never worse
	for _, b := range starts {
		for size := max(1, s.c.N/4); size > 0; {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			from := b
			for _, next := range s.neighbours(from, size) {
				if value(next) > value(b)*(1+same) {
					b = next
				}
			}
			if slices.Equal(from, b) {
				size /= 2
			}
		}
		chosen = append(chosen, b)
	}
	slices.SortStableFunc(chosen[1:], func(a, b []int) int { return cmp.Compare(value(b), value(a)) })
	chosen = slices.CompactFunc(chosen, slices.Equal[[]int])
	if s.c.N > polishN {
		chosen = chosen[:min(len(chosen), 2)]
	}
	return s.polish(ctx, chosen)
}

// polish evaluates the fluid model's choices exactly and takes a few exact moves
// from the best: the fluid model has plateaus on which it cannot tell settings
// apart.
func (s *searcher) polish(ctx context.Context, chosen [][]int) (*Result, error) {
	var best *Result
	for _, b := range chosen {
		r, err := s.try(ctx, b)
		if err != nil {
			return nil, err
		}
		if better(r, best) {
			best = r
		}
	}
	for size := 2; size > 0 && s.c.N <= polishN; {
		from := best
		for _, next := range s.neighbours(from.B, size) {
			if len(s.found) >= polishMoves {
				return best, nil
			}
			r, err := s.try(ctx, next)
			if err != nil {
				return nil, err
			}
			if better(r, best) {
				best = r
			}
		}
		if from == best {
			size--
		}
	}
	return best, nil
}

// flow is the fluid model: requests are a liquid, a step sends the expected part
// of its batch each way, and nothing is random but a slow step's time, whose
// values come in a fixed even order.
type flow struct {
	c          *Case
	q, x, left []float64
}

func newFlow(c *Case) *flow {
	m := len(c.P)
	return &flow{c: c, q: make([]float64, m), x: make([]float64, m), left: make([]float64, m)}
}

// theta is the throughput of a setting in the fluid model.
func (f *flow) theta(b []int) float64 {
	clear(f.q)
	clear(f.x)
	f.q[0] = float64(f.c.N)
	var now, since, tokens, phase float64
	for event := range fluidEvents {
		if event == fluidWarm {
			since, tokens = now, 0
		}
		f.start(b, &phase)
		tau := f.next()
		now += tau
		for i := range f.x {
			if f.x[i] == 0 {
				continue
			}
			f.left[i] -= tau * f.speed(i)
		}
		for i := range f.x {
			if f.x[i] > 0 && f.left[i] < 1e-9 {
				tokens += f.x[i] * f.c.kept(i)
				axpy(f.x[i], f.c.P[i], f.q)
				f.x[i] = 0
			}
		}
	}
	return tokens / (now - since)
}

// speed is the work per tick of model i now.
func (f *flow) speed(i int) float64 {
	if f.c.Speed == nil {
		return 1
	}
	set := 0
	for j, x := range f.x {
		if x > 0 {
			set |= 1 << j
		}
	}
	return f.c.Speed[i][set]
}

func (f *flow) next() float64 {
	tau := math.Inf(1)
	for i, x := range f.x {
		if x > 0 {
			tau = min(tau, f.left[i]/f.speed(i))
		}
	}
	return tau
}

// start starts every idle model that has its threshold. Parts of requests can
// leave all of them just below it, which whole ones cannot: then the one nearest
// to its threshold starts. Hold timers count the same way.
func (f *flow) start(b []int, phase *float64) {
	nearest, running := 0, false
	for i := range f.q {
		if f.x[i] == 0 && f.q[i] >= float64(b[i])-1e-9 {
			f.launch(i, phase)
		}
		running = running || f.x[i] > 0
		if f.q[i]/float64(b[i]) > f.q[nearest]/float64(b[nearest]) {
			nearest = i
		}
	}
	if !running {
		f.launch(nearest, phase)
	}
}

func (f *flow) launch(i int, phase *float64) {
	batch := min(f.q[i], float64(f.c.limit(i)))
	f.q[i] -= batch
	f.x[i] = batch
	size := min(f.c.N, max(1, int(math.Round(batch))))
	f.left[i] = f.c.meanStep(i, size)
	if i == f.c.Slow() && f.c.SlowJitter > 0 {
		*phase = math.Mod(*phase+math.Phi, 1)
		f.left[i] += (*phase - 0.5) * float64(2*f.c.SlowJitter+1)
	}
}
