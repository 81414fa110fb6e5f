package sim

import (
	"container/heap"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/executor/fakeexec"
	"github.com/tokenrouter/tokenrouter/worker/schedule"
	"github.com/tokenrouter/tokenrouter/worker/scheduler"
	"github.com/tokenrouter/tokenrouter/worker/subservice"
)

// ErrStranded says that requests are left and nothing will ever happen again.
var ErrStranded = errors.New("simulation: requests are stranded")

// ErrTooLong says that a run went beyond Config.MaxEvents.
var ErrTooLong = errors.New("simulation: too many events")

// Simulation is a run in progress.
type Simulation struct {
	cfg    Config
	now    time.Duration
	rng    *rand.Rand
	hosts  []*host
	result Result

	// next is the next request that arrives, open those that have arrived and not ended.
	next, open int
	// agenda are arrivals, cancels and hand-offs on their way.
	agenda agenda
	order  uint64
	states []stateOf
	fault  error // of something that was put on the agenda
}

// fail ends the run with an error, if there is one.
func (s *Simulation) fail(err error) {
	if s.fault == nil {
		s.fault = err
	}
}

// stateOf is what the simulation knows of a request.
type stateOf struct {
	arrived, ended bool
}

// Run simulates to the end of the last request.
func Run(cfg Config) (*Result, error) {
	s, err := newSimulation(cfg)
	if err != nil {
		return nil, err
	}
	err = s.run()
	for _, h := range s.hosts {
		h.driver.Stop()
	}
	if err != nil {
		return nil, err
	}
	s.result.Elapsed = s.now
	for i, h := range s.hosts {
		st := h.driver.Stats()
		m := &s.result.Models[i]
		m.Committed, m.Handoffs = int(st.Committed), int(st.Handoffs)
	}
	return &s.result, nil
}

func newSimulation(cfg Config) (*Simulation, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	n := len(cfg.Models)
	s := &Simulation{
		cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 0x73696d)),
		result: Result{Ended: make([]time.Duration, len(cfg.Requests)), Digests: make([]uint64, len(cfg.Requests)), Models: make([]ModelResult, n)},
		states: make([]stateOf, len(cfg.Requests)),
	}
	policy, err := s.policies()
	if err != nil {
		return nil, err
	}
	if cfg.Visits {
		s.result.Visits = make([][]Visit, len(cfg.Requests))
		inner := policy
		policy = func(self policies.ModelID) policies.Policy { return &noting{inner(self), self, &s.result} }
	}
	together := schedule.New(cfg.Schedule)
	models, names, thresholds := make([]string, n), make([][]string, n), make([]int, n)
	for i, m := range cfg.Models {
		models[i] = m.Name
		if m.Name == "" {
			models[i] = fmt.Sprintf("m%d", i)
		}
		names[i], thresholds[i] = []string{models[i] + "-0"}, max(1, m.Threshold)
	}
	for i := range cfg.Models {
		d := subservice.Deployment{
			Name: deployment, Self: policies.ModelID(i), Models: models, Replicas: names, Policy: policy(policies.ModelID(i)), Thresholds: thresholds,
		}
		h, err := s.newHost(i, d, together)
		if err != nil {
			return nil, err
		}
		s.hosts = append(s.hosts, h)
	}
	s.connect()
	return s, nil
}

const deployment = "sim"

// policies returns the policy of each model.
func (s *Simulation) policies() (func(policies.ModelID) policies.Policy, error) {
	if slices.ContainsFunc(s.cfg.Requests, func(r Request) bool { return len(r.Path) > 0 }) {
		return func(self policies.ModelID) policies.Policy { return &alongPath{s.cfg.Requests, self} }, nil
	}
	if s.cfg.P != nil {
		return func(self policies.ModelID) policies.Policy { return newChain(&s.cfg, self) }, nil
	}
	set, err := policies.New(s.cfg.Policy, len(s.cfg.Models), s.cfg.Settings)
	if err != nil {
		return nil, err
	}
	return set.For, nil
}

// newHost builds one model's replica.
func (s *Simulation) newHost(i int, d subservice.Deployment, together *schedule.Coordinator) (*host, error) {
	m := &s.cfg.Models[i]
	rows := m.MaxRows
	if rows == 0 {
		rows = 64
	}
	longest, inFlight := 1, len(s.cfg.Requests)
	for k := range s.cfg.Requests {
		r := &s.cfg.Requests[k]
		longest = max(longest, max(1, r.Prompt)+r.length())
	}
	if s.cfg.Concurrency > 0 {
		inFlight = min(inFlight, s.cfg.Concurrency)
	}
	inFlight = min(inFlight, 4*MaxConcurrency)
	x := fakeexec.Default()
	x.Info.Model, x.Info.Vocab = d.Models[i], vocabulary
	x.Info.PageSize, x.Info.Pages = s.cfg.PageSize, s.cfg.Pages
	if x.Info.PageSize == 0 {
		x.Info.PageSize = 64
	}
	if x.Info.Pages == 0 {
		x.Info.Pages = inFlight * (2 + longest/x.Info.PageSize)
	}
	x.Info.MaxSlots, x.Info.MaxRows, x.Info.MaxTokens, x.Info.MaxContext = inFlight, rows, rows+longest, longest+1
	x.Info.Hidden = 0
	x.Info.Features &^= adopting
	x.Script, x.Unchecked = script, !s.cfg.Checked
	start := time.Unix(1, 0)
	x.Now = func() time.Time { return start.Add(s.now) }
	exec, err := fakeexec.New(x)
	if err != nil {
		return nil, err
	}
	sub, err := subservice.New(subservice.Config{
		Replica: d.Replicas[i][0], Model: d.Models[i], Executor: exec, Vocabulary: wordless{}, Deployments: []subservice.Deployment{d},
		Scheduler: scheduler.Config{
			MaxRows: rows, MaxTokens: x.Info.MaxTokens, ChunkTokens: longest, MaxSlots: inFlight, MaxQueue: len(s.cfg.Requests),
			Threshold: m.Threshold, LongestWait: m.LongestWait,
		},
		Clock: func() time.Duration { return s.now }, Start: start, Coordinator: together, Order: i,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	h := &host{s: s, model: i, name: d.Replicas[i][0], sub: sub}
	h.driver = sub.Drive(h.poke)
	return h, nil
}

// run plays events until all requests have ended.
func (s *Simulation) run() error {
	s.admitFirst()
	for {
		if err := s.settle(); err != nil {
			return err
		}
		if s.open == 0 && s.next == len(s.cfg.Requests) {
			return nil
		}
		if err := s.advance(); err != nil {
			return err
		}
		s.result.Events++
		if s.cfg.MaxEvents > 0 && s.result.Events > s.cfg.MaxEvents {
			return ErrTooLong
		}
	}
}

// settle lets the replicas start what they want at this instant.
func (s *Simulation) settle() error {
	for again := true; again; {
		again = false
		for _, h := range s.hosts {
			if !h.dirty || h.running {
				continue
			}
			again = true
			if err := h.begin(); err != nil {
				return err
			}
		}
	}
	return nil
}

// advance goes to the next instant at which something happens, and lets it happen.
func (s *Simulation) advance() error {
	at := time.Duration(1<<63 - 1)
	if len(s.agenda) > 0 {
		at = s.agenda[0].at
	}
	for _, h := range s.hosts {
		if t, ok := h.nextEvent(); ok {
			at = min(at, t)
		}
	}
	if at == 1<<63-1 {
		return fmt.Errorf("%w: %d requests at %s", ErrStranded, s.open, s.now)
	}
	took := at - s.now
	for _, h := range s.hosts {
		h.work(took)
	}
	s.now = at
	for len(s.agenda) > 0 && s.agenda[0].at <= at {
		heap.Pop(&s.agenda).(*appointment).do()
	}
	for _, h := range s.hosts {
		if err := h.happen(); err != nil {
			return err
		}
	}
	return s.fault
}

// admitFirst lets the first requests arrive.
func (s *Simulation) admitFirst() {
	if s.cfg.Concurrency == 0 {
		for i := range s.cfg.Requests {
			s.at(s.cfg.Requests[i].At, func() { s.arrive(i) })
		}
		s.next = len(s.cfg.Requests)
		s.open = s.next
		return
	}
	for range min(s.cfg.Concurrency, len(s.cfg.Requests)) {
		s.arriveNext()
	}
}

// arriveNext is the next request of a closed loop.
func (s *Simulation) arriveNext() {
	if s.next == len(s.cfg.Requests) {
		return
	}
	i := s.next
	s.next++
	if s.next == len(s.cfg.Requests) {
		s.result.Full, s.result.FullTokens = s.now, s.result.Tokens
	}
	s.open++
	s.arrive(i)
}

// arrive submits request i to the entry.
func (s *Simulation) arrive(i int) {
	r := &s.cfg.Requests[i]
	entry := s.hosts[0]
	req := &generate.Request{
		ID: uint64(i + 1), Epoch: 1, Deployment: deployment, PromptIDs: make([]int32, max(1, r.Prompt)), IgnoreEOS: true,
		Sampling: sampling.Params{TopP: 1, Seed: r.Seed, MaxTokens: int32(r.length()), Logprobs: -1},
	}
	s.states[i].arrived = true
	if err := entry.driver.Submit(req, func(e generate.Event) { s.take(i, &e) }); err != nil {
		s.end(i)
		s.result.Failed++
		return
	}
	entry.dirty = true
	if r.Cancel > 0 {
		s.at(s.now+r.Cancel, func() { s.cancel(i) })
	}
}

func (s *Simulation) cancel(i int) {
	if s.states[i].ended {
		return
	}
	s.hosts[0].driver.Cancel(uint64(i+1), 1)
	s.hosts[0].dirty = true
	s.result.Cancelled++
	s.end(i)
}

// take follows a request as its gateway does.
func (s *Simulation) take(i int, e *generate.Event) {
	if s.states[i].ended {
		return
	}
	switch e.Kind {
	case generate.EventTokens:
		s.result.Tokens += len(e.Tokens)
		for k := range e.Tokens {
			t := &e.Tokens[k]
			s.result.Digests[i] = mix(s.result.Digests[i] ^ uint64(uint32(t.ID))<<8 ^ uint64(t.Model))
		}
	case generate.EventFinish:
		s.result.Finished++
		s.end(i)
	case generate.EventError:
		s.result.Failed++
		s.end(i)
	}
}

// end notes the end of a request, and lets the next one of a closed loop arrive.
func (s *Simulation) end(i int) {
	s.states[i].ended = true
	s.result.Ended[i] = s.now
	s.open--
	if s.cfg.Concurrency > 0 {
		s.at(s.now, s.arriveNext)
	}
}

// at lets something happen at a time, after what was asked for earlier.
func (s *Simulation) at(t time.Duration, do func()) {
	s.order++
	heap.Push(&s.agenda, &appointment{t, s.order, do})
}

// appointment is something that happens at a time.
type appointment struct {
	at    time.Duration
	order uint64
	do    func()
}

// agenda is a heap of appointments, the earliest first.
type agenda []*appointment

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	return a[i].at < a[j].at || a[i].at == a[j].at && a[i].order < a[j].order
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(x any)   { *a = append(*a, x.(*appointment)) }
func (a *agenda) Pop() any {
	old := *a
	last := old[len(old)-1]
	*a = old[:len(old)-1]
	return last
}
