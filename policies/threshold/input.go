package threshold

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Bounds of an input.
const (
	MaxInputBytes = 16 << 20
	maxInputs     = 100_000
	maxEvals      = 10_000
)

// Input is a case as people write it: JSON, times in milliseconds.
type Input struct {
	ID string `json:"id,omitempty"`
	N  int    `json:"n"`
	// P and Commit are as in Case. T[i] are the milliseconds of a step of model i,
	// one value or N.
	P      [][]float64 `json:"p"`
	Commit [][]float64 `json:"commit,omitempty"`
	T      [][]float64 `json:"t"`
	BMax   []int       `json:"bmax,omitempty"`
	Hold   []float64   `json:"hold,omitempty"` // milliseconds
	Speed  [][]float64 `json:"speed,omitempty"`
	// Tick is the unit, in milliseconds, to which all times are rounded. Default:
	// see Case.
	Tick *float64 `json:"tick,omitempty"`
	// Exact leaves out the default jitter.
	Exact bool `json:"exact,omitempty"`
	// SlowJitter is the half-width of the slow model's jitter in milliseconds.
	SlowJitter *float64 `json:"slow_jitter,omitempty"`

	Evals  []Setting `json:"evals,omitempty"`
	Search *bool     `json:"search,omitempty"`
	// Look asks for the look-ahead rule with this caution, on its own.
	Look float64 `json:"look,omitempty"`

	// Expected values. Check compares them with what was found.
	Best      []int    `json:"best,omitempty"`
	Theta     *float64 `json:"theta,omitempty"`
	Gap       *float64 `json:"gap,omitempty"`
	LookTheta *float64 `json:"look_theta,omitempty"`
	Dynamic   *float64 `json:"dynamic,omitempty"`
	Deadlock  [][]int  `json:"deadlock,omitempty"`
	Tol       float64  `json:"tol,omitempty"`
}

// Setting is one setting of the thresholds: [1,3], or {"b":[1,3],"theta":0.2}
// with an expected throughput.
type Setting struct {
	B     []int
	Theta *float64
}

// UnmarshalJSON reads either form.
func (s *Setting) UnmarshalJSON(text []byte) error {
	if len(text) > 0 && text[0] == '{' {
		var object struct {
			B     []int    `json:"b"`
			Theta *float64 `json:"theta"`
		}
		if err := strict(json.NewDecoder(bytes.NewReader(text)), &object); err != nil {
			return err
		}
		s.B, s.Theta = object.B, object.Theta
		return nil
	}
	s.Theta = nil
	return json.Unmarshal(text, &s.B)
}

func strict(d *json.Decoder, to any) error {
	d.DisallowUnknownFields()
	return d.Decode(to)
}

// ParseInputs reads one case or several, one after the other (JSON lines), and
// checks each. Unknown keys are errors.
func ParseInputs(r io.Reader) ([]*Input, error) {
	text, err := io.ReadAll(io.LimitReader(r, MaxInputBytes+1))
	if err != nil {
		return nil, err
	}
	if len(text) > MaxInputBytes {
		return nil, invalidf("input is longer than %d bytes", MaxInputBytes)
	}
	var out []*Input
	for d := json.NewDecoder(bytes.NewReader(text)); ; {
		in := new(Input)
		err := strict(d, in)
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			_, err = in.System()
		}
		if err != nil {
			return nil, fmt.Errorf("case %d%s: %w", len(out)+1, lineOf(text, d.InputOffset(), len(out)), err)
		}
		if out = append(out, in); len(out) > maxInputs {
			return nil, invalidf("more than %d cases", maxInputs)
		}
	}
	if len(out) == 0 {
		return nil, invalidf("there is no case in the input")
	}
	return out, nil
}

// lineOf says on which line the decoder stopped, for inputs of several cases.
func lineOf(text []byte, offset int64, before int) string {
	if before == 0 && bytes.Count(text, []byte("\n")) <= 1 {
		return ""
	}
	at := min(max(0, int(offset)), len(text))
	return " (line " + strconv.Itoa(1+strings.Count(strings.TrimLeft(string(text[:at]), "\n"), "\n")) + ")"
}

// System is a Case with the length of its tick.
type System struct {
	*Case
	Tick float64 // milliseconds
}

// System turns the input into a case on a grid.
//
// With exact, or with a jitter of its own, the tick is the largest unit that
// divides every given time. Else the slow model gets the default jitter, half of
// whose width is an eighth of the fastest step: at exact ratios of two step
// times steps meet again and again, which no real system does, and the
// throughput jumps there. The tick is then that eighth, and a slow step keeps its
// mean by taking one tick more with some probability.
func (in *Input) System() (*System, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	jitter, byDefault := 0.0, false
	switch {
	case in.SlowJitter != nil:
		jitter = *in.SlowJitter
	case !in.Exact && len(in.T) > 1:
		byDefault = true
	}
	fastest := math.Inf(1)
	for _, row := range in.T {
		fastest = min(fastest, row[0])
	}
	tick, given := 0.0, in.Tick != nil
	switch {
	case given:
		tick = *in.Tick
		jitter = max(jitter, 0)
		if byDefault {
			jitter = max(tick, fastest/8)
		}
	case byDefault:
		tick = fastest / float64(in.grid())
		jitter = tick
	default:
		tick = in.unit(jitter)
	}
	c, err := in.onGrid(tick, jitter, byDefault)
	if err != nil {
		return nil, err
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	for k, s := range in.Evals {
		if err := c.checkSetting(s.B); err != nil {
			return nil, fmt.Errorf("evals[%d]: %w", k, err)
		}
	}
	for k, b := range in.Deadlock {
		if err := c.checkSetting(b); err != nil {
			return nil, fmt.Errorf("deadlock[%d]: %w", k, err)
		}
	}
	return &System{c, tick}, nil
}

// check refuses what could not be put on a grid.
func (in *Input) check() error {
	if len(in.P) < 1 || len(in.P) > MaxModels || len(in.T) != len(in.P) {
		return invalidf("p has %d models and t %d, want the same, 1 to %d", len(in.P), len(in.T), MaxModels)
	}
	for i, row := range in.T {
		if len(row) == 0 {
			return invalidf("t[%d]: empty", i)
		}
		for b, ms := range row {
			if !(ms > 0 && ms <= 1e9) {
				return invalidf("t[%d][%d]: %g ms, want more than 0 and at most 1e9", i, b, ms)
			}
		}
	}
	for i, ms := range in.Hold {
		if !(ms >= 0 && ms <= 1e9) {
			return invalidf("hold[%d]: %g ms, want 0 to 1e9", i, ms)
		}
	}
	if in.Tick != nil && !(*in.Tick > 0 && *in.Tick <= 1e9) {
		return invalidf("tick: %g ms, want more than 0 and at most 1e9", *in.Tick)
	}
	if in.SlowJitter != nil && !(*in.SlowJitter >= 0 && *in.SlowJitter <= 1e9) {
		return invalidf("slow_jitter: %g ms, want 0 to 1e9", *in.SlowJitter)
	}
	if !(in.Look >= 0 && in.Look <= 1e6) {
		return invalidf("look: %g, want 0 to 1e6", in.Look)
	}
	if len(in.Evals) > maxEvals || len(in.Deadlock) > maxEvals {
		return invalidf("evals: %d settings, at most %d", max(len(in.Evals), len(in.Deadlock)), maxEvals)
	}
	return nil
}

// grid is how many ticks the fastest step has under the default jitter. Eight are
// fine enough for two models; more models multiply the states, so they get a
// coarser grid.
func (in *Input) grid() int {
	switch {
	case len(in.T) <= 2:
		return 8
	case len(in.T) == 3 && in.N <= 4:
		return 4
	}
	return 2
}

// onGrid rounds all times to ticks. A default jitter stays within the slow step
// that it belongs to, and on a grid of our choice that step keeps its mean.
func (in *Input) onGrid(tick, jitter float64, byDefault bool) (*Case, error) {
	c := &Case{N: in.N, P: normalRows(in.P), Commit: in.Commit, BMax: in.BMax, Speed: in.Speed}
	for i, row := range in.T {
		ticks := make([]int, len(row))
		for b, ms := range row {
			n, err := toTicks(ms, tick)
			if err != nil || n < 1 {
				return nil, invalidf("t[%d][%d]: %g ms is %g ticks of %g ms, want 1 to %d", i, b, ms, math.Round(ms/tick), tick, MaxTicks)
			}
			ticks[b] = n
		}
		c.T = append(c.T, ticks)
	}
	for i, ms := range in.Hold {
		n, err := toTicks(ms, tick)
		if err != nil {
			return nil, invalidf("hold[%d]: %g ms is %g ticks of %g ms, want at most %d", i, ms, math.Round(ms/tick), tick, MaxTicks)
		}
		if n == 0 && ms > 0 {
			n = 1
		}
		c.Hold = append(c.Hold, n)
	}
	n, err := toTicks(jitter, tick)
	if err != nil {
		return nil, invalidf("slow_jitter: %g ms is %g ticks of %g ms, want at most %d", jitter, math.Round(jitter/tick), tick, MaxTicks)
	}
	c.SlowJitter = n
	if byDefault {
		c.SlowJitter = min(n, slices.Min(c.T[c.Slow()])-1, MaxJitter)
		if in.Tick == nil {
			in.keepMean(c, tick)
		}
	}
	return c, nil
}

// keepMean gives the steps of the slow model, if their time is constant, a tick
// more just often enough for the mean to be the time given.
func (in *Input) keepMean(c *Case, tick float64) {
	slow := c.Slow()
	exact := in.T[slow][0] / tick
	whole := math.Floor(exact + 1e-9)
	more := exact - whole
	if len(c.T[slow]) > 1 || more < 1e-9 {
		return
	}
	rounded := c.T[slow]
	c.T[slow] = []int{int(whole)}
	if c.Slow() != slow { // too close to another to tell them apart
		c.T[slow] = rounded
		return
	}
	c.Extra = make([][]float64, len(c.T))
	for i, row := range c.T {
		c.Extra[i] = make([]float64, len(row))
	}
	c.Extra[slow][0] = more
}

func toTicks(ms, tick float64) (int, error) {
	n := math.Round(ms / tick)
	if !(n <= MaxTicks) {
		return 0, ErrTooLarge
	}
	return int(n), nil
}

// normalRows lets rows that sum to 1 but for the digits written sum to exactly 1.
func normalRows(rows [][]float64) [][]float64 {
	out := make([][]float64, len(rows))
	for i, row := range rows {
		out[i] = slices.Clone(row)
		var sum float64
		for _, p := range row {
			sum += p
		}
		if math.Abs(sum-1) > 1e-6 || sum <= 0 {
			continue // Validate says so
		}
		for j := range out[i] {
			out[i][j] /= sum
		}
	}
	return out
}

// finest is the smallest unit that times are read in, in parts of a millisecond.
const finest = 1_000_000_000

// Where the tick is ours to choose and the exact one would make more than
// manyStates, a fast step gets fewPhases to mostPhases ticks. With fewer, a ratio
// near a simple one would become it, and steps would meet that never do.
const (
	manyStates = 100_000
	fewPhases  = 20
	mostPhases = 200
)

// unit is the largest unit that divides every given time, in milliseconds. Two
// constant times whose unit is very small get a slightly different ratio with
// fewer ticks, if there is a good one: a convergent of the continued fraction,
// closer than any other ratio as simple.
func (in *Input) unit(jitter float64) float64 {
	var whole int
	add := func(ms float64) { whole = gcd(whole, int(math.Round(min(ms, 1e9)*finest))) }
	for _, row := range in.T {
		for _, ms := range row {
			add(ms)
		}
	}
	for _, ms := range in.Hold {
		add(ms)
	}
	add(jitter)
	unit := float64(max(1, whole)) / finest
	simple := len(in.T) == 2 && len(in.T[0]) == 1 && len(in.T[1]) == 1 && jitter == 0 && in.Hold == nil && in.Speed == nil
	if !simple {
		return unit
	}
	fast, slow := min(in.T[0][0], in.T[1][0]), max(in.T[0][0], in.T[1][0])
	if fast/unit <= mostPhases || fast/unit*float64(in.N)*float64(in.N)/2 <= manyStates {
		return unit
	}
	if phases := denominator(slow/fast, mostPhases); phases >= fewPhases {
		return fast / float64(phases)
	}
	return unit
}

// denominator is that of the last convergent of x whose denominator is at most most.
func denominator(x float64, most int) int {
	before, now := 0, 1
	for range 40 {
		whole := math.Floor(x)
		if x-whole < 1e-12 {
			break
		}
		x = 1 / (x - whole)
		next := math.Floor(x)*float64(now) + float64(before)
		if next > float64(most) {
			break
		}
		before, now = now, int(next)
	}
	return now
}
