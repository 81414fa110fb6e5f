package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sourcegraph/conc"
	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/cuda/faults"
	"github.com/tokenrouter/tokenrouter/gateway/session"
	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/schedule"
	"github.com/tokenrouter/tokenrouter/worker/subservice"
)

// Engine serves requests in this process. It is safe for concurrent use.
type Engine struct {
	cfg    Config
	log    *slog.Logger
	net    Network
	models []*loaded
	gpus   *gpus
	faults *faults.Watcher
	plan   Plan
	// unseen says that the plan is for GPUs that need not be there; noGPU is why
	// there is none that "auto" could take.
	unseen bool
	noGPU  error
	// mu guards the fields down to failed.
	mu sync.Mutex
	// replicas are in order of the configuration, or of their assignment. The slice is
	// replaced, never changed.
	replicas []*replica
	// assigned is what the engine was told last, nil if it is told nothing; draining
	// says that all of it is to end.
	assigned *Assignment
	draining bool
	// failed are placements that could not be loaded, by name. The crew alone writes.
	failed map[string]*failure
	// renewals are what is known of router networks that replicas were loaded without: nil if
	// they fit. The crew alone uses it.
	renewals map[renewal]error
	// assigning has room for one value: poke sends without blocking, crew receives.
	assigning chan struct{}
	// drained is closed, once, when no replica runs after a drain.
	drained     chan struct{}
	drainedOnce sync.Once
	hang        hang
	// moving counts models that are being loaded onto GPUs, or given up, which may hold up all who use the driver.
	moving atomic.Int32

	routed     map[string]*routed // by deployment
	transports []Transport
	served     []session.Deployment
	table      *session.Table
	session    session.Config
	// together says when the replicas start their steps; clock is the time of all.
	together *schedule.Coordinator
	clock    func() time.Duration
	tunings  []*tuning
	began    time.Time
	// ready is closed by Run once every replica serves and has its peer links,
	// closing when it stops.
	ready, closing chan struct{}

	// Of an engine that New has started: stop ends Run, running waits for it,
	// ended is its error.
	stop    context.CancelFunc
	running conc.WaitGroup
	ended   error
}

// ErrClosed says that an engine has stopped, or stops, before a request has ended.
var ErrClosed = errors.New("engine: closed")

// New loads the models and starts to serve them. It returns once every replica
// can. The caller must call Close.
func New(cfg Config) (*Engine, error) {
	e, err := Load(cfg)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	e.stop = stop
	e.running.Go(func() { e.ended = e.Run(ctx) })
	select {
	case <-e.ready:
		return e, nil
	case <-e.closing:
		return nil, errors.Join(ErrClosed, e.Close())
	}
}

// Close ends the requests in flight with ErrClosed, stops everything that New
// has started and releases the models. An engine that comes from Load and has
// never run is released too. It must not be called while the caller runs Run.
func (e *Engine) Close() error {
	if e.stop == nil {
		return e.release()
	}
	e.stop()
	e.running.Wait()
	return e.ended
}

// Load loads and checks everything and starts nothing. The caller either calls
// Run, once, or Close.
func Load(cfg Config) (_ *Engine, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	e := newEngine(cfg)
	defer func() {
		if err != nil {
			err = errors.Join(err, e.release())
		}
	}()
	for _, m := range cfg.Models {
		l, err := load(m)
		if err != nil {
			return nil, err
		}
		e.models = append(e.models, l)
	}
	if err := e.attachRouters(); err != nil {
		return nil, err
	}
	if err := e.placeModels(); err != nil {
		return nil, err
	}
	if err := e.addReplicas(); err != nil {
		return nil, err
	}
	if err := e.addEntries(); err != nil {
		return nil, err
	}
	if e.table, err = session.NewTable(e.served, nil, time.Now()); err != nil {
		return nil, err
	}
	e.tunings = e.newTunings()
	e.session = session.Config{Logger: e.log}
	if e.faults, err = e.newFaults(); err != nil {
		return nil, err
	}
	if cfg.Metrics != nil {
		for _, c := range []prometheus.Collector{&collector{e}, &tuneCollector{e}} {
			if err := cfg.Metrics.Register(c); err != nil {
				return nil, fmt.Errorf("register metrics: %w", err)
			}
		}
		if e.session.Metrics, err = session.NewMetrics(cfg.Metrics, "engine"); err != nil {
			return nil, err
		}
	}
	e.session = e.session.WithDefaults()
	return e, nil
}

// newEngine is an engine without models.
func newEngine(cfg Config) *Engine {
	e := &Engine{
		cfg: cfg, log: cfg.Logger, net: cfg.Network, ready: make(chan struct{}), closing: make(chan struct{}),
		failed: map[string]*failure{}, renewals: map[renewal]error{}, assigning: make(chan struct{}, 1), drained: make(chan struct{}), hang: hang{found: make(chan struct{})},
	}
	if e.net == nil {
		e.net = newNetwork()
	}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	e.together, e.began = schedule.New(cfg.Schedule), time.Now()
	if cfg.Network != nil {
		e.together = schedule.NewOpen(cfg.Schedule)
	}
	e.clock = func() time.Duration { return time.Since(e.began) }
	e.routed = map[string]*routed{}
	e.gpus = newGPUs(&e.cfg, e.log)
	return e
}

// Plan is where the memory goes.
func (e *Engine) Plan() Plan { return e.plan }

// release gives back what Load took. After a hang it leaves the GPUs as they are, and the models' files open: a load that was left
// behind may read them.
func (e *Engine) release() error {
	var errs []error
	for _, t := range e.transports {
		errs = append(errs, t.Close())
	}
	if e.hang.any() {
		return errors.Join(errs...)
	}
	for _, m := range e.models {
		errs = append(errs, m.close())
	}
	if e.cfg.Network != nil {
		for _, r := range e.list() {
			errs = append(errs, r.model.close())
		}
	}
	return errors.Join(append(errs, e.gpus.close())...)
}

// Ready is closed once Run serves.
func (e *Engine) Ready() <-chan struct{} { return e.ready }

// Deployments lists what requests can ask for, in order of the configuration,
// deployments first.
func (e *Engine) Deployments() []Deployment {
	return slices.Concat(e.cfg.Deployments, e.alone())
}

// Models lists the served models, in order of the configuration.
func (e *Engine) Models() []Model { return slices.Clone(e.cfg.Models) }

// Served are the deployments with their entries, for a gateway in this process.
func (e *Engine) Served() []session.Deployment { return e.served }

// alone are the deployments of single models, under the models' own names.
func (e *Engine) alone() []Deployment {
	var list []Deployment
	for _, m := range e.cfg.Models {
		taken := slices.ContainsFunc(e.cfg.Deployments, func(d Deployment) bool { return d.Name == m.Name })
		if !taken {
			list = append(list, Alone(m.Name))
		}
	}
	return list
}

func (e *Engine) model(name string) *loaded {
	i := slices.IndexFunc(e.models, func(m *loaded) bool { return m.cfg.Name == name })
	return e.models[i] // Validate has seen that it is there
}

// names are the replicas of a model, in an order that all agree on.
func (m *loaded) names() []string {
	var list []string
	for i := range max(m.cfg.Replicas, 1) {
		list = append(list, fmt.Sprintf("%s-%d", m.cfg.Name, i))
	}
	return list
}

// addReplicas checks every deployment and gives each replica its part in it.
func (e *Engine) addReplicas() error {
	for _, m := range e.models {
		for _, name := range m.names() {
			e.replicas = append(e.replicas, newReplica(name, m))
		}
	}
	for _, d := range e.Deployments() {
		var group []*loaded
		var names [][]string
		var thresholds []int
		for _, name := range d.Models {
			thresholds = append(thresholds, e.model(name).cfg.Threshold)
			group = append(group, e.model(name))
			names = append(names, e.model(name).names())
		}
		notes, err := checkPair(d.Name, group, d.SpecialMap)
		if err != nil {
			return err
		}
		for _, n := range notes {
			e.log.Warn("models differ", "deployment", d.Name, "difference", n)
		}
		maps, lacking, err := idMaps(&d, sides(group))
		if err != nil {
			return err
		}
		routes, err := e.routes(d, group[0], true)
		if err != nil {
			return fmt.Errorf("deployment %s: %w", d.Name, err)
		}
		e.routed[d.Name] = routes
		for i, m := range group {
			for _, r := range e.replicas {
				if r.model == m {
					policy, others := routes.policy(policies.ModelID(i))
					r.join(subservice.Deployment{
						Name: d.Name, Self: policies.ModelID(i), Models: d.Models,
						PolicyName: routes.set.Name, Policy: policy, Others: others, Replicas: names, Thresholds: thresholds, IDs: maps[i], Lacking: entrys(i, lacking),
					}, e.models, group)
				}
			}
		}
	}
	return nil
}

// entrys is a list for the entry model alone.
func entrys(i int, list []int32) []int32 {
	if i == 0 {
		return list
	}
	return nil
}

// join adds a deployment to a replica, and the links it needs for it. Of two
// models the one that is configured first dials, so that a pair has one link.
func (r *replica) join(d subservice.Deployment, all, group []*loaded) {
	r.deployments = append(r.deployments, d)
	own := slices.Index(all, r.model)
	for _, other := range group {
		if other == r.model {
			continue
		}
		for _, name := range other.names() {
			if slices.Contains(r.neighbours, name) {
				continue
			}
			r.neighbours = append(r.neighbours, name)
			if slices.Index(all, other) > own {
				r.dials = append(r.dials, name)
			}
		}
	}
}

// addEntries gives every deployment the entries that its requests go to.
func (e *Engine) addEntries() error {
	entries := map[string]session.Entry{}
	for _, r := range e.replicas {
		transport, err := e.net.Transport(r.name)
		if err != nil {
			return fmt.Errorf("link to %s: %w", r.name, err)
		}
		e.transports = append(e.transports, transport)
		entries[r.name] = session.NewEntryClient(r.name, transport, e.net.URL(r.name))
	}
	for _, d := range e.Deployments() {
		entry := e.model(d.Models[0])
		s := session.Deployment{
			Name: d.Name, Models: d.Models, Policy: e.routed[d.Name].set.Name, Overrides: e.routed[d.Name].choices(&d),
			MaxContext: e.maxContext(entry), Vocab: entry.vocab, Defaults: defaults(entry),
		}
		for _, m := range d.Models {
			s.MaxContext = min(s.MaxContext, e.maxContext(e.model(m)))
		}
		for _, name := range entry.names() {
			s.Entries = append(s.Entries, entries[name])
		}
		e.served = append(e.served, s)
	}
	return nil
}

// defaults are the checkpoint's own sampling parameters; a checkpoint that
// names no temperature is greedy.
func defaults(m *loaded) session.Defaults {
	var d session.Defaults
	if m.checkpoint == nil {
		return d
	}
	g := m.checkpoint.Generation
	if g.Temperature != nil {
		d.Temperature = *g.Temperature
	}
	if g.TopP != nil {
		d.TopP = *g.TopP
	}
	if g.TopK != nil {
		d.TopK = *g.TopK
	}
	return d
}

// Run serves until ctx ends. It returns when all has been released. Requests
// still in flight then end with ErrClosed.
//
// Stop order: the replicas end, links first; then the weights are unmapped,
// which the replicas read until their last step.
func (e *Engine) Run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, e.release()) }()
	defer e.drainedOnce.Do(func() { close(e.drained) }) // the crew may be left behind
	return e.runAll(ctx, e.runParts)
}

// runParts runs the replicas and the loops beside them. It returns when all have ended.
func (e *Engine) runParts(ctx context.Context) error {
	group := pool.New().WithContext(ctx).WithCancelOnError().WithFirstError()
	for _, r := range e.replicas {
		group.Go(func(ctx context.Context) error { return e.supervise(ctx, r) })
	}
	if e.cfg.Network != nil {
		group.Go(e.crew)
	}
	group.Go(e.awaitStart)
	group.Go(e.tune)
	group.Go(e.faults.Run)
	group.Go(func(ctx context.Context) error {
		<-ctx.Done()
		close(e.closing)
		return nil
	})
	return group.Wait()
}

// awaitStart closes ready once every replica serves and has its links.
func (e *Engine) awaitStart(ctx context.Context) error {
	began := time.Now()
	replicas := e.list()
	for _, r := range replicas {
		for _, done := range []chan struct{}{r.started, r.linked} {
			select {
			case <-done:
			case <-ctx.Done():
				return nil
			}
		}
	}
	close(e.ready)
	if e.cfg.Network != nil {
		return nil // its replicas come later
	}
	e.log.Info("ready", "replicas", len(replicas), "after", time.Since(began))
	return nil
}
