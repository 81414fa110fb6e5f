package engine

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/cuda/faults"
	"github.com/tokenrouter/tokenrouter/cuda/inventory"
)

// errBarred says that a GPU is in quarantine: it must not be used until somebody says so.
var errBarred = errors.New("it is in quarantine")

// condemn is told by the watch of a fault after which a GPU must not be used. The owner
// hears of it, and the engine lets go of the GPU, before the owner has made an assignment
// that says so.
func (e *Engine) condemn(d faults.Device, ev inventory.Event) {
	e.cfg.Quarantine(d, ev, func() {
		var fault error
		if ev.Meaning().Spoils {
			fault = fmt.Errorf("%w: %s", inventory.ErrGPULost, ev)
		}
		e.gpus.bar(d.Ordinal, ev.String(), fault)
	})
}

// bar keeps one more GPU from being used. With a fault the GPU is lost by it, too, however
// short a time it has been open.
func (g *gpus) bar(ordinal int, why string, fault error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.barred = maps.Clone(g.barred)
	if g.barred == nil {
		g.barred = map[int]string{}
	}
	g.barred[ordinal] = why
	if d := g.devices[ordinal]; d != nil && fault != nil {
		d.lose(fault)
	}
	g.letGo(ordinal)
}

// setBarred says which GPUs must not be used from now on, and why, by ordinal.
func (g *gpus) setBarred(barred map[int]string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.barred = barred
	for ordinal := range barred {
		g.letGo(ordinal)
	}
}

// letGo closes a barred GPU that nobody uses, so that nothing of this process is in its
// memory. One that was lost by a fault is left alone: to close it may hang. What was counted
// of its losses is for whoever looks at it. The caller holds mu.
func (g *gpus) letGo(ordinal int) {
	d := g.devices[ordinal]
	if d == nil {
		return
	}
	d.losses = 0
	if d.device == nil || d.users > 0 || d.fault != nil {
		return
	}
	d.fault = errBarred
	close(d.gone)
	if err := d.device.Close(); err != nil {
		g.log.Warn("close a GPU in quarantine", "gpu", ordinal, "err", err)
	}
	d.device = nil
}

// barred is why a placement must not run; empty if it may.
func (a *Assignment) barred(p *Placement) string {
	for _, ordinal := range p.GPUs {
		if why, ok := a.Barred[ordinal]; ok {
			return fmt.Sprintf("GPU %d: %v: %s", ordinal, errBarred, why)
		}
	}
	return ""
}

// bar ends a replica whose GPU must not be used: in order if it serves, at once if not. It
// can be recruited again when the GPU may be used.
func (r *replica) bar() {
	r.barred.Store(true)
	if phase, _ := r.phaseNow(); phase == cluster.Ready {
		r.drain()
	} else {
		r.end()
	}
}

// keepOut notes why a placement is not even tried, in which phase it is therefore.
func (e *Engine) keepOut(p *Placement, phase cluster.Phase, why string) {
	why = why[:min(len(why), maxReason)]
	report := cluster.ReplicaReport{ID: p.Name, Generation: p.Generation, Phase: phase, Reason: why}
	e.mu.Lock()
	old := e.failed[p.Name]
	fresh := old == nil || !old.untried || old.Generation != p.Generation || old.Phase != phase || old.Reason != why
	if fresh {
		e.failed[p.Name] = &failure{report, time.Now(), true}
	}
	e.mu.Unlock()
	if fresh {
		e.notify()
	}
}
