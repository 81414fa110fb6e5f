package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sourcegraph/conc/pool"

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
	name        string
	model       *loaded
	deployments []subservice.Deployment
	// neighbours are the replicas that it has a peer link with; dials are those of
	// them that it connects to.
	neighbours, dials []string
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
	// built says that a run had an executor. Only supervise's goroutine uses it.
	built bool
	// stop ends the present run as if it had failed. For tests of fail-over.
	stop atomic.Pointer[context.CancelCauseFunc]
}

// supervise runs the replica until ctx ends, and again after every failure that a new run may mend.
func (e *Engine) supervise(ctx context.Context, r *replica) error {
	log := e.log.With("replica", r.name)
	wait := firstRestartWait
	for {
		began := time.Now()
		err := e.runReplica(ctx, r, log)
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(began) > lastRestartWait {
			wait = firstRestartWait
		}
		if errors.Is(err, ErrDeviceLost) || permanent(err) && !r.hasStarted() {
			return err
		}
		log.Error("replica failed; it will be restarted", "err", err, "after", wait)
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
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
	sub, err := e.newSubservice(r, exec, log)
	if err != nil {
		return err
	}
	peers, err := e.newPeers(r, sub, log)
	if err != nil {
		return err
	}
	front, err := e.net.Open(r.name, peers.mux)
	if err != nil {
		return fmt.Errorf("front of %s: %w", r.name, err)
	}

	r.current.Store(sub)
	defer r.current.Store(nil)
	group := pool.New().WithContext(ctx).WithCancelOnError().WithFirstError()
	group.Go(sub.Run)
	group.Go(peers.server.Run)
	group.Go(exec.watchGPU)
	group.Go(peers.linker.Run)
	group.Go(front)
	if !r.hasStarted() {
		close(r.started)
	}
	if len(r.neighbours) == 0 {
		r.noteLinked()
	}
	err = group.Wait()
	if ctx.Err() != nil {
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

func (e *Engine) newSubservice(r *replica, exec executor.Executor, log *slog.Logger) (*subservice.Subservice, error) {
	info := exec.Info()
	return subservice.New(subservice.Config{
		Replica: r.name, Model: r.model.cfg.Name, Executor: exec,
		Tokenizer: r.model.tokenizer, Template: r.model.template, Vocabulary: r.model.words, StopIDs: r.model.stopIDs,
		Deployments: r.deployments,
		Scheduler: scheduler.Config{
			MaxRows: info.MaxRows, MaxTokens: info.MaxTokens, ChunkTokens: min(e.cfg.ChunkTokens, info.MaxTokens),
			MaxSlots: info.MaxSlots, MaxQueue: e.cfg.MaxQueue,
			Threshold: r.model.cfg.Threshold, LongestWait: r.model.cfg.LongestWait,
		},
		Clock: e.clock, Start: e.began, Coordinator: e.together, Order: slices.Index(e.models, r.model),
		Lookahead: e.cfg.Lookahead,
		Logger:    log,
	})
}

// peers is what a replica needs to talk to others, and to be talked to.
type peers struct {
	mux    *http.ServeMux
	server *peer.Server
	linker *linker
}

func (e *Engine) newPeers(r *replica, sub *subservice.Subservice, log *slog.Logger) (_ *peers, err error) {
	p := &peers{mux: http.NewServeMux()}
	cfg := peer.Config{Replica: r.name, Model: r.model.cfg.Name, Handler: r.watchLinks(sub), Log: log}
	if p.server, err = peer.NewServer(peer.ServerConfig{Config: cfg, Authorize: e.net.Authorize}); err != nil {
		return nil, err
	}
	p.mux.Handle(peer.Path, p.server)
	p.mux.Handle(generate.Path, sub)
	p.linker = newLinker(cfg, e.net, log)
	p.linker.dial(r.dials)
	return p, nil
}
