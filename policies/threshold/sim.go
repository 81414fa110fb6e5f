package threshold

import (
	"context"
	"math"
	"math/rand/v2"
)

// searchSteps is the length of a simulation that stands in for the chain in a search,
// which compares settings by the same draws; approximateSteps where the number counts.
const searchSteps, approximateSteps = 100_000, 400_000

// BySimulation is the method of a result that was estimated by Simulate.
const BySimulation Method = "simulation"

// SimOptions are the length and the seed of a simulation.
type SimOptions struct {
	// Steps is the number of steps of all models together, besides a tenth as many
	// before the count begins.
	Steps int
	Seed  uint64
}

// SimResult is what a simulation saw.
type SimResult struct {
	// Theta is tokens per tick, and Error half the width of its 95 % interval.
	Theta, Error float64
	// Deadlock says that nothing ran and nothing could start.
	Deadlock bool
	// By model, as in Result; LongestWait is the longest of all.
	Batch, Busy, Wait, LongestWait []float64
}

// Simulate plays the system request by request. It is the second opinion: slow,
// obvious, and written without the chain's code. Time is real here, so shared
// speed is not rounded to ticks.
func Simulate(ctx context.Context, c *Case, b []int, o SimOptions) (*SimResult, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if err := c.checkSetting(b); err != nil {
		return nil, err
	}
	s := &simulation{c: c, b: b, rng: rand.New(rand.NewPCG(o.Seed, 0x7468726573686f6c)), models: make([]simModel, len(c.P))}
	for id := range c.N {
		s.models[0].queue = append(s.models[0].queue, simRequest{id, 0})
	}
	return s.run(ctx, o.Steps)
}

type simRequest struct {
	id      int
	arrived float64
}

// simModel is one model: it waits for its threshold or runs a batch.
type simModel struct {
	queue, batch []simRequest
	left         float64 // ticks of work
	giveUp       float64 // when the hold timer runs out; 0: none runs

	steps, served, busy, waited, longest float64
}

type simulation struct {
	c      *Case
	b      []int
	rng    *rand.Rand
	now    float64
	models []simModel
	tokens float64
}

func (s *simulation) run(ctx context.Context, steps int) (*SimResult, error) {
	const blocks = 20
	warm := steps / 10
	out := &SimResult{}
	var rates []float64
	var since, began, tokens float64
	ended := 0
	for block := 0; block < blocks; {
		if ended%1024 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		s.startAll()
		n, ok := s.advance()
		if !ok {
			out.Deadlock = true
			return out, nil
		}
		before := ended
		ended += n
		if before < warm && ended >= warm {
			since, began = s.now, s.now
			s.tokens = 0
			for i := range s.models {
				m := &s.models[i]
				m.steps, m.served, m.busy, m.waited, m.longest = 0, 0, 0, 0, 0
			}
		}
		if ended >= warm+(block+1)*steps/blocks {
			if s.now > since {
				rates = append(rates, s.tokens/(s.now-since))
			}
			tokens += s.tokens
			s.tokens, since = 0, s.now
			block++
		}
	}
	elapsed := s.now - began
	out.Theta, out.Error = tokens/elapsed, halfWidth(rates)
	for i := range s.models {
		m := &s.models[i]
		out.Batch = append(out.Batch, ratio(m.served, m.steps))
		out.Busy = append(out.Busy, m.busy/elapsed)
		out.Wait = append(out.Wait, ratio(m.waited, m.served))
		out.LongestWait = append(out.LongestWait, m.longest)
	}
	return out, nil
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// halfWidth is that of the 95 % interval of the mean of block means.
func halfWidth(rates []float64) float64 {
	n := float64(len(rates))
	if n < 2 {
		return math.Inf(1)
	}
	var mean, square float64
	for _, r := range rates {
		mean += r / n
	}
	for _, r := range rates {
		square += (r - mean) * (r - mean)
	}
	return 2.09 * math.Sqrt(square/(n-1)/n)
}

// startAll starts what the rule lets start: an idle model with its threshold, or
// whose hold timer has run out.
func (s *simulation) startAll() {
	for i := range s.models {
		m := &s.models[i]
		if len(m.batch) > 0 || len(m.queue) == 0 {
			continue
		}
		if len(m.queue) < s.b[i] {
			if s.c.Hold == nil || s.c.Hold[i] == 0 {
				continue
			}
			if m.giveUp == 0 {
				m.giveUp = s.now + float64(s.c.Hold[i])
			}
			if s.now < m.giveUp {
				continue
			}
		}
		size := len(m.queue)
		if s.c.BMax != nil && s.c.BMax[i] > 0 {
			size = min(size, s.c.BMax[i])
		}
		m.batch = append(m.batch[:0], m.queue[:size]...)
		m.queue = append(m.queue[:0], m.queue[size:]...)
		m.giveUp = 0
		m.left = s.stepTime(i, size)
		m.steps++
		m.served += float64(size)
		for _, r := range m.batch {
			m.waited += s.now - r.arrived
			m.longest = max(m.longest, s.now-r.arrived)
		}
	}
}

func (s *simulation) stepTime(i, size int) float64 {
	k := 0
	if len(s.c.T[i]) > 1 {
		k = size - 1
	}
	t := s.c.T[i][k]
	if s.c.Extra != nil && s.rng.Float64() < s.c.Extra[i][k] {
		t++
	}
	if d := s.c.SlowJitter; d > 0 && i == s.c.Slow() {
		t += s.rng.IntN(2*d+1) - d
	}
	return float64(t)
}

// advance goes to the next moment at which something ends, and returns the
// number of steps that end then; false if nothing ever will.
func (s *simulation) advance() (ended int, ok bool) {
	busy := 0
	for i := range s.models {
		if len(s.models[i].batch) > 0 {
			busy |= 1 << i
		}
	}
	speed := func(i int) float64 {
		if s.c.Speed == nil {
			return 1
		}
		return s.c.Speed[i][busy]
	}
	wait := math.Inf(1)
	for i := range s.models {
		switch m := &s.models[i]; {
		case len(m.batch) > 0:
			wait = min(wait, m.left/speed(i))
		case m.giveUp > 0:
			wait = min(wait, m.giveUp-s.now)
		}
	}
	if math.IsInf(wait, 1) {
		return 0, false
	}
	s.now += wait
	const sameMoment = 1e-7 // ticks
	for i := range s.models {
		m := &s.models[i]
		if m.giveUp > 0 && m.giveUp-s.now < sameMoment {
			m.giveUp = s.now
		}
		if len(m.batch) == 0 {
			continue
		}
		m.busy += wait
		m.left -= wait * speed(i)
	}
	for i := range s.models {
		if m := &s.models[i]; len(m.batch) > 0 && m.left < sameMoment {
			s.route(i)
			ended++
		}
	}
	return ended, true
}

// route sends every request of a finished batch on its way.
func (s *simulation) route(i int) {
	m := &s.models[i]
	for _, r := range m.batch {
		u, to := s.rng.Float64(), -1
		for j, p := range s.c.P[i] {
			if p == 0 {
				continue
			}
			to = j
			if u -= p; u < 0 {
				break
			}
		}
		kept := 1.0
		if s.c.Commit != nil {
			kept = s.c.Commit[i][to]
		}
		s.tokens += kept
		s.models[to].queue = append(s.models[to].queue, simRequest{r.id, s.now})
	}
	m.batch = m.batch[:0]
}
