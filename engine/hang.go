package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sourcegraph/conc"

	"github.com/tokenrouter/tokenrouter/worker/subservice"
)

// ErrHung means that a step of a replica does not end (subservice.ErrHung). Nothing in the process can free it; a new process may.
// It ends Run, which then leaves the step's executor behind, and every GPU as it is.
var ErrHung = errors.New("a step hangs; a new process must be started")

// letGo is how long an engine with a step that hangs waits for its other replicas: they may share the GPU, or the driver's locks,
// with the step.
const letGo = time.Second

// hang is whether a step has hung.
type hang struct {
	once sync.Once
	// found is closed by note; err is set before.
	found chan struct{}
	err   error
}

func (h *hang) note(err error) {
	h.once.Do(func() {
		h.err = err
		close(h.found)
	})
}

// any says that a step has hung.
func (h *hang) any() bool {
	select {
	case <-h.found:
		return true
	default:
		return false
	}
}

// noteHang ends the engine if a sub-service's error is that of a step that hangs.
func (e *Engine) noteHang(r *replica, fault error) bool {
	if !errors.Is(fault, subservice.ErrHung) {
		return false
	}
	r.hangs.Add(1)
	e.hang.note(fmt.Errorf("%w: replica %s: %w", ErrHung, r.name, fault))
	return true
}

// moveTime is how long a model that is loaded onto a GPU, or given up, may hold a step up.
const moveTime = 30 * time.Second

// heldUp is how long a step of a replica may be held up by the others on its device: its kernels may have to wait for theirs. A
// model that is loaded may hold up all who use the driver.
func (e *Engine) heldUp(r *replica) time.Duration {
	own, most := r.model.place, time.Duration(0)
	if own.cuda && e.moving.Load() > 0 {
		most = moveTime
	}
	for _, other := range e.list() {
		if p := other.model.place; other == r || p.cuda != own.cuda || p.ordinal != own.ordinal {
			continue
		}
		if sub := other.current.Load(); sub != nil {
			most = max(most, sub.StepAllowed())
		}
	}
	return most
}

// runAll runs what Run runs until all of it has ended, or until a step has hung: what has not ended soon after that is left behind,
// for a new process to end it.
func (e *Engine) runAll(ctx context.Context, all func(context.Context) error) error {
	inner, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan struct{}) // closed when all has
	var running conc.WaitGroup
	var failed error // what all has ended with, once it has
	running.Go(func() {
		defer close(ended)
		failed = all(inner)
	})
	select {
	case <-ended:
		if running.Wait(); !e.hang.any() {
			return failed
		}
	case <-e.hang.found:
	}
	asked := ctx.Err() != nil // it was to stop anyway: no new process is wanted
	stop()
	timer := time.NewTimer(letGo)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
		e.log.Warn("some of the engine does not end; it is left behind")
	}
	if asked {
		return nil
	}
	return e.hang.err
}
