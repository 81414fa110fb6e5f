package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/peer"
	"github.com/tokenrouter/tokenrouter/worker/scheduler"
	"github.com/tokenrouter/tokenrouter/worker/subservice"
)

// Restart waits: they double from the first to the last.
const (
	firstRestartWait = 100 * time.Millisecond
	lastRestartWait  = 5 * time.Second
)

// replica is one sub-service and the runs it has: a run that fails is followed
// by another with a new executor.
type replica struct {
	name  string
	model *loaded
	assignedPart
	// part is what it takes part in. Once the replica runs, mu guards it, and live.
	part
	mu sync.Mutex
	// live is the present run, as far as a part can be changed; nil between runs.
	live *live
	// phase and why are how far it is; mu guards them.
	phase cluster.Phase
	why   string
	// left are the deployments that it serves without. The list is never changed.
	left []cluster.LeftOut
	// current is the sub-service of the present run, nil between runs.
	current atomic.Pointer[subservice.Subservice]
	// started is closed when the first run serves.
	started chan struct{}
	// linked is closed by linkedOnce when for the first time all its links are up.
	linked     chan struct{}
	linkedOnce sync.Once
	// careful says that the last run ended with a fault whose operation is not
	// known. Only supervise's goroutine uses it.
	careful bool
	// built says that a run had an executor.
	built atomic.Bool
	// hangs counts steps that have hung.
	hangs atomic.Uint64
	// stop ends the present run as if it had failed. For tests of fail-over.
	stop atomic.Pointer[context.CancelCauseFunc]
}

// live is what of a run a new part is told.
type live struct {
	sub    *subservice.Subservice
	linker *linker
}

func newReplica(name string, m *loaded) *replica {
	return &replica{
		name: name, model: m, started: make(chan struct{}), linked: make(chan struct{}),
		assignedPart: assignedPart{ended: make(chan struct{}), drains: make(chan struct{})},
	}
}

// runs says that the replica has not ended for good.
func (r *replica) runs() bool {
	select {
	case <-r.ended:
		return false
	default:
		return true
	}
}

// drain lets the replica end what it has, and then stop.
func (r *replica) drain() { r.drainsOnce.Do(func() { close(r.drains) }) }

// had is the replica's deployment of a name if that is of this version.
func (r *replica) had(name string, version uint64) *subservice.Deployment {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.deployments {
		if d := &r.deployments[i]; d.Name == name && d.Version == version {
			return d
		}
	}
	return nil
}

// take gives the replica another part. What its executor cannot do is left out, and in
// the errors.
func (r *replica) take(p part) (faults []error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.live != nil {
		p.deployments, faults = r.live.fitting(p.deployments)
		if err := r.live.sub.Set(p.deployments, p.avoid); err != nil {
			return append(faults, err)
		}
		r.live.linker.dial(p.dials)
	}
	r.part = p
	return faults
}

// fitting are the deployments that the run can take part in.
func (l *live) fitting(list []subservice.Deployment) (fit []subservice.Deployment, faults []error) {
	for i := range list {
		if err := l.sub.Check(&list[i]); err != nil {
			faults = append(faults, &leftOut{cluster.LeftOut{Deployment: list[i].Name}, err})
			continue
		}
		fit = append(fit, list[i])
	}
	return fit, faults
}

// setPhase notes how far the replica is, why it is no further, and which deployments it
// leaves out. It reports a change.
func (r *replica) setPhase(p cluster.Phase, why string, left ...cluster.LeftOut) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.note(p, why, left)
}

// note is setPhase for a caller that holds mu.
func (r *replica) note(p cluster.Phase, why string, left []cluster.LeftOut) bool {
	changed := r.phase != p || r.why != why || !slices.Equal(r.left, left)
	r.phase, r.why, r.left = p, why, left
	return changed
}

// explain notes why the replica is no further, and which deployments it leaves out, in the
// phase that it has by now: its run goes on meanwhile. With no reason any more, that of a
// replica which does not serve stays. It reports a change.
func (r *replica) explain(why string, left ...cluster.LeftOut) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if why == "" && r.phase != cluster.Ready {
		return false
	}
	return r.note(r.phase, why, left)
}

func (r *replica) phaseNow() (cluster.Phase, string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.phase, r.why
}

// leftOut is why a replica serves without a deployment.
type leftOut struct {
	cluster.LeftOut
	err error
}

func (l *leftOut) Error() string { return l.err.Error() }
func (l *leftOut) Unwrap() error { return l.err }

// allLeftOut lists the deployments that faults are of, as cluster.Facts has them.
func allLeftOut(faults []error) (list []cluster.LeftOut) {
	for _, fault := range faults {
		if l := (*leftOut)(nil); errors.As(fault, &l) {
			entry := l.LeftOut
			if len(entry.Router) > cluster.MaxListedName {
				entry.Router = ""
			}
			list = append(list, entry)
		}
	}
	slices.SortStableFunc(list, func(a, b cluster.LeftOut) int { return strings.Compare(a.Deployment, b.Deployment) })
	list = slices.CompactFunc(list, func(a, b cluster.LeftOut) bool { return a.Deployment == b.Deployment })
	return list[:min(len(list), cluster.MaxLeftOut)]
}

// complain tells of something that keeps a running replica from a part of its work; nil
// that nothing does any more.
func (r *replica) complain(e *Engine, faults []error) {
	err := errors.Join(faults...)
	switch {
	case err != nil:
		if r.explain(reason(err), allLeftOut(faults)...) {
			e.log.Warn("a deployment is left out", "replica", r.name, "err", err)
			e.notify()
		}
	case r.complained && r.explain(""):
		e.log.Info("no deployment is left out any more", "replica", r.name)
		e.notify()
	}
	r.complained = err != nil
}

// supervise runs the replica until ctx ends, or it was drained, and again after every failure that a new run may mend.
func (e *Engine) supervise(ctx context.Context, r *replica) error {
	log := e.log.With("replica", r.name)
	wait := firstRestartWait
	for {
		began := time.Now()
		err := e.runReplica(ctx, r, log)
		if ctx.Err() != nil || errors.Is(err, subservice.ErrHung) {
			return nil
		}
		if time.Since(began) > lastRestartWait {
			wait = firstRestartWait
		}
		switch {
		case errors.Is(err, errDrained):
			return nil
		case errors.Is(err, ErrDeviceLost), permanent(err) && !r.hasStarted() && e.cfg.Network == nil:
			return err
		}
		r.setPhase(cluster.Failed, reason(err))
		e.notify()
		log.Error("replica failed; it will be restarted", "err", err, "after", wait)
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-r.drains:
			timer.Stop()
			return nil // it has nothing
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
		wait = min(2*wait, lastRestartWait)
	}
}

// runReplica is one run: executor, sub-service, peer links and the in-memory
// listener they are reached by. It has released everything when it returns.
func (e *Engine) runReplica(ctx context.Context, r *replica, log *slog.Logger) (err error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	r.stop.Store(&stop)
	exec, err := e.newExecutor(ctx, r)
	if err != nil {
		return err
	}
	defer func() {
		if endErr := e.end(r, exec, err); err == nil {
			err = endErr
		}
	}()
	sub, peers, err := e.equip(r, exec, log)
	if err != nil {
		return err
	}
	defer r.retire()
	front, err := e.net.Open(r.name, peers.mux)
	if err != nil {
		return fmt.Errorf("front of %s: %w", r.name, err)
	}

	r.current.Store(sub)
	defer r.current.Store(nil)
	group := pool.New().WithContext(ctx).WithCancelOnError().WithFirstError()
	var hung error // of the step that ended the run, whatever else did
	group.Go(func(ctx context.Context) error {
		err := sub.Run(ctx)
		if e.noteHang(r, err) {
			hung = err
		}
		return err
	})
	group.Go(peers.server.Run)
	group.Go(exec.watchGPU)
	group.Go(func(ctx context.Context) error { return e.awaitDrained(ctx, r, sub) })
	group.Go(peers.linker.Run)
	group.Go(front)
	if !r.hasStarted() {
		close(r.started)
	}
	if phase, _ := r.phaseNow(); phase != cluster.Ready {
		r.setPhase(cluster.Ready, "")
		if e.cfg.Network != nil {
			log.Info("replica serves", "model", r.model.cfg.Name, "generation", r.generation)
		}
		e.notify()
	}
	if peers.neighbours == 0 {
		r.noteLinked()
	}
	err = group.Wait()
	switch {
	case hung != nil:
		return hung
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return err
}

// hasStarted says that a run of the replica has served.
func (r *replica) hasStarted() bool {
	select {
	case <-r.started:
		return true
	default:
		return false
	}
}

// equip makes the sub-service of a run and what connects it, for the replica's part.
func (e *Engine) equip(r *replica, exec executor.Executor, log *slog.Logger) (*subservice.Subservice, *peers, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	sub, err := e.newSubservice(r, exec)
	if err != nil {
		return nil, nil, err
	}
	peers, err := e.newPeers(r, sub, log)
	if err != nil {
		return nil, nil, err
	}
	l := &live{sub, peers.linker}
	list, faults := r.deployments, []error(nil)
	if e.cfg.Network != nil {
		list, faults = l.fitting(list)
	}
	if err := errors.Join(faults...); err != nil {
		log.Warn("a deployment is left out", "err", err)
	}
	if err := sub.Set(list, r.avoid); err != nil {
		return nil, nil, err
	}
	r.live = l
	return sub, peers, nil
}

// retire notes the end of a run.
func (r *replica) retire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.live = nil
}

func (e *Engine) newSubservice(r *replica, exec executor.Executor) (*subservice.Subservice, error) {
	info := exec.Info()
	return subservice.New(subservice.Config{
		Replica: r.name, Model: r.model.cfg.Name, Executor: exec,
		Tokenizer: r.model.tokenizer, Template: r.model.template, Vocabulary: r.model.words, StopIDs: r.model.stopIDs,
		Scheduler: scheduler.Config{
			MaxRows: info.MaxRows, MaxTokens: info.MaxTokens, ChunkTokens: min(e.cfg.ChunkTokens, info.MaxTokens),
			MaxSlots: info.MaxSlots, MaxQueue: e.cfg.MaxQueue,
			Threshold: r.model.cfg.Threshold, LongestWait: r.model.cfg.LongestWait,
		},
		Clock: e.clock, Start: e.began, Coordinator: e.together, Order: slices.Index(e.models, r.model),
		Lookahead: e.cfg.Lookahead, HangAfter: e.cfg.HangAfter, HeldUp: func() time.Duration { return e.heldUp(r) },
		Logger: e.log,
	})
}

// peers is what a replica needs to talk to others, and to be talked to.
type peers struct {
	mux    *http.ServeMux
	server *peer.Server
	linker *linker
	// neighbours is the number of links that there are to be at first.
	neighbours int
}

// newPeers connects a run. The caller holds r.mu.
func (e *Engine) newPeers(r *replica, sub *subservice.Subservice, log *slog.Logger) (_ *peers, err error) {
	p := &peers{mux: http.NewServeMux(), neighbours: len(r.neighbours)}
	cfg := peer.Config{Replica: r.name, Model: r.model.cfg.Name, Handler: r.watchLinks(sub), Log: log}
	server := peer.ServerConfig{Authorize: e.net.Authorize}
	if remote, ok := e.net.(Prober); ok {
		cfg.Limits.Silence, server.Probe = peer.SilentAfter, remote.Probe
	}
	server.Config = cfg
	if p.server, err = peer.NewServer(server); err != nil {
		return nil, err
	}
	p.mux.Handle(peer.Path, p.server)
	p.mux.Handle(generate.Path, sub)
	p.linker = newLinker(cfg, e.net, log)
	p.linker.dial(r.dials)
	return p, nil
}
