package engine

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"testing"

	"github.com/sourcegraph/conc"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/driver/drivertest"
	"github.com/tokenrouter/tokenrouter/cuda/nvrtc"
	"github.com/tokenrouter/tokenrouter/gateway/session"
	"github.com/tokenrouter/tokenrouter/worker/executor/cudaexec"
)

// dummies makes the models of a configuration dummy ones.
func dummies(cfg *Config) {
	for i := range cfg.Models {
		seed := uint64(7 + i)
		cfg.Models[i].Dummy = &seed
	}
}

// A pair without tokenizers: ids in, ids out, text is the ids in decimal, nothing ends an answer but its bound.
func TestDummyModels(t *testing.T) {
	coin := 0.3
	e := start(t, func(cfg *Config) {
		cfg.Device = "cpu"
		dummies(cfg)
		cfg.Deployments[0].Policy = Policy{Name: "random", Threshold: &coin}
	})
	seed := uint64(1)
	first, err := ask(e, Request{Model: "tiny", PromptIDs: []int32{5, 6, 700}, MaxTokens: 40, Seed: &seed})
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, id := range first[0].IDs {
		text.WriteString(" " + strconv.Itoa(int(id)))
	}
	if first[0].Text != text.String() || len(first[0].IDs) != 40 || first[0].End.Finish != "length" {
		t.Errorf("answer %+v", first[0])
	}
	if n := first[0].End.Count("tiny-l"); n == 0 || n == 40 {
		t.Errorf("the large model wrote %d of 40 tokens", n)
	}
	again, err := ask(e, Request{Model: "tiny", Prompt: "5 6  700", MaxTokens: 40, Seed: &seed})
	if err != nil {
		t.Fatal(err)
	}
	if d := differs(again, first); d != "" {
		t.Errorf("the same prompt in decimal: %s", d)
	}
	for name, r := range map[string]Request{
		"no tokenizer":     {Model: "tiny", Messages: []Message{{Role: "user", Content: "hello"}}},
		"is not an id":     {Model: "tiny", Prompt: "hello"},
		"below the vocabu": {Model: "tiny", PromptIDs: []int32{749}},
	} {
		_, err := ask(e, r)
		var refused *generate.Error
		if !errors.As(err, &refused) || refused.Code != generate.CodeInvalid || !strings.Contains(refused.Message, name) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestMakePlan(t *testing.T) {
	pair := func(change func(*Config)) Config {
		cfg := Defaults()
		cfg.Models = []Model{{Name: "qwen3-0.6b", Threshold: 1}, {Name: "qwen3-32b", Threshold: 1}}
		cfg.Deployments = nil
		dummies(&cfg)
		cfg.GPUMemory = 141e9
		change(&cfg)
		return cfg
	}
	tests := []struct {
		name   string
		change func(*Config)
		tokens []int // of each model, in order, within 2 % since reserves are tuned; 0 means as many as the model before
		fault  error
	}{
		{"as many as fit", func(*Config) {}, []int{157888, 0}, nil},
		{"half the memory is too little", func(c *Config) { c.MemoryShare = 0.4 }, nil, cudaexec.ErrMemory},
		{"by number", func(c *Config) { c.KVTokens = 10000 }, []int{10048, 0}, nil},
		{"a number that does not fit", func(c *Config) { c.KVTokens = 200000 }, nil, cudaexec.ErrMemory},
		{"a GPU each", func(c *Config) { c.GPUs = []int{0, 1} }, []int{1094080, 232384}, nil},
		{"two replicas of the small one", func(c *Config) { c.Models[0].Replicas = 2 }, []int{118144, 0}, nil},
		{"pools beyond all slots are cut", func(c *Config) {
			c.Models = []Model{{Name: "tiny-s", Threshold: 1}}
		}, []int{maxSlots * 4096}, nil},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			p, err := MakePlan(pair(tc.change))
			if tc.fault != nil {
				if !errors.Is(err, tc.fault) || !strings.Contains(err.Error(), "GiB") {
					t.Errorf("error %v, want %v with numbers", err, tc.fault)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			i, before := 0, 0
			for _, d := range p.Devices {
				if d.Headroom() < 0 {
					t.Errorf("headroom %d", d.Headroom())
				}
				for _, m := range d.Models {
					want, slack := tc.tokens[i], tc.tokens[i]/50
					if want == 0 {
						want = before
					}
					if m.Tokens < want-slack || m.Tokens > want+slack {
						t.Errorf("%s: %d tokens, want %d", m.Model, m.Tokens, want)
					}
					i, before = i+1, m.Tokens
				}
			}
			if i != len(tc.tokens) {
				t.Errorf("%d models in the plan:\n%s", i, p)
			}
		})
	}
}

// A machine without a GPU serves on the CPU unless a GPU is insisted on.
func TestNoGPU(t *testing.T) {
	absent := func(int) (*cudaexec.Device, error) { return nil, driver.ErrNoDriver }
	for _, tc := range []struct {
		device string
		gpus   []int
		fails  bool
	}{{"auto", nil, false}, {"cpu", nil, false}, {"cuda", nil, true}, {"auto", []int{0}, true}} {
		cfg := Defaults()
		cfg.Device, cfg.GPUs, cfg.openDevice = tc.device, tc.gpus, absent
		e, err := Load(cfg)
		if tc.fails {
			if !errors.Is(err, driver.ErrNoDriver) || !strings.Contains(err.Error(), "trctl doctor") {
				t.Errorf("%+v: error %v", tc, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if p := e.Plan(); len(p.Devices) != 1 || p.Devices[0].Device != "CPU" || p.Devices[0].Models[1].Tokens != DefaultKVTokens {
			t.Errorf("%+v: plan\n%s", tc, p.String())
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}

// blanks builds kernels that the simulated driver accepts and does not run.
type blanks struct{}

func (blanks) Build(_ context.Context, programs []nvrtc.Program) ([]nvrtc.Binary, nvrtc.BuildStats, error) {
	out := make([]nvrtc.Binary, len(programs))
	for i := range out {
		out[i].Cubin = []byte("blank")
	}
	return out, nvrtc.BuildStats{}, nil
}

// simulated makes a configuration use a simulated GPU whose kernels do nothing. opened hears of every opening.
func simulated(t *testing.T, cfg *Config, memory uint64, opened chan<- struct{}) *drivertest.Fake {
	f := drivertest.New(t, drivertest.Options{Memory: memory})
	cfg.Device = "cuda"
	cfg.openDevice = func(ordinal int) (*cudaexec.Device, error) {
		drv, err := f.Load()
		if err != nil {
			return nil, err
		}
		opened <- struct{}{}
		return cudaexec.OpenDeviceWith(drv, ordinal, blanks{}, nil, nil)
	}
	return f
}

// loading is the configuration of an engine on a simulated GPU. opened hears of every opening, loaded of every model
// whose weights are there.
func loading(t *testing.T) (cfg Config, fake *drivertest.Fake, opened chan struct{}, loaded chan string) {
	opened, loaded = make(chan struct{}, 16), make(chan string, 1024)
	cfg = Defaults()
	fake = simulated(t, &cfg, 8<<30, opened)
	dummies(&cfg)
	cfg.KVTokens = 4096
	cfg.Progress = func(model string, done, total int64) {
		if done == total {
			loaded <- model
		}
	}
	return cfg, fake, opened, loaded
}

// failures is a log handler that passes on the errors of failed replicas.
type failures struct {
	slog.Handler
	found chan error
}

func (f failures) WithAttrs([]slog.Attr) slog.Handler               { return f }
func (f failures) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }
func (f failures) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if err, ok := a.Value.Any().(error); ok && strings.HasPrefix(r.Message, "replica failed") {
			select {
			case f.found <- err:
			default:
			}
		}
		return true
	})
	return nil
}

// asking keeps requests for the pair coming until the returned function is called.
func asking(t *testing.T, e *Engine) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var group conc.WaitGroup
	group.Go(func() {
		for ctx.Err() == nil {
			for _, err := range e.Generate(ctx, Request{Model: "tiny", PromptIDs: []int32{1, 2}, MaxTokens: 4}) {
				var refused *generate.Error
				again := errors.As(err, &refused) && refused.Code == generate.CodeUnavailable // what clients may retry
				if err != nil && ctx.Err() == nil && !again && !errors.Is(err, session.ErrLost) && !errors.Is(err, ErrClosed) {
					t.Errorf("the request ended with %v", err)
				}
			}
		}
	})
	return func() {
		cancel()
		group.Wait()
	}
}

// A fault of one model takes the GPU's context with it. Both replicas end, the context is reset, the GPU opened anew, and
// both load again. What still fails after that ends the engine.
func TestLostGPU(t *testing.T) {
	found := failures{slog.DiscardHandler, make(chan error, 64)}
	cfg, fake, opened, loaded := loading(t)
	cfg.Logger = slog.New(found)
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	stop := asking(t, e)
	defer stop()
	// A fault that comes while the GPU is being opened spoils it at once, so the engine may end a round early.
	rounds := 0
	for ; rounds < maxLosses; rounds++ {
		if !received(e, opened) || !received(e, loaded) || !received(e, loaded) {
			break
		}
		fake.Fault(0, driver.CodeIllegalAddress)
		if !received(e, found.found) {
			break
		}
	}
	<-e.closing
	stop()
	if err := e.Close(); !errors.Is(err, ErrDeviceLost) || !driver.IsSticky(err) {
		t.Errorf("the engine ended with %v, want ErrDeviceLost and the last fault", err)
	} else if errors.Is(err, cudaexec.ErrContext) {
		fake.Leaky() // a context that cannot be opened keeps what it held
	}
	if rounds == maxLosses && len(opened) != 0 {
		t.Error("the GPU was opened once more")
	}
}

// received waits for a value, and reports false if the engine ends instead.
func received[T any](e *Engine, c <-chan T) bool {
	select {
	case <-c:
		return true
	case <-e.closing:
		return false
	}
}

// A GPU whose context cannot be opened anew ends the engine at once.
func TestSpoiledGPU(t *testing.T) {
	opened := make(chan struct{}, 16)
	cfg := Defaults()
	fake := simulated(t, &cfg, 8<<30, opened)
	dummies(&cfg)
	cfg.KVTokens = 4096
	open := cfg.openDevice
	cfg.openDevice = func(ordinal int) (*cudaexec.Device, error) {
		if len(opened) > 0 { // the fault outlives the reset
			fake.Fault(0, driver.CodeIllegalAddress)
		}
		return open(ordinal)
	}
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	fake.Fault(0, driver.CodeIllegalAddress)
	stop := asking(t, e)
	<-e.closing
	stop()
	if err := e.Close(); !errors.Is(err, ErrDeviceLost) || !errors.Is(err, cudaexec.ErrContext) {
		t.Errorf("the engine ended with %v, want ErrDeviceLost and ErrContext", err)
	}
}

// What does not fit ends the engine with numbers, it is not tried again; what was not asked for by number shrinks.
func TestOutOfMemory(t *testing.T) {
	opened := make(chan struct{}, 16)
	cfg := Defaults()
	fake := simulated(t, &cfg, 8<<30, opened)
	cfg.Models, cfg.Deployments = cfg.Models[:1], nil
	dummies(&cfg)
	cfg.KVTokens = 4096
	fake.Fail("cuMemAlloc_v2", 3, driver.CodeOutOfMemory) // opening the GPU, weights, the pool
	if e, err := New(cfg); !errors.Is(err, cudaexec.ErrMemory) || !strings.Contains(err.Error(), "64 pages") {
		t.Errorf("error %v, want ErrMemory with numbers", err)
		if err == nil {
			t.Error(e.Close())
		}
	}
	cfg.KVTokens = 0
	fake.Fail("cuMemAlloc_v2", 3, driver.CodeOutOfMemory) // opening the GPU, weights, the pool
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// A pool that comes out smaller than planned bounds the other model's, whichever of them was built first.
func TestPoolsStayEqual(t *testing.T) {
	for nth := 1; nth <= 4; nth++ { // allocations of the two models: weights and pool of each, in any order
		t.Run(strconv.Itoa(nth), func(t *testing.T) {
			opened := make(chan struct{}, 16)
			cfg := Defaults()
			fake := simulated(t, &cfg, 1<<30, opened)
			dummies(&cfg)
			cfg.MemoryShare = 0.5
			plan, err := MakePlan(cfg)
			if err != nil {
				t.Fatal(err)
			}
			planned := plan.Devices[0].Models[0].Tokens / cfg.PageSize
			fake.Fail("cuMemAlloc_v2", 1+nth, driver.CodeOutOfMemory) // opening the GPU takes one
			e, err := New(cfg)
			if errors.Is(err, cudaexec.ErrMemory) { // it was an allocation that cannot shrink
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var pages []int
			for _, r := range e.replicas {
				pages = append(pages, r.current.Load().Stats().PagesTotal)
			}
			if len(pages) != 2 || pages[0] != pages[1] || pages[0] >= planned || pages[0] == 0 {
				t.Errorf("pools of %v pages, planned %d", pages, planned)
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
