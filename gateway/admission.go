package gateway

import (
	"context"
	"sync"
)

// admission bounds the answers in flight and lets the gateway drain.
type admission struct {
	limit int
	// stopping ends when requests still in flight must end. Ended by stop, which is called once.
	stopping context.Context
	stop     context.CancelFunc

	mu       sync.Mutex
	inFlight int
	draining bool
	// idle is closed by the last release once draining.
	idle chan struct{}
}

func newAdmission(limit int) *admission {
	a := &admission{limit: limit, idle: make(chan struct{})}
	a.stopping, a.stop = context.WithCancel(context.Background())
	return a
}

// acquire takes n places, or returns errDraining or tooMany. It never waits.
func (a *admission) acquire(n int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.draining {
		return errDraining
	}
	if a.inFlight+n > a.limit {
		return tooMany()
	}
	a.inFlight += n
	return nil
}

func (a *admission) release(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.inFlight -= n
	if a.draining && a.inFlight == 0 {
		close(a.idle)
	}
}

// drain refuses everything new from now on.
func (a *admission) drain() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.draining {
		return
	}
	a.draining = true
	if a.inFlight == 0 {
		close(a.idle)
	}
}

func (a *admission) isDraining() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.draining
}

// wait blocks until nothing is in flight, after drain, or until ctx ends.
func (a *admission) wait(ctx context.Context) {
	select {
	case <-a.idle:
	case <-ctx.Done():
	}
}

// within returns a context that ends with ctx, or because of errDraining when requests in
// flight must end. The function releases it.
func (a *admission) within(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	forget := context.AfterFunc(a.stopping, func() { cancel(errDraining) })
	return ctx, func() {
		forget()
		cancel(nil)
	}
}
