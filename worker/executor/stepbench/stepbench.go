package stepbench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/model"
)

// ErrConfig says that a measurement does not fit the executor.
var ErrConfig = errors.New("stepbench: bad configuration")

// Shape is one kind of step: rows that feed some tokens each at a context. Rows of 0 are one prefill of the tokens.
type Shape struct{ Rows, Tokens int }

// Config says what to measure.
type Config struct {
	Shapes  []Shape
	Context int
	// Rounds are the steps measured for each shape, at least 5; as many as a quarter of them run before.
	Rounds int
	// Sampling is that of all rows.
	Sampling sampling.Params
	// Ahead launches each decode step before the results of the one before are known. The executor has a depth of 2.
	Ahead bool
	// Phases asks an executor that can tell for the parts of a step.
	Phases bool
	// After, if set, is called when a shape has been measured. again runs one more of its steps, or a whole prefill, that is in no
	// line; it is not launched ahead.
	After func(ctx context.Context, line *Line, again func() error) error
	// Machine gives the floor; zero for a device of which nothing is known.
	Machine Machine
}

// Line is what one shape gave. Times are in milliseconds.
type Line struct {
	Kind    string `json:"kind"` // "decode", "extend" or "prefill"
	Rows    int    `json:"rows"`
	Tokens  int    `json:"tokens_per_row"`
	Context int    `json:"context"`
	// Median, Fastest and Slowest are of a step, from its launch to its results, or from result to result when launched
	// ahead. Launch is the median time of the host inside Launch.
	Median  float64 `json:"step_ms"`
	Fastest float64 `json:"fastest_ms"`
	Slowest float64 `json:"slowest_ms"`
	Launch  float64 `json:"launch_ms"`
	// Gap and GapP99 are the host's time between two steps that the device has to wait for, median and 99th percentile, in
	// microseconds: from the moment that the results of one were seen to be there until the device could begin the next, 0
	// when that was before. Making the next batch is in it. They are 0 for prefills, and where nothing was seen twice in a row.
	Gap    float64 `json:"host_gap_us"`
	GapP99 float64 `json:"host_gap_p99_us"`
	Floor  float64 `json:"floor_ms"`
	Bound  string  `json:"bound"` // "memory" or "compute"; empty, as floor and share are 0, for a machine that is not known
	// Share is floor / median; TFlops is the rate of arithmetic.
	Share  float64 `json:"share_of_floor"`
	TFlops float64 `json:"tflops"`
	// Replayed is the share of the steps that came from captured graphs.
	Replayed float64            `json:"replayed"`
	Phases   map[string]float64 `json:"phases_ms,omitempty"`
}

// Run measures all shapes in order. The error is ErrConfig, that of ctx, or the executor's.
func Run(ctx context.Context, e executor.Executor, m *model.Config, cfg Config) ([]Line, error) {
	b := &bench{cfg: cfg, e: e, info: e.Info(), model: m}
	if err := b.check(); err != nil {
		return nil, err
	}
	longest := cfg.Context
	for _, s := range cfg.Shapes {
		longest = max(longest, s.Tokens)
	}
	b.ids = make([]int32, longest)
	for i := range b.ids {
		b.ids[i] = int32(i * 7919 % b.info.Vocab)
	}
	var lines []Line
	for _, s := range cfg.Shapes {
		line, err := b.shape(ctx, s)
		if err != nil {
			return lines, err
		}
		lines = append(lines, line)
	}
	for _, s := range b.seqs {
		e.Close(s.slot)
	}
	return lines, nil
}

// each is the number of pages that a sequence may use.
func (b *bench) each() int { return b.info.Pages / b.most() }

// most is the largest number of rows.
func (b *bench) most() int {
	n := 1
	for _, s := range b.cfg.Shapes {
		n = max(n, s.Rows)
	}
	return n
}

func (b *bench) check() error {
	c := &b.cfg
	if c.Rounds < 5 || c.Context < 1 || len(c.Shapes) == 0 {
		return fmt.Errorf("%w: %d rounds at a context of %d for %d shapes", ErrConfig, c.Rounds, c.Context, len(c.Shapes))
	}
	if c.Ahead && b.info.Depth < 2 {
		return fmt.Errorf("%w: launching ahead needs a depth of 2, it is %d", ErrConfig, b.info.Depth)
	}
	for _, s := range c.Shapes {
		length := c.Context + s.Tokens + 1
		if s.Rows == 0 {
			length = s.Tokens
		}
		if c.Ahead && s.Tokens == 1 {
			length += 2 * c.Rounds
		}
		switch {
		case s.Rows < 0 || s.Tokens < 1:
			return fmt.Errorf("%w: %d rows of %d tokens", ErrConfig, s.Rows, s.Tokens)
		case s.Rows > b.info.MaxRows || s.Rows > b.info.MaxSlots || s.Rows*s.Tokens > b.info.MaxTokens:
			return fmt.Errorf("%w: %d rows of %d tokens in a step of at most %d and %d", ErrConfig, s.Rows, s.Tokens, b.info.MaxRows, b.info.MaxTokens)
		case length > b.info.MaxContext || length > b.each()*b.info.PageSize:
			return fmt.Errorf("%w: %d rows of %d positions: %d pages of %d and at most %d positions", ErrConfig, max(s.Rows, 1), length,
				b.info.Pages, b.info.PageSize, b.info.MaxContext)
		}
	}
	return nil
}

// shape measures one shape.
func (b *bench) shape(ctx context.Context, s Shape) (Line, error) {
	if err := b.open(ctx, max(s.Rows, 1)); err != nil {
		return Line{}, err
	}
	run := b.steps
	line := Line{Kind: "extend", Rows: s.Rows, Tokens: s.Tokens, Context: b.cfg.Context}
	work := StepWork(b.model, s.Rows, s.Tokens, b.cfg.Context)
	switch {
	case s.Rows == 0:
		line.Kind, line.Rows, line.Context, run = "prefill", 1, 0, b.prefills
		work = StepWork(b.model, 1, s.Tokens, 0)
	case s.Tokens == 1:
		if line.Kind = "decode"; b.cfg.Ahead {
			run = b.ahead
		}
	}
	before := b.e.Stats()
	b.gaps = b.gaps[:0]
	var times, launches []time.Duration
	note := func(step, launch time.Duration) { times, launches = append(times, step), append(launches, launch) }
	warm := b.cfg.Rounds/4 + 1
	if err := run(ctx, s, warm, b.cfg.Rounds, note); err != nil {
		return line, err
	}
	after := b.e.Stats()
	slices.Sort(times)
	slices.Sort(launches)
	line.Median, line.Fastest, line.Slowest = ms(times[len(times)/2]), ms(times[0]), ms(times[len(times)-1])
	line.Launch = ms(launches[len(launches)/2])
	if slices.Sort(b.gaps); len(b.gaps) > 0 {
		line.Gap, line.GapP99 = 1e3*ms(b.gaps[len(b.gaps)/2]), 1e3*ms(b.gaps[(99*len(b.gaps)-1)/100])
	}
	line.TFlops = work.Flops / (line.Median / 1e3) / 1e12
	if b.cfg.Machine != (Machine{}) {
		floor, memory := work.Floor(b.cfg.Machine)
		line.Floor, line.Bound = ms(floor), "compute"
		if memory {
			line.Bound = "memory"
		}
		line.Share = line.Floor / line.Median
	}
	line.Replayed = float64(after.Replays-before.Replays) / float64(after.Steps-before.Steps)
	if err := b.phases(ctx, &line); err != nil || b.cfg.After == nil {
		return line, err
	}
	return line, b.cfg.After(ctx, &line, func() error { return b.again(ctx, s) })
}
