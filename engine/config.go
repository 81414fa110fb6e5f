package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tokenrouter/tokenrouter/cuda/faults"
	"github.com/tokenrouter/tokenrouter/cuda/inventory"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/executor/cudaexec"
	"github.com/tokenrouter/tokenrouter/worker/schedule"
	"github.com/tokenrouter/tokenrouter/worker/subservice"
)

// Config says what an engine serves.
type Config struct {
	// Models are loaded once each, whatever number of deployments use them.
	Models []Model
	// Deployments are the names that requests can ask for. Each model is also
	// served alone under its own name, unless a deployment has that name.
	Deployments []Deployment
	// PageSize is the number of token slots in a page of keys and values.
	PageSize int
	// Device is where models run: "cuda", "cpu", or "auto" (also ""), which is cuda
	// on a machine with a GPU that can be used.
	Device string
	// GPUs are the ordinals of the models' GPUs, one for all or one each; empty
	// means GPU 0 for all. Models on one GPU share its context and its memory.
	GPUs []int
	// KVTokens is the number of token slots of each model's pool. 0 lets a GPU's
	// models have as many as fit, the same for each, and is DefaultKVTokens on a CPU.
	KVTokens int
	// MemoryShare is the part of a GPU's memory that its models may take together;
	// 0 means DefaultMemoryShare.
	MemoryShare float64
	// GPUMemory bounds, in bytes, what a GPU is taken to have; 0 asks the GPU.
	GPUMemory int64
	// CUDA says where the parts are that a GPU needs.
	CUDA CUDA
	// Progress is told how many bytes of a model's weights are on its GPU, from
	// several goroutines. A CPU's models are copied from mapped files, the embedded
	// ones in well under a second, so there is nothing to tell of them. May be nil.
	Progress func(model string, done, total int64)
	// Schedule says when models start their steps.
	Schedule schedule.Rule
	// Lookahead says whether steps are launched before the results of the one before
	// are known. Executors on a CPU cannot.
	Lookahead subservice.Lookahead
	// Reproducible trades speed on a GPU for answers that are the same to the last
	// bit whatever else runs: a token then depends on its own sequence alone. On a
	// CPU that is always so.
	Reproducible bool
	// AutoThresholds lets the models' batching thresholds follow what is measured:
	// Model.Threshold then holds until enough is known. It has no effect on schedules
	// without thresholds.
	AutoThresholds bool
	// MaxRows bounds the sequences in a step, MaxQueue the requests that wait for admission.
	MaxRows, MaxQueue int
	// ChunkTokens bounds the tokens of a prefill chunk.
	ChunkTokens int
	// Workers is the number of CPU threads a model's step may use; 0 means all.
	Workers int
	// Network connects the engine with others. It then serves what it is assigned
	// (Engine.Assign), and needs neither Models nor Deployments; Schedule must be one in
	// which models do not wait for each other. Nil is for an engine of its own.
	Network Network
	// DrainTimeout bounds how long a replica that is drained may take.
	DrainTimeout time.Duration
	// HangAfter is what every step is given at least before it has hung (ErrHung); 0 is 2 s on a GPU, 5 min on a CPU.
	HangAfter time.Duration
	// Notify is called, from any goroutine, when Engine.Reports has changed. It must not
	// block. May be nil.
	Notify func()
	// Restarts is how many processes in a row have ended with ErrDeviceLost or ErrHung before this one took their place, for a metric.
	Restarts int
	// Faults opens what faults of GPUs come from; nil for NVML. Watched are GPUs whose faults
	// are told of from the start, and not only once they are in use.
	Faults  func() (faults.Events, error)
	Watched []faults.Device
	// Quarantine is told of a fault after which a GPU must not be used until somebody has
	// looked at it. It calls bar, once: the engine lets go of the GPU, and uses it again by the
	// first assignment after that call which does not bar it (Assignment.Barred). So the owner
	// calls bar while no assignment is made, and every later one knows of the fault. It is
	// called by the goroutine that watches, and must be quick. Nil is for an engine that opens
	// the GPU anew, as it does after other faults.
	Quarantine func(d faults.Device, e inventory.Event, bar func())
	// Metrics receives the metrics of sessions and replicas. May be nil.
	Metrics *prometheus.Registry
	// Logger may be nil.
	Logger *slog.Logger

	// openDevice opens a GPU; nil for the real one.
	openDevice func(ordinal int) (*cudaexec.Device, error)
	// newCPU builds the executor of a model on the CPU with a pool of so many pages; nil
	// for the real one.
	newCPU func(model string, vocab, pages int) (executor.Executor, error)
}

// CUDA says where the parts are that a GPU needs. Empty fields search.
type CUDA struct {
	// CubinDir keeps compiled kernels; empty compiles at every start.
	CubinDir string
	// NVRTC and CuBLASLt are libraries.
	NVRTC, CuBLASLt string
}

// DefaultKVTokens is the size of a model's pool on a CPU, DefaultMemoryShare what
// models may take of a GPU's memory.
const (
	DefaultKVTokens    = 1 << 17
	DefaultMemoryShare = 0.9
)

// Devices lists the values of Config.Device.
func Devices() []string { return []string{"auto", "cpu", "cuda"} }

// Model is one checkpoint.
type Model struct {
	// Name is the served name, unique.
	Name string
	// Dir is the checkpoint's directory; empty means the embedded model of that
	// name, or with Dummy also one of the catalogue.
	Dir string
	// Dummy, if set, fills the model's shape with the hash of that seed (package
	// models/dummy) and reads no weights. Such a model has no tokenizer: its text is
	// the ids in decimal.
	Dummy *uint64
	// Threshold is the batching threshold B (1 starts a step at once).
	Threshold int
	// LongestWait overrides Threshold; 0 means automatic.
	LongestWait time.Duration
	// Replicas is the number of sub-services of this model; 0 means 1.
	Replicas int
}

// Defaults returns the embedded pair tiny-s and tiny-l under the name "tiny".
func Defaults() Config {
	return Config{
		Models:      []Model{{Name: "tiny-s", Threshold: 1}, {Name: "tiny-l", Threshold: 1}},
		Deployments: []Deployment{{Name: "tiny", Models: []string{"tiny-s", "tiny-l"}, Policy: Policy{Name: "r-stitch", Threshold: TrioThreshold("r-stitch")}}},
		PageSize:    64,
		Device:      "auto",
		MemoryShare: DefaultMemoryShare,
		MaxRows:     64,
		MaxQueue:    1024,
		ChunkTokens: 512,
	}
}

// Validate returns every fault of the configuration, each with its field path.
func (c *Config) Validate() error {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", field, fmt.Sprintf(format, args...)))
	}
	names := map[string]bool{}
	if len(c.Models) == 0 && c.Network == nil {
		bad("models", "at least one model is needed")
	}
	for i, m := range c.Models {
		field := fmt.Sprintf("models[%d]", i)
		switch {
		case m.Name == "":
			bad(field+".name", "is empty")
		case names[m.Name]:
			bad(field+".name", "%q is used twice", m.Name)
		}
		names[m.Name] = true
		if m.Threshold < 1 {
			bad(field+".threshold", "is %d, must be at least 1", m.Threshold)
		}
		if m.LongestWait < 0 {
			bad(field+".longest_wait", "is negative")
		}
		if m.Replicas < 0 {
			bad(field+".replicas", "is negative")
		}
	}
	served := map[string]bool{}
	for i, d := range c.Deployments {
		field := fmt.Sprintf("deployments[%d]", i)
		if d.Name == "" || served[d.Name] {
			bad(field+".name", "%q is empty or used twice", d.Name)
		}
		served[d.Name] = true
		if len(d.Models) == 0 {
			bad(field+".models", "at least one model is needed")
		}
		for j, m := range d.Models {
			if !names[m] {
				bad(fmt.Sprintf("%s.models[%d]", field, j), "%q is not in models", m)
			}
		}
	}
	c.checkSizes(bad)
	if int(c.Lookahead) >= len(subservice.Lookaheads()) {
		bad("lookahead", "%s is not one of %s", c.Lookahead, strings.Join(subservice.Lookaheads(), ", "))
	}
	if c.Network != nil && !c.Schedule.Overlaps() {
		bad("schedule", "%s needs all models in one process", c.Schedule)
	}
	if c.DrainTimeout < 0 {
		bad("drain_timeout", "is negative")
	}
	if c.HangAfter < 0 {
		bad("hang_after", "is negative")
	}
	c.checkDevice(bad)
	return errors.Join(errs...)
}

// Bounds of sizes, which the executors of all devices take.
const (
	maxPageSize = 4096
	maxPages    = 1 << 24
	maxQueue    = 1 << 20
	maxWorkers  = 1024
	// A step has a chunk and all rows, together fewer than 64 Ki tokens.
	maxRows, maxChunk = 8 << 10, 48 << 10
)

// checkSizes reports sizes that are out of bounds, before anything is started for them.
func (c *Config) checkSizes(bad func(field, format string, args ...any)) {
	for _, f := range []struct {
		name      string
		value, to int
	}{
		{"page_size", c.PageSize, maxPageSize},
		{"max_rows", c.MaxRows, maxRows},
		{"max_queue", c.MaxQueue, maxQueue},
		{"chunk_tokens", c.ChunkTokens, maxChunk},
	} {
		switch {
		case f.value < 1:
			bad(f.name, "is %d, must be at least 1", f.value)
		case f.value > f.to:
			bad(f.name, "is %d, must be at most %d", f.value, f.to)
		}
	}
	if c.Workers < 0 || c.Workers > maxWorkers {
		bad("workers", "is %d, must be 1 to %d, or 0 for all CPUs", c.Workers, maxWorkers)
	}
	switch most := maxPages * min(max(1, c.PageSize), maxPageSize); {
	case c.KVTokens < 0:
		bad("kv_tokens", "is %d, must be at least 1, or 0 for automatic", c.KVTokens)
	case c.KVTokens > most:
		bad("kv_tokens", "is %d, must be at most %d, which are %d pages", c.KVTokens, most, maxPages)
	}
}

// checkDevice reports faults of what says where models run.
func (c *Config) checkDevice(bad func(field, format string, args ...any)) {
	if c.Device != "" && !slices.Contains(Devices(), c.Device) {
		bad("device", "%q is not one of %s", c.Device, strings.Join(Devices(), ", "))
	}
	if n := len(c.GPUs); n > 1 && n != len(c.Models) {
		bad("gpus", "%d ordinals for %d models", n, len(c.Models))
	}
	for i, g := range c.GPUs {
		if g < 0 || c.Device == "cpu" {
			bad(fmt.Sprintf("gpus[%d]", i), "%d cannot be used with device %q", g, c.Device)
		}
	}
	if c.MemoryShare < 0 || c.MemoryShare > 1 || c.MemoryShare != c.MemoryShare {
		bad("gpu_memory_share", "is %v, must be above 0 and at most 1", c.MemoryShare)
	}
	if c.GPUMemory < 0 {
		bad("gpu_memory", "is negative")
	}
}
