package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/subservice"
)

// errNotShared says that a deployment has something that other processes cannot know.
var errNotShared = errors.New("a policy of one's own cannot be shared by several processes")

// errDrained ends the run of a replica that was drained.
var errDrained = errors.New("drained")

// Times of the crew.
const (
	// loadAgain is when a placement that could not be loaded is tried again.
	loadAgain = 15 * time.Second
	// drainLook is how often a draining replica is looked at.
	drainLook = 10 * time.Millisecond
)

// crew runs the replicas that the engine is assigned, until ctx ends, or a GPU is lost for
// this process.
func (e *Engine) crew(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	group := pool.New().WithErrors()
	again := time.NewTimer(time.Hour)
	defer again.Stop()
	var lost error
	for ctx.Err() == nil {
		e.mu.Lock()
		a, draining := e.assigned, e.draining
		e.mu.Unlock()
		if a != nil {
			var begin []*replica
			begin, lost = e.align(a, draining)
			for _, r := range begin {
				own, end := context.WithCancel(ctx)
				r.end = end
				group.Go(func() error {
					err := e.supervise(own, r)
					if err != nil {
						stop(err)
					}
					end()
					e.leave(r)
					return err
				})
			}
			again.Reset(loadAgain)
		}
		if lost != nil {
			stop(lost)
			break
		}
		if draining && !slices.ContainsFunc(e.list(), (*replica).runs) {
			e.drainedOnce.Do(func() { close(e.drained) })
		}
		select {
		case <-e.assigning:
		case <-again.C:
		case <-ctx.Done():
		}
	}
	return errors.Join(lost, group.Wait())
}

// align brings the replicas in line with an assignment, and returns those that are to
// start. Its error wraps ErrDeviceLost.
func (e *Engine) align(a *Assignment, draining bool) (begin []*replica, lost error) {
	for _, r := range e.list() {
		p := a.placement(r.name)
		switch {
		case p == nil || p.Generation != r.generation:
			r.leaving.Store(true)
			r.end()
			if !r.runs() {
				e.forget(r)
			}
		case p.Draining || draining:
			r.drain()
		case a.barred(p) != "" && !r.runs():
			e.forget(r)
		case a.barred(p) != "":
			r.bar()
		}
	}
	if !draining {
		begin, lost = e.recruit(a)
	}
	if !draining {
		e.renew(a)
	}
	for _, r := range e.list() {
		if r.leaving.Load() {
			continue
		}
		p, faults := e.partOf(r, a)
		faults = append(faults, r.take(p)...)
		if !r.renewing.Load() {
			r.complain(e, faults)
		}
	}
	return begin, lost
}

// placement finds a replica's, nil if there is none.
func (a *Assignment) placement(name string) *Placement {
	for i := range a.Placements {
		if a.Placements[i].Name == name {
			return &a.Placements[i]
		}
	}
	return nil
}

// recruit loads what is new in an assignment. What cannot be loaded is remembered. Its
// error wraps ErrDeviceLost.
func (e *Engine) recruit(a *Assignment) ([]*replica, error) {
	var fresh []*replica
	known := e.list()
	for _, p := range a.Placements {
		if slices.ContainsFunc(known, func(r *replica) bool { return r.name == p.Name }) {
			continue
		}
		if why := a.barred(&p); why != "" {
			e.keepOut(&p, cluster.Failed, why)
			continue
		}
		if p.Draining { // what was to begin again, for another reason, has ended instead
			e.keepOut(&p, cluster.Stopped, "")
			continue
		}
		if f := e.failed[p.Name]; f != nil && !f.untried && f.Generation == p.Generation && time.Since(f.at) < loadAgain {
			continue
		}
		r, err := e.enrol(&p)
		if err != nil {
			e.fail(p, err)
			continue
		}
		fresh = append(fresh, r)
	}
	fresh, lost := e.settle(fresh, a)
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range fresh {
		delete(e.failed, r.name)
	}
	e.replicas = slices.Concat(e.replicas, fresh)
	return fresh, lost
}

// enrol loads the model of a placement, but for its weights.
func (e *Engine) enrol(p *Placement) (*replica, error) {
	m := p.Model
	m.Threshold, m.Replicas, m.LongestWait = 1, 1, 0
	l, err := load(m)
	if err != nil {
		return nil, err
	}
	// What a deployment may come to need is there before the executor is built.
	for _, policy := range policies.Names() {
		if err := l.attach(policy, RouterOf(policy, m.Name)); err != nil && !errors.Is(err, ErrNoRouter) {
			return nil, errors.Join(fmt.Errorf("policy %s: %w", policy, err), l.close())
		}
	}
	r := newReplica(p.Name, l)
	r.generation, r.gpus = p.Generation, p.GPUs
	r.setPhase(cluster.Starting, "")
	return r, nil
}

// settle attaches the router networks of the deployments and gives the models their
// places. It returns those that have one. Its error wraps ErrDeviceLost.
func (e *Engine) settle(fresh []*replica, a *Assignment) (settled []*replica, lost error) {
	refuse := func(r *replica, err error) {
		e.fail(Placement{Name: r.name, Generation: r.generation}, errors.Join(err, r.model.close()))
	}
	byInsistence := map[bool][]*replica{}
	for _, r := range fresh {
		for _, g := range a.Groups {
			if len(g.Models) == 0 || g.Models[0] != r.model.cfg.Name {
				continue
			}
			if err := r.model.attach(g.Policy.scorer(), g.Policy.net(g.Models[0])); err != nil {
				e.log.Warn("router network", "replica", r.name, "deployment", g.Name, "err", err)
			}
		}
		insist := e.cfg.Device == "cuda" || len(r.gpus) > 0
		byInsistence[insist] = append(byInsistence[insist], r)
	}
	for insist, list := range byInsistence {
		models := make([]*loaded, len(list))
		for i, r := range list {
			models[i] = r.model
		}
		_, err := e.placeAll(models, func(i int) int {
			if gpus := list[i].gpus; len(gpus) > 0 {
				return gpus[0]
			}
			return 0
		}, insist)
		if errors.Is(err, ErrDeviceLost) || driver.IsSticky(err) {
			lost = fmt.Errorf("%w: %w", ErrDeviceLost, err)
		}
		for _, r := range list {
			if err != nil {
				refuse(r, err)
				continue
			}
			r.offers, r.routers = r.model.offers(), r.model.routers()
			settled = append(settled, r)
		}
	}
	return settled, lost
}

// failure is a placement that could not be loaded.
type failure struct {
	cluster.ReplicaReport
	at time.Time
	// untried says that nobody tried: its GPU must not be used, or it is to end.
	untried bool
}

func (e *Engine) fail(p Placement, err error) {
	e.log.Error("replica cannot be loaded", "replica", p.Name, "err", err)
	e.mu.Lock()
	e.failed[p.Name] = &failure{cluster.ReplicaReport{ID: p.Name, Generation: p.Generation, Phase: cluster.Failed, Reason: reason(err)}, time.Now(), false}
	e.mu.Unlock()
	e.notify()
}

// leave notes that a replica has ended.
func (e *Engine) leave(r *replica) {
	close(r.ended)
	if r.leaving.Load() || r.renewing.Load() || r.barred.Load() {
		e.forget(r) // in the second case it is recruited again, in the third later
	} else {
		r.setPhase(cluster.Stopped, "")
	}
	e.notify()
	e.poke()
}

// forget takes a replica that has ended out of the list.
func (e *Engine) forget(r *replica) {
	e.mu.Lock()
	n := len(e.replicas)
	e.replicas = slices.DeleteFunc(slices.Clone(e.replicas), func(x *replica) bool { return x == r })
	gone := len(e.replicas) < n
	e.mu.Unlock()
	if !gone {
		return
	}
	if err := r.model.close(); err != nil {
		e.log.Warn("close a model", "replica", r.name, "err", err)
	}
}

// list is a snapshot of the replicas.
func (e *Engine) list() []*replica {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.replicas
}

// takenOn is what the replicas on a GPU take of its memory, and what those of them take
// that have not taken it yet.
func (e *Engine) takenOn(ordinal int) (taken, unbuilt int64) {
	for _, r := range e.list() {
		if !r.model.place.cuda || r.model.place.ordinal != ordinal {
			continue
		}
		taken += r.model.place.bytes
		if !r.built.Load() {
			unbuilt += r.model.place.bytes
		}
	}
	return taken, unbuilt
}

// notify tells the owner that Reports has changed.
func (e *Engine) notify() {
	if e.cfg.Notify != nil {
		e.cfg.Notify()
	}
}

// maxReason bounds the reason of a failure, in bytes.
const maxReason = 512

func reason(err error) string {
	text := err.Error()
	return text[:min(len(text), maxReason)]
}

// assignedPart is what only replicas have that were assigned.
type assignedPart struct {
	generation uint64
	gpus       []int
	// offers are the policies that requests may choose here, routers the router networks.
	offers, routers []string
	// complained says that phase and why tell of a deployment that is left out. Only the
	// crew's goroutine uses it.
	complained bool
	// end ends the replica at once, ended is closed when it has.
	end   context.CancelFunc
	ended chan struct{}
	// leaving says that the replica is not wanted any more, renewing that it is to be
	// loaded again once it has ended, barred that its GPU must not be used.
	leaving, renewing, barred atomic.Bool
	// drains is closed, once, when the replica is to end what it has and stop.
	drains     chan struct{}
	drainsOnce sync.Once
}

// awaitDrained ends a run with errDrained once the replica was drained and has nothing
// left, or has been at it for too long.
func (e *Engine) awaitDrained(ctx context.Context, r *replica, sub *subservice.Subservice) error {
	select {
	case <-r.drains:
	case <-ctx.Done():
		return nil
	}
	sub.Drain()
	deadline := time.NewTimer(e.cfg.DrainTimeout)
	defer deadline.Stop()
	tick := time.NewTicker(drainLook)
	defer tick.Stop()
	for {
		if s := sub.Stats(); s.Queued+s.Running+s.Parked == 0 {
			return errDrained
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			e.log.Info("the rest of a drained replica's requests goes on elsewhere", "replica", r.name)
			return errDrained
		case <-ctx.Done():
			return nil
		}
	}
}
