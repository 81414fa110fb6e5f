package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/tokenrouter/tokenrouter/worker/executor/cudaexec"
)

// errGPULost ends the runs of replicas whose GPU another replica's fault has
// taken with it: they share its context.
var errGPULost = errors.New("the GPU's context was lost by a fault")

// gpus are the GPUs that this process has open, each once for all its models.
type gpus struct {
	open func(ordinal int) (*cudaexec.Device, error)
	log  *slog.Logger

	mu      sync.Mutex
	devices map[int]*gpu
}

// gpu is an open device. Its fields are guarded by gpus.mu.
type gpu struct {
	device *cudaexec.Device
	users  int
	// gone is closed when fault is set: nothing can be done with the device any more.
	gone  chan struct{}
	fault error
}

func newGPUs(cfg *Config, log *slog.Logger) *gpus {
	open := cfg.openDevice
	if open == nil {
		open = func(ordinal int) (*cudaexec.Device, error) {
			return cudaexec.OpenDevice(cudaexec.DeviceConfig{
				Ordinal: ordinal, CubinDir: cfg.CUDA.CubinDir, NVRTCPath: cfg.CUDA.NVRTC, CuBLASLtPath: cfg.CUDA.CuBLASLt,
			})
		}
	}
	return &gpus{open: open, log: log, devices: map[int]*gpu{}}
}

// get opens a GPU unless it is open. A lost one is opened anew once nobody uses it.
func (g *gpus) get(ordinal int) (*gpu, error) {
	if d := g.devices[ordinal]; d != nil {
		if d.fault == nil {
			return d, nil
		}
		if d.users > 0 {
			return nil, fmt.Errorf("GPU %d: %w; other replicas have not let go of it yet", ordinal, errGPULost)
		}
		if err := d.device.Close(); err != nil {
			g.log.Debug("close a lost GPU", "gpu", ordinal, "err", err)
		}
		delete(g.devices, ordinal)
	}
	device, err := g.open(ordinal)
	if err != nil {
		return nil, fmt.Errorf("GPU %d: %w", ordinal, err)
	}
	d := &gpu{device: device, gone: make(chan struct{})}
	g.devices[ordinal] = d
	return d, nil
}

// look opens a GPU and returns its device, for questions. It stays open.
func (g *gpus) look(ordinal int) (*cudaexec.Device, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	d, err := g.get(ordinal)
	if err != nil {
		return nil, err
	}
	return d.device, nil
}

// acquire is look for a replica's run, which must release it.
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
	d.users--
}

// lose marks a GPU as lost, so that all who use it end.
func (g *gpus) lose(d *gpu, fault error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if d.fault == nil {
		d.fault = fault
		close(d.gone)
	}
}

// close closes all GPUs. Nobody uses them any more.
func (g *gpus) close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []error
	for ordinal, d := range g.devices {
		if err := d.device.Close(); err != nil && d.fault == nil {
			errs = append(errs, fmt.Errorf("close GPU %d: %w", ordinal, err))
		}
	}
	clear(g.devices)
	return errors.Join(errs...)
}
