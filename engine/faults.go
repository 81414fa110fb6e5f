package engine

import (
	"slices"
	"time"

	"github.com/tokenrouter/tokenrouter/cuda/faults"
)

// settling is how long a GPU must have been open for a fault that is reported of it to count. One fault is often reported in
// several ways; what comes sooner is taken for a late report of the fault that the GPU was opened after.
const settling = 2 * time.Second

// newFaults makes the watch for faults of the GPUs that are open.
func (e *Engine) newFaults() (*faults.Watcher, error) {
	cfg := faults.Config{
		Open: e.cfg.Faults, Used: e.gpus.used, Devices: e.gpus.list, Spoilt: e.gpus.spoil, Metrics: e.cfg.Metrics, Log: e.log,
	}
	if cfg.Open == nil {
		cfg.Open = faults.NVML
	}
	if e.cfg.Quarantine != nil {
		cfg.Condemned = e.condemn
	}
	return faults.New(cfg)
}

// list describes the GPUs that are watched from the start, are open, or were lost and are to be opened anew, in no certain
// order.
func (g *gpus) list() []faults.Device {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.described
}

// describe adds a GPU that was opened to the list, unless it is there. The caller holds mu.
func (g *gpus) describe(ordinal int, d *gpu) {
	if slices.ContainsFunc(g.described, func(f faults.Device) bool { return f.Ordinal == ordinal }) {
		return
	}
	uuid, err := d.device.UUID()
	if err != nil {
		g.log.Warn("a GPU does not say who it is, so its faults are not watched", "gpu", ordinal, "err", err)
		return
	}
	// Readers have the old list.
	g.described = append(slices.Clip(g.described), faults.Device{Ordinal: ordinal, UUID: uuid, Name: d.device.Name()})
	if len(g.described) == 1 {
		close(g.used)
	}
}

// spoil marks a GPU as lost by a fault that was reported of it. Its replicas then end, as if they had met the fault
// themselves, and start again once the GPU is open anew.
func (g *gpus) spoil(f faults.Device, fault error) {
	g.mu.Lock()
	d := g.devices[f.Ordinal]
	young := d == nil || time.Since(d.opened) < settling
	g.mu.Unlock()
	if !young {
		g.lose(d, fault)
	}
}
