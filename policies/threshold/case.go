package threshold

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Bounds of a case. They keep a hostile input from taking memory before the
// state count can be known.
const (
	MaxModels   = 8
	MaxRequests = 2048
	// MaxTicks bounds one step or hold timer, and MaxJitter the jitter, in ticks.
	MaxTicks, MaxJitter = 1 << 24, 4096
	// MaxThreshold bounds a threshold; it may exceed N, which only a hold timer makes sense of.
	MaxThreshold = 1 << 16
)

// ErrInvalid says that a case or a setting breaks a rule of its description.
var ErrInvalid = errors.New("invalid case")

// ErrTooLarge says that the answer would take more states or transitions than
// the bounds allow. The error's text has the number.
var ErrTooLarge = errors.New("case too large")

// Case is a closed system of N requests and M models. Times are in ticks, the
// grid on which everything happens. Index 0 is the entry model: all requests
// start queued there.
type Case struct {
	N int
	// P[i][j] is the probability that a request that ended a step on i goes to j;
	// rows sum to 1.
	P [][]float64
	// Commit[i][j] is the number of tokens kept of a step on i whose request goes
	// to j. Nil: all 1.
	Commit [][]float64
	// T[i] are the ticks of a step of i: one value, or N of them for batch sizes 1..N.
	T [][]int
	// Extra[i] has the shape of T[i]: the probability that the step takes one tick
	// more. It keeps the mean of a time that the grid would round. Nil: none.
	Extra [][]float64
	// SlowJitter is d: every step of the slow model (Slow) takes T plus a whole
	// number of ticks, uniform in [-d, d] and independent. 0: constant.
	SlowJitter int
	// BMax[i] bounds a batch of i; 0, or a nil slice: no bound.
	BMax []int
	// Hold[i] is the longest time, in ticks, that idle model i lets requests wait
	// below its threshold; 0, or a nil slice: for ever.
	Hold []int
	// Speed[i][mask] is the work, in ticks of T, that i does in one tick while the
	// models in the bit mask are busy. The work left is rounded to the nearest
	// tick, and to at least one, at every event. Nil: all 1.
	Speed [][]float64
}

// Validate checks the case against the bounds and rules above.
func (c *Case) Validate() error {
	m := len(c.P)
	switch {
	case m < 1 || m > MaxModels:
		return invalidf("p: %d models, want 1 to %d", m, MaxModels)
	case c.N < 1 || c.N > MaxRequests:
		return invalidf("n: %d requests, want 1 to %d", c.N, MaxRequests)
	}
	for _, check := range []func(int) error{c.checkRouting, c.checkTimes, c.checkExtras} {
		if err := check(m); err != nil {
			return err
		}
	}
	return nil
}

func invalidf(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}

func (c *Case) checkRouting(m int) error {
	if err := square("p", c.P, m, 1); err != nil {
		return err
	}
	for i, row := range c.P {
		var sum float64
		for _, p := range row {
			sum += p
		}
		if math.Abs(sum-1) > 1e-6 {
			return invalidf("p[%d]: sums to %g, want 1", i, sum)
		}
	}
	if c.Commit == nil {
		return nil
	}
	return square("commit", c.Commit, m, 1e6)
}

// square checks an m by m matrix of values in [0, most].
func square(name string, rows [][]float64, m int, most float64) error {
	if len(rows) != m {
		return invalidf("%s: %d rows, want %d", name, len(rows), m)
	}
	for i, row := range rows {
		if len(row) != m {
			return invalidf("%s[%d]: %d values, want %d", name, i, len(row), m)
		}
		for j, v := range row {
			if !(v >= 0 && v <= most) { // also refuses NaN
				return invalidf("%s[%d][%d]: %g, want 0 to %g", name, i, j, v, most)
			}
		}
	}
	return nil
}

func (c *Case) checkTimes(m int) error {
	if len(c.T) != m {
		return invalidf("t: %d models, p has %d", len(c.T), m)
	}
	for i, row := range c.T {
		if len(row) != 1 && len(row) != c.N {
			return invalidf("t[%d]: %d values, want 1 or n = %d", i, len(row), c.N)
		}
		for b, ticks := range row {
			if ticks < 1 || ticks > MaxTicks {
				return invalidf("t[%d][%d]: %d ticks, want 1 to %d", i, b, ticks, MaxTicks)
			}
		}
	}
	if c.SlowJitter < 0 || c.SlowJitter > MaxJitter {
		return invalidf("slow_jitter: %d ticks, want 0 to %d; a coarser tick has fewer", c.SlowJitter, MaxJitter)
	}
	if s := c.Slow(); c.SlowJitter >= slices.Min(c.T[s]) {
		return invalidf("slow_jitter: %d ticks, want less than a step of model %d, %d ticks", c.SlowJitter, s, slices.Min(c.T[s]))
	}
	return nil
}

func (c *Case) checkExtras(m int) error {
	if c.Extra != nil && len(c.Extra) != m {
		return invalidf("extra: %d models, p has %d", len(c.Extra), m)
	}
	for i, row := range c.Extra {
		if len(row) != len(c.T[i]) {
			return invalidf("extra[%d]: %d values, t[%d] has %d", i, len(row), i, len(c.T[i]))
		}
		for b, f := range row {
			if !(f >= 0 && f < 1) {
				return invalidf("extra[%d][%d]: %g, want at least 0 and below 1", i, b, f)
			}
		}
	}
	if err := counts("bmax", c.BMax, m, MaxRequests); err != nil {
		return err
	}
	if err := counts("hold", c.Hold, m, MaxTicks); err != nil {
		return err
	}
	if c.Speed == nil {
		return nil
	}
	if len(c.Speed) != m {
		return invalidf("speed: %d models, p has %d", len(c.Speed), m)
	}
	for i, row := range c.Speed {
		if len(row) != 1<<m {
			return invalidf("speed[%d]: %d values, want %d, one for each set of busy models", i, len(row), 1<<m)
		}
		for mask, v := range row {
			if !(v >= 1e-3 && v <= 1e3) {
				return invalidf("speed[%d][%d]: %g, want 0.001 to 1000", i, mask, v)
			}
		}
	}
	return nil
}

func counts(name string, values []int, m, most int) error {
	if values != nil && len(values) != m {
		return invalidf("%s: %d values, want %d", name, len(values), m)
	}
	for i, v := range values {
		if v < 0 || v > most {
			return invalidf("%s[%d]: %d, want 0 to %d", name, i, v, most)
		}
	}
	return nil
}

// Slow is the model whose step takes longest; of equal ones the last.
func (c *Case) Slow() int {
	slow := 0
	for i := range c.T {
		if c.T[i][0] >= c.T[slow][0] {
			slow = i
		}
	}
	return slow
}

// at is row's value for batch size b; one value stands for all.
func at[V any](row []V, b int) V {
	if len(row) == 1 {
		return row[0]
	}
	return row[b-1]
}

// limit is the largest batch of model i.
func (c *Case) limit(i int) int {
	if c.BMax == nil || c.BMax[i] == 0 {
		return c.N
	}
	return c.BMax[i]
}

func (c *Case) hold(i int) int {
	if c.Hold == nil {
		return 0
	}
	return c.Hold[i]
}

// chance is a value of a discrete law with its probability.
type chance struct {
	ticks int
	p     float64
}

// stepLaw is the law of the ticks of a step of model i with batch b.
func (c *Case) stepLaw(i, b int) []chance {
	base, d := at(c.T[i], b), 0
	if i == c.Slow() {
		d = c.SlowJitter
	}
	var more float64
	if c.Extra != nil {
		more = at(c.Extra[i], b)
	}
	law := make([]chance, 0, 2*d+2)
	each := 1 / float64(2*d+1)
	for k := -d; k <= d+1; k++ {
		var p float64
		if k <= d {
			p += each * (1 - more)
		}
		if k > -d {
			p += each * more
		}
		if p > 0 {
			law = append(law, chance{base + k, p})
		}
	}
	return law
}

// meanStep is the mean of stepLaw.
func (c *Case) meanStep(i, b int) float64 {
	t := float64(at(c.T[i], b))
	if c.Extra != nil {
		t += at(c.Extra[i], b)
	}
	return t
}

// kept is the mean number of tokens kept of a step of model i for one request.
func (c *Case) kept(i int) float64 {
	if c.Commit == nil {
		return 1
	}
	var w float64
	for j, p := range c.P[i] {
		w += p * c.Commit[i][j]
	}
	return w
}

// Feasible says whether thresholds b cannot deadlock with n requests: see the
// package documentation.
func Feasible(b []int, n int) bool {
	room := 0
	for _, v := range b {
		room += v - 1
	}
	return room < n
}

// Feasible is Feasible with the case's N, for thresholds of models without a
// hold timer: a model with one starts in the end whatever its queue.
func (c *Case) Feasible(b []int) bool {
	var without []int
	for i, v := range b {
		if c.hold(i) == 0 {
			without = append(without, v)
		}
	}
	return Feasible(without, c.N)
}

// Clamp returns thresholds that are feasible with n live requests: none is below
// 1, and the largest are lowered until the bound holds.
func Clamp(b []int, n int) []int {
	out := make([]int, len(b))
	excess := 1 - max(n, 1)
	for i, v := range b {
		out[i] = max(1, min(v, max(n, 1)))
		excess += out[i] - 1
	}
	for ; excess > 0; excess-- {
		most := 0
		for i, v := range out {
			if v > out[most] {
				most = i
			}
		}
		out[most]--
	}
	return out
}

// checkSetting checks one setting of the thresholds.
func (c *Case) checkSetting(b []int) error {
	if len(b) != len(c.P) {
		return invalidf("b: %d thresholds, want %d", len(b), len(c.P))
	}
	for i, v := range b {
		if v < 1 || v > MaxThreshold {
			return invalidf("b[%d]: %d, want 1 to %d", i, v, MaxThreshold)
		}
	}
	return nil
}
