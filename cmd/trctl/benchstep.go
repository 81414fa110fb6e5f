package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/internal/buildinfo"
	"github.com/tokenrouter/tokenrouter/models"
	"github.com/tokenrouter/tokenrouter/models/catalogue"
	"github.com/tokenrouter/tokenrouter/models/dummy"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/executor/cpuexec"
	"github.com/tokenrouter/tokenrouter/worker/executor/cudaexec"
	"github.com/tokenrouter/tokenrouter/worker/executor/cudaexec/timeline"
	"github.com/tokenrouter/tokenrouter/worker/executor/stepbench"
	"github.com/tokenrouter/tokenrouter/worker/model"
	"github.com/tokenrouter/tokenrouter/worker/tokenizer"
)

type benchStepCmd struct {
	Model   string    `required:"" placeholder:"NAME" help:"Embedded model, checkpoint directory, or name of the catalogue with --load."`
	Load    *loadFrom `placeholder:"dummy:SEED" help:"Fill the model's shape with a hash instead of reading weights."`
	Device  string    `enum:"auto,cuda,cpu" default:"auto" help:"Where to run: ${enum}."`
	GPU     int       `placeholder:"N" help:"GPU by number (0)."`
	B       []int     `name:"b" default:"1,8" placeholder:"ROWS" help:"Rows of the decode steps (${default})."`
	Extend  []int     `placeholder:"TOKENS" help:"Measure steps of so many tokens a row besides, for each --b."`
	Prefill []int     `placeholder:"TOKENS" help:"Measure prefills of so many tokens besides."`
	Ctx     int       `default:"1024" help:"Positions before the step (${default})."`
	Rounds  int       `default:"25" help:"Steps measured for each line, at least 5 (${default})."`
	Chunk   int       `default:"2048" help:"Tokens of a step at most (${default})."`

	Temperature  float32 `help:"Sampling temperature of the measured steps (0: greedy)."`
	TopP         float32 `name:"top-p" help:"Sample from the smallest set of ids that has this share of the probability; needs --temperature (off)."`
	TopK         int32   `name:"top-k" help:"Sample from so many likeliest ids; needs --temperature (off)."`
	MinP         float32 `name:"min-p" help:"Sample from ids with this share of the likeliest one's probability; needs --temperature (off)."`
	Ahead        bool    `help:"Launch each decode step before the results of the one before are known."`
	Reproducible bool    `help:"Results that do not depend on the batch, to the last bit."`
	Eager        bool    `help:"Launch each kernel on its own, without CUDA graphs."`
	NoOverlap    bool    `name:"no-overlap" help:"Start no kernel before the one before it has ended."`
	HeadStart    int     `name:"head-start" placeholder:"LAYERS" help:"Layers of a step's first graph; the others are launched while they run (1 of a large model, all of a small one)."`
	Products     string  `enum:"auto,library,own,band,slim" default:"auto" help:"Matrix products: ${enum}."`
	Phases       bool    `negatable:"" default:"true" help:"Time the parts of a step."`

	Timeline       string `placeholder:"FILE" help:"Print where the time of a step goes on a GPU, by operation and between operations, and write when each kernel ran as a Chrome trace (ui.perfetto.dev). Kernels are compiled for it, which makes all steps a little longer."`
	TimelineBlocks bool   `help:"With --timeline: what each multiprocessor ran, block by block, for the first blocks of a step."`

	CuBLASLt string `name:"cublaslt" env:"TRCTL_CUBLASLT" placeholder:"FILE" help:"cuBLASLt library to use instead of searching."`
	Output   string `short:"o" enum:"text,json" default:"text" help:"Output format: ${enum}."`
	gpuFlags
}

// stepReport is what was measured; its JSON names are stable.
type stepReport struct {
	Version string           `json:"version"`
	Model   string           `json:"model"`
	Device  string           `json:"device"`
	Mode    string           `json:"mode"` // flags that change the execution
	Lines   []stepbench.Line `json:"lines"`
	// MemoryBytes is what the executor holds, by use.
	MemoryBytes map[string]int64 `json:"memory_bytes"`
	// Timelines are there with --timeline, one for each line.
	Timelines []timeline.Table `json:"timelines,omitempty"`
}

// Run measures and prints.
func (c *benchStepCmd) Run(ctx context.Context, p process) error {
	ctx, stop := untilSignal(ctx)
	defer stop()
	draws, err := c.sampling()
	if err != nil {
		return err
	}
	if err := c.checkTimeline(); err != nil {
		return err
	}
	m, err := c.open()
	if err != nil {
		return err
	}
	e, machine, done, err := c.executor(ctx, m)
	if err != nil {
		return errors.Join(err, m.close())
	}
	cfg := stepbench.Config{Context: c.Ctx, Rounds: c.Rounds, Ahead: c.Ahead, Phases: c.Phases, Machine: machine, Shapes: c.shapes(), Sampling: draws}
	report := stepReport{Version: buildinfo.Current().String(), Model: m.name, Device: e.Info().Device, Mode: c.mode()}
	report.Lines, report.Timelines, err = c.measure(ctx, e, m, cfg)
	report.MemoryBytes = e.Stats().MemoryBytes
	if err = errors.Join(err, e.Shutdown(), done(), m.close()); err != nil {
		return err
	}
	if c.Output == "json" {
		return writeJSON(p, report)
	}
	return report.write(p.out)
}

// measure runs all steps, with timelines if they are asked for.
func (c *benchStepCmd) measure(ctx context.Context, e executor.Executor, m *stepModel, cfg stepbench.Config) ([]stepbench.Line, []timeline.Table, error) {
	t, err := c.timelines(e)
	if err != nil {
		return nil, nil, err
	}
	if t != nil {
		cfg.After = t.after
	}
	lines, err := stepbench.Run(ctx, e, &m.config, cfg)
	if errors.Is(err, stepbench.ErrConfig) {
		err = &usageError{err}
	}
	if err != nil || t == nil {
		return lines, nil, err
	}
	return lines, t.tables, t.write(c.Timeline)
}

// sampling is how the measured steps draw.
func (c *benchStepCmd) sampling() (sampling.Params, error) {
	p := sampling.Params{Temperature: c.Temperature, TopP: c.TopP, TopK: c.TopK, MinP: c.MinP}
	var bad *sampling.FieldError
	if err := p.Check(0); errors.As(err, &bad) {
		return p, usagef("--%s: %s", strings.ReplaceAll(bad.Field, "_", "-"), bad.Problem)
	}
	if p.Greedy() && (p.TopP != 0 || p.TopK != 0 || p.MinP != 0) {
		return p, usagef("--top-p, --top-k and --min-p need a --temperature: greedy steps draw nothing")
	}
	return p, nil
}

// shapes lists the steps to measure.
func (c *benchStepCmd) shapes() []stepbench.Shape {
	var out []stepbench.Shape
	for _, tokens := range append([]int{1}, c.Extend...) {
		for _, rows := range c.B {
			out = append(out, stepbench.Shape{Rows: rows, Tokens: tokens})
		}
	}
	for _, tokens := range c.Prefill {
		out = append(out, stepbench.Shape{Tokens: tokens})
	}
	return out
}

// mode names the flags that change the execution.
func (c *benchStepCmd) mode() string {
	out := []string{"products " + c.Products}
	for name, on := range map[string]bool{
		"timeline": c.Timeline != "", "ahead": c.Ahead, "reproducible": c.Reproducible, "eager": c.Eager, "no overlap": c.NoOverlap,
		fmt.Sprintf("head start %d", c.HeadStart): c.HeadStart > 0, fmt.Sprintf("temperature %g", c.Temperature): c.Temperature > 0, fmt.Sprintf("top-p %g", c.TopP): c.TopP > 0,
		fmt.Sprintf("top-k %d", c.TopK): c.TopK > 0, fmt.Sprintf("min-p %g", c.MinP): c.MinP > 0,
	} {
		if on {
			out = append(out, name)
		}
	}
	slices.Sort(out[1:])
	return strings.Join(out, ", ")
}

// stepModel is the model to measure.
type stepModel struct {
	name       string
	config     model.Config
	vocab      int
	seed       *uint64           // of a dummy model
	checkpoint *model.Checkpoint // else
}

func (m *stepModel) close() error {
	if m.checkpoint == nil {
		return nil
	}
	return m.checkpoint.Close()
}

func (c *benchStepCmd) open() (*stepModel, error) {
	named, err := modelNamed(c.Model)
	if err != nil {
		return nil, err
	}
	m := &stepModel{name: named.Name, seed: c.Load.dummy()}
	files, embedded := models.FS(named.Name)
	if named.Dir != "" {
		files, embedded = os.DirFS(named.Dir), true
	}
	if !embedded {
		if m.seed == nil {
			return nil, usagef("--model %s: the catalogue has its shape only; give a directory, or --load dummy:1", named.Name)
		}
		all, err := catalogue.Default()
		if err != nil {
			return nil, err
		}
		entry, err := all.Find(named.Name)
		if err != nil {
			return nil, err
		}
		m.vocab = entry.RealVocab
		m.config, err = model.ParseConfig(entry.Config)
		return m, err
	}
	if m.checkpoint, err = model.OpenFS(files, named.Name); err != nil {
		return nil, err
	}
	m.config = m.checkpoint.Config
	words, err := tokenizer.Load(files)
	if err != nil {
		return nil, errors.Join(err, m.close())
	}
	m.vocab = words.Size()
	return m, nil
}

// limits are how many rows and positions the steps need.
func (c *benchStepCmd) limits(m *stepModel) (rows, tokens, positions int, err error) {
	rows, tokens, positions = 1, c.Chunk, c.Ctx+2*c.Rounds+c.Rounds/4+4
	for _, s := range c.shapes() {
		rows = max(rows, s.Rows)
		tokens = max(tokens, s.Rows*s.Tokens)
		if s.Rows > 0 {
			positions = max(positions, c.Ctx+s.Tokens+1)
		} else {
			positions = max(positions, s.Tokens)
		}
	}
	if positions > m.config.MaxContext {
		return 0, 0, 0, usagef("--ctx %d: the steps need %d positions and %s has %d", c.Ctx, positions, m.name, m.config.MaxContext)
	}
	return rows, tokens, positions, nil
}

// executor builds the model's executor. done is called after its shutdown.
func (c *benchStepCmd) executor(ctx context.Context, m *stepModel) (_ executor.Executor, _ stepbench.Machine, done func() error, err error) {
	rows, tokens, positions, err := c.limits(m)
	if err != nil {
		return nil, stepbench.Machine{}, nil, err
	}
	if c.Device != "cpu" {
		e, done, err := c.onGPU(ctx, m, rows, tokens, positions)
		missing := errors.Is(err, driver.ErrNoDriver) || errors.Is(err, driver.ErrNoDevice)
		if missing && c.Timeline != "" {
			err = fmt.Errorf("--timeline needs a GPU: %w", err)
			missing = false
		}
		if c.Device == "cuda" || !missing {
			return e, stepbench.H200(), done, err
		}
	}
	k := m.checkpoint
	if m.seed != nil {
		params := m.config.Params()
		tensors := make([]model.Tensor, len(params))
		for i, p := range params {
			tensors[i] = model.Tensor{Name: p.Name, DType: model.BF16, Shape: p.Shape, Bytes: dummy.Bytes(*m.seed, p.Name, p.Shape)}
		}
		k = model.FromTensors(m.name, m.config, tensors)
	}
	e, err := cpuexec.New(cpuexec.Config{
		Vocab: m.vocab, MaxSlots: rows, MaxRows: rows, MaxTokens: tokens, MaxContext: positions, Workers: runtime.GOMAXPROCS(0),
	}, k)
	return e, stepbench.Machine{}, func() error { return nil }, err
}

func (c *benchStepCmd) onGPU(ctx context.Context, m *stepModel, rows, tokens, positions int) (executor.Executor, func() error, error) {
	cfg := cudaexec.DeviceConfig{Ordinal: c.GPU, NVRTCPath: c.NVRTC, CuBLASLtPath: c.CuBLASLt}
	if dir, err := c.cacheDir(); err == nil { // without a home kernels are compiled each time
		cfg.CubinDir = dir
	}
	device, err := cudaexec.OpenDevice(cfg)
	if err != nil {
		return nil, nil, err
	}
	source := cudaexec.Checkpoint(m.checkpoint)
	if m.seed != nil {
		source = cudaexec.Dummy(m.name, m.config, *m.seed)
	}
	depth := 1
	if c.Ahead {
		depth = 2
	}
	products := map[string]cudaexec.Products{
		"library": cudaexec.ProductsLibrary, "own": cudaexec.ProductsOwn, "band": cudaexec.ProductsBand,
		"slim": cudaexec.ProductsSlim,
	}
	e, err := cudaexec.New(ctx, cudaexec.Config{
		Vocab: m.vocab, MaxSlots: rows, MaxTokens: tokens, MaxContext: positions, Depth: depth, Reproducible: c.Reproducible,
		HeadStart: c.HeadStart, Eager: c.Eager, NoOverlap: c.NoOverlap, Products: products[c.Products], Timeline: c.Timeline != "",
	}, device, source)
	if err != nil {
		return nil, nil, errors.Join(err, device.Close())
	}
	return e, device.Close, nil
}

// write prints the report as a table.
func (r *stepReport) write(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s on %s, %s\n\n", r.Model, r.Device, r.Mode)
	fmt.Fprintf(&b, "%-8s %5s %6s %6s %9s %9s %9s %9s %6s %8s %8s %7s %7s %7s\n", "step", "rows", "tokens", "ctx", "ms", "fastest", "slowest", "floor", "share",
		"TFLOP/s", "launch", "graphs", "gap us", "p99")
	for _, l := range r.Lines {
		floor, share, gap, gapP99 := "-", "-", "-", "-"
		if l.Kind != "prefill" {
			gap, gapP99 = fmt.Sprintf("%.1f", l.Gap), fmt.Sprintf("%.1f", l.GapP99)
		}
		if l.Floor > 0 && l.Share > 0 {
			floor, share = fmt.Sprintf("%.3f", l.Floor), fmt.Sprintf("%.0f%%", 100*l.Share)
		}
		fmt.Fprintf(&b, "%-8s %5d %6d %6d %9.3f %9.3f %9.3f %9s %6s %8.1f %8.3f %6.0f%% %7s %7s\n", l.Kind, l.Rows, l.Tokens, l.Context, l.Median, l.Fastest,
			l.Slowest, floor, share, l.TFlops, l.Launch, 100*l.Replayed, gap, gapP99)
		if len(l.Phases) > 0 {
			var parts []string
			for _, name := range slices.Sorted(maps.Keys(l.Phases)) {
				parts = append(parts, fmt.Sprintf("%s %.3f", name, l.Phases[name]))
			}
			fmt.Fprintf(&b, "%8s %s\n", "", strings.Join(parts, " · "))
		}
	}
	_, err := io.WriteString(w, b.String())
	for i := range r.Timelines {
		if err == nil {
			_, err = io.WriteString(w, "\n")
		}
		if err == nil {
			err = r.Timelines[i].Write(w)
		}
	}
	return err
}
