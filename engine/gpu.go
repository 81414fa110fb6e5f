package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/faults"
	"github.com/tokenrouter/tokenrouter/worker/executor/cudaexec"
)

// ErrDeviceLost means that a fault has spoiled a GPU for this process: its context cannot be opened anew, or is lost again
// and again. Nothing in the process can help; a new process may. It ends Run.
var ErrDeviceLost = errors.New("a fault has spoiled the GPU for this process; a new process must be started")

// errGPULost ends the runs of replicas whose GPU another replica's fault has
// taken with it: they share its context.
var errGPULost = errors.New("the GPU's context was lost by a fault")

// A GPU that is lost maxLosses times in a row, each time before it has been open for lasting, is given up: whatever fails
// will fail again, and loading the models anew each time serves nobody.
const (
	maxLosses = 3
	lasting   = time.Minute
)

// gpus are the GPUs that this process has open, each once for all its models.
type gpus struct {
	open func(ordinal int) (*cudaexec.Device, error)
	log  *slog.Logger

	mu      sync.Mutex
	devices map[int]*gpu
	// barred are the GPUs that must not be used, and why, by ordinal. The map is replaced, never changed.
	barred map[int]string
	// described are the GPUs that are watched from the start or were opened; the list is replaced, never changed. used is closed once there is one.
	described []faults.Device
	used      chan struct{}
}

// gpu is an open device. Its fields are guarded by gpus.mu.
type gpu struct {
	device *cudaexec.Device
	opened time.Time
	users  int
	// losses counts how often the GPU was lost in a row.
	losses int
	// gone is closed when fault is set: nothing can be done with the device any more.
	gone  chan struct{}
	fault error
}

func newGPUs(cfg *Config, log *slog.Logger) *gpus {
	open := cfg.openDevice
	if open == nil {
		open = func(ordinal int) (*cudaexec.Device, error) {
			return cudaexec.OpenDevice(cudaexec.DeviceConfig{
				Ordinal: ordinal, CubinDir: cfg.CUDA.CubinDir, NVRTCPath: cfg.CUDA.NVRTC, CuBLASLtPath: cfg.CUDA.CuBLASLt, Logger: log,
			})
		}
	}
	g := &gpus{open: open, log: log, devices: map[int]*gpu{}, used: make(chan struct{}), described: slices.Clone(cfg.Watched)}
	if len(g.described) > 0 {
		close(g.used)
	}
	return g
}

// get opens a GPU unless it is open. A lost one is opened anew once nobody uses it; ErrDeviceLost says that this is in vain,
// errBarred that it is not allowed.
func (g *gpus) get(ordinal int) (*gpu, error) {
	if why, barred := g.barred[ordinal]; barred {
		return nil, fmt.Errorf("GPU %d: %w: %s", ordinal, errBarred, why)
	}
	old := g.devices[ordinal]
	if old != nil && old.fault == nil {
		return old, nil
	}
	next := &gpu{gone: make(chan struct{})}
	if old != nil {
		if old.users > 0 {
			return nil, fmt.Errorf("GPU %d: %w; other replicas have not let go of it yet", ordinal, errGPULost)
		}
		if old.losses >= maxLosses {
			return nil, fmt.Errorf("GPU %d: %w: lost %d times in a row, at last by: %w", ordinal, ErrDeviceLost, old.losses, old.fault)
		}
		if old.device != nil { // not yet closed by an attempt before this one
			if err := old.device.Close(); err != nil {
				g.log.Debug("close a lost GPU", "gpu", ordinal, "err", err)
			}
			old.device = nil
		}
		next.losses = old.losses
	}
	var err error
	if next.device, err = g.open(ordinal); err != nil {
		if old != nil && (errors.Is(err, cudaexec.ErrContext) || driver.IsSticky(err)) {
			err = fmt.Errorf("%w: opened after %w: %w", ErrDeviceLost, old.fault, err)
		}
		return nil, fmt.Errorf("GPU %d: %w", ordinal, err)
	}
	switch {
	case old == nil:
	case errors.Is(old.fault, errBarred):
		g.log.Info("a GPU that was in quarantine is open again", "gpu", ordinal)
	default:
		g.log.Warn("a lost GPU is open again", "gpu", ordinal, "fault", old.fault, "cublaslt", next.device.HasCuBLASLt())
	}
	next.opened = time.Now()
	g.devices[ordinal] = next
	g.describe(ordinal, next)
	return next, nil
}

// ask opens a GPU, and asks its device something. It stays open after that.
func (g *gpus) ask(ordinal int, question func(*cudaexec.Device) error) error {
	d, err := g.acquire(ordinal) // so that nobody closes it meanwhile
	if err != nil {
		return err
	}
	defer g.release(d)
	return question(d.device)
}

// acquire opens a GPU for a replica's run, which must release it.
func (g *gpus) acquire(ordinal int) (*gpu, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	d, err := g.get(ordinal)
	if err == nil {
		d.users++
	}
	return d, err
}

func (g *gpus) release(d *gpu) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if d.users--; d.users > 0 {
		return
	}
	for ordinal := range g.barred {
		if g.devices[ordinal] == d {
			g.letGo(ordinal)
		}
	}
}

// lose marks a GPU as lost, so that all who use it end.
func (g *gpus) lose(d *gpu, fault error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	d.lose(fault)
}

// lose is gpus.lose for a caller that holds its lock.
func (d *gpu) lose(fault error) {
	if d.fault != nil {
		return
	}
	if time.Since(d.opened) > lasting {
		d.losses = 0
	}
	d.losses++
	d.fault = fault
	close(d.gone)
}

// close closes all GPUs. Nobody uses them any more.
func (g *gpus) close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []error
	for ordinal, d := range g.devices {
		if d.device == nil {
			continue
		}
		if err := d.device.Close(); err != nil && d.fault == nil {
			errs = append(errs, fmt.Errorf("close GPU %d: %w", ordinal, err))
		}
	}
	clear(g.devices)
	return errors.Join(errs...)
}
