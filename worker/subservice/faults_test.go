package subservice

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/api/handoff"
	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/executor/fakeexec"
	"github.com/tokenrouter/tokenrouter/worker/scheduler"
)

// world is replicas in one goroutine, driven in a random order of deliveries, steps
// and faults. Nothing in it takes time, so a seed always plays the same.
type world struct {
	t      *testing.T
	l      layout
	rng    *rand.Rand
	now    time.Duration
	hosts  []*actor
	lines  []*line
	talks  []*talk
	faults int // left
	// allow says which replicas may be killed.
	allow func(name string) bool
	// change, if set, changes a request before it is submitted.
	change func(*generate.Request)
	// versions, if there are any, are those of the deployment so far; each replica takes
	// them up in its time. before is called before every event. broken keeps what is dead.
	// One event in pace submits a request that waits for that.
	versions []policies.Settings
	before   func()
	broken   bool
	pace     int
}

// actor is one replica. A killed one is replaced by another of its name.
type actor struct {
	w       *world
	name    string
	model   int
	version int // the newest of world.versions that it knows, from 1
	driver  *Driver
	running bool
	dead    bool
}

// line is one direction between two replicas. Frames come in order; a line that was
// cut says so after those that still came through.
type line struct {
	from, to *actor
	back     *line
	queue    [][]byte
	up, cut  bool
}

func (l *line) Peer() (replica, model string) { return l.to.name, fmt.Sprintf("m%d", l.to.model) }

func (l *line) Send(f *handoff.Frame) error {
	if l.cut {
		return nil // lost: it was cut and does not know yet
	}
	b, err := handoff.Append(nil, f)
	if err != nil {
		return err
	}
	l.queue = append(l.queue, b)
	return nil
}

// talk is one request with its gateway.
type talk struct {
	w      *world
	req    *generate.Request
	epoch  uint32
	prompt []int32
	tokens []generate.Token
	values []float32
	owner  uint8
	state  []byte
	// version is the deployment's that the request has begun with.
	version uint64
	finish  generate.Finish
	err     *generate.Error
	again   bool
	// alone counts the tokens that are said to be the entry model's alone.
	alone int
}

func newWorld(t *testing.T, l layout, seed uint64, faults int) *world {
	w := &world{t: t, l: l, rng: rand.New(rand.NewPCG(seed, 0x6661756c)), faults: faults, allow: func(string) bool { return true }}
	for k, n := range l.replicas {
		for i := range n {
			w.hosts = append(w.hosts, w.start(fmt.Sprintf("m%d-%d", k, i), k))
		}
	}
	for i, a := range w.hosts {
		for _, b := range w.hosts[:i] {
			w.connect(a, b)
		}
	}
	return w
}

func (w *world) start(name string, model int) *actor {
	d := w.deployment(model, 0)
	exec, err := fakeexec.New(w.l.executor(d.Models[model], 16, 128))
	if err != nil {
		w.t.Fatal(err)
	}
	sub, err := New(Config{
		Replica: name, Model: d.Models[model], Executor: exec, Tokenizer: loadTokenizer(w.t), StopIDs: []int32{testVocab - 1},
		Deployments: []Deployment{d}, Clock: func() time.Duration { return w.now }, Start: time.Unix(1, 0),
		Scheduler:        scheduler.Config{MaxRows: 8, MaxTokens: 64, ChunkTokens: 32, MaxSlots: 16, MaxQueue: 64},
		Lookahead:        w.l.lookahead(),
		CollaboratorWait: time.Hour, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	a := &actor{w: w, name: name, model: model, driver: sub.Drive(func() {})}
	for range w.versions {
		a.learn()
	}
	return a
}

// learn tells a replica of the next version of the deployment.
func (a *actor) learn() {
	a.version++
	if err := a.driver.s.Set([]Deployment{a.w.deployment(a.model, a.version)}, nil); err != nil {
		a.w.t.Fatal(err)
	}
}

// deployment is a version of the deployment; 0 is the layout's.
func (w *world) deployment(model, version int) Deployment {
	settings := w.l.settings
	if version > 0 {
		settings = w.versions[version-1]
	}
	set, err := policies.New(w.l.policy, len(w.l.replicas), settings)
	if err != nil {
		w.t.Fatal(err)
	}
	d := Deployment{Name: "pair", Version: uint64(version), Self: policies.ModelID(model), Policy: set.For(policies.ModelID(model))}
	d.Fallback, d.FallbackWait = w.l.fallback, w.l.wait
	for k, n := range w.l.replicas {
		d.Models = append(d.Models, fmt.Sprintf("m%d", k))
		d.Replicas = append(d.Replicas, nil)
		for i := range n {
			d.Replicas[k] = append(d.Replicas[k], fmt.Sprintf("m%d-%d", k, i))
		}
	}
	return d
}

// connect links two replicas of different models that are alive, once both know
// that the line before is gone.
func (w *world) connect(a, b *actor) {
	if a.model == b.model || a.dead || b.dead {
		return
	}
	for _, l := range w.lines {
		if l.from.name == a.name && l.to.name == b.name || l.from.name == b.name && l.to.name == a.name {
			return
		}
	}
	there, back := &line{from: a, to: b, up: true}, &line{from: b, to: a, up: true}
	there.back, back.back = back, there
	w.lines = append(w.lines, there, back)
	a.driver.Connect(there)
	b.driver.Connect(back)
}

// cut breaks a line: some of what was sent still comes.
func (w *world) cut(l *line) {
	if !l.cut {
		l.cut = true
		l.queue = l.queue[:w.rng.IntN(len(l.queue)+1)]
	}
}

func (w *world) kill(a *actor) {
	a.dead = true
	for _, l := range w.lines {
		if l.from == a || l.to == a {
			w.cut(l)
		}
	}
	if a.running {
		if err := a.driver.End(); err != nil { // its frames go nowhere
			w.t.Fatal(err)
		}
	}
	a.driver.Stop()
}

// fault kills a replica, cuts a pair's line, or mends what was broken.
func (w *world) fault() {
	switch w.rng.IntN(5) {
	case 0, 1:
		a := w.hosts[w.rng.IntN(len(w.hosts))]
		if !a.dead && w.allow(a.name) {
			w.kill(a)
			w.faults--
		}
	case 2:
		if len(w.lines) > 0 && w.faults > 0 {
			l := w.lines[w.rng.IntN(len(w.lines))]
			w.cut(l)
			w.cut(l.back)
			w.faults--
		}
	default:
		w.mend()
	}
}

// mend restarts one dead replica or links one pair.
func (w *world) mend() (done bool) {
	for _, i := range w.rng.Perm(len(w.hosts)) {
		if a := w.hosts[i]; a.dead {
			w.hosts[i] = w.start(a.name, a.model)
			return true
		}
	}
	before := len(w.lines)
	for _, i := range w.rng.Perm(len(w.hosts)) {
		for _, b := range w.hosts {
			w.connect(w.hosts[i], b)
			if len(w.lines) > before {
				return true
			}
		}
	}
	return false
}

// deliver hands over the first frame of a line, or tells of its end.
func (w *world) deliver(l *line) bool {
	switch {
	case l.to.dead:
		l.queue = nil
		l.up = false
	case len(l.queue) > 0:
		b := l.queue[0]
		l.queue = l.queue[1:]
		if err := l.to.driver.Deliver(l.back, b); err != nil {
			w.t.Fatal(err)
		}
	case l.cut && l.up:
		l.up = false
		l.to.driver.Disconnect(l.back)
	default:
		return false
	}
	if !l.up && !l.back.up {
		w.lines = slices.DeleteFunc(w.lines, func(x *line) bool { return x == l || x == l.back })
	}
	return true
}

// step begins or ends a step of one replica.
func (w *world) step(a *actor) (worked bool, wake time.Duration) {
	if a.dead {
		return false, 1 << 62
	}
	if a.running {
		a.running = false
		if err := a.driver.End(); err != nil {
			w.t.Fatal(err)
		}
		return true, 0
	}
	plan, wake, again, err := a.driver.Begin()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := a.driver.Check(); err != nil {
		w.t.Fatal(err)
	}
	a.running = plan != nil
	if !again {
		wake = 1 << 62
	}
	return plan != nil, wake
}

// entry is a replica that may own a request, nil if all are dead.
func (w *world) entry(q *talk) *actor {
	for i := range w.hosts {
		a := w.hosts[(int(q.req.ID)+int(q.epoch)+i)%len(w.hosts)]
		if a.model == 0 && !a.dead {
			return a
		}
	}
	return nil
}

// submit opens a request, or goes on with one whose entry has failed.
func (q *talk) submit(a *actor) {
	q.epoch++
	q.err, q.again = nil, false
	r := *q.req
	r.Epoch = q.epoch
	if q.prompt != nil {
		r.Resume = &generate.Resume{PromptIDs: q.prompt, Tokens: slices.Clone(q.tokens), Owner: q.owner, State: q.state, Version: q.version}
	}
	epoch := q.epoch
	err := a.driver.Submit(&r, func(e generate.Event) {
		if epoch == q.epoch && q.finish == 0 {
			q.take(&e)
		}
	})
	if err != nil {
		q.w.t.Fatal(err)
	}
}

// take follows a request as a gateway does.
func (q *talk) take(e *generate.Event) {
	switch e.Kind {
	case generate.EventAdmitted:
		if q.prompt == nil {
			q.version = e.Version
		}
		q.prompt = slices.Clone(e.PromptIDs)
	case generate.EventTokens:
		if int(e.Base) != len(q.tokens) {
			q.w.t.Fatalf("request %d: tokens at %d, want %d", q.req.ID, e.Base, len(q.tokens))
		}
		if e.Turn {
			q.owner, q.state = e.Owner, slices.Clone(e.State)
		}
		if e.Alone {
			q.alone += len(e.Tokens)
		}
		for _, t := range e.Tokens {
			q.tokens = append(q.tokens, generate.Token{ID: t.ID, Model: t.Model})
			q.values = append(q.values, t.Logprob)
		}
	case generate.EventFinish:
		q.finish = e.Finish
	case generate.EventError:
		if q.w.broken {
			q.err = e.Err
			return
		}
		if !e.Err.Retryable || e.Err.Code == generate.CodeConflict {
			q.w.t.Fatalf("request %d: %+v", q.req.ID, e.Err)
		}
		q.err, q.again = e.Err, true
	}
}

// play runs requests to their ends, and the replicas until nothing is left.
func (w *world) play(requests int) {
	for i := range requests {
		req := request(uint64(i+1), int32(5+7*i%40))
		req.Sampling.Logprobs = int32(i%3) - 1
		if w.change != nil {
			w.change(req)
		}
		w.talks = append(w.talks, &talk{w: w, req: req, again: true})
	}
	quiet, wake := 0, time.Duration(1<<62)
	for events := 0; quiet < 400; events++ {
		if events > 400_000 {
			w.t.Fatal("it goes on forever")
		}
		worked := false
		w.now += time.Microsecond
		if w.before != nil {
			w.before()
		}
		for _, q := range w.talks {
			if a := w.entry(q); q.again && a != nil {
				worked = worked || w.pace > 0
				if w.rng.IntN(max(w.pace, 20)) == 0 {
					q.submit(a)
					worked = true
				}
			}
		}
		if x := w.rng.IntN(len(w.hosts) + len(w.lines) + 1); x < len(w.hosts) {
			ok, at := w.step(w.hosts[x])
			worked = worked || ok
			wake = min(wake, at)
		} else if x -= len(w.hosts); x < len(w.lines) {
			worked = w.deliver(w.lines[x]) || worked
		}
		if w.faults > 0 && w.rng.IntN(60) == 0 {
			w.fault()
		}
		if worked || w.faults == 0 && !w.broken && w.mend() {
			quiet = 0
			continue
		}
		if quiet++; quiet%100 == 0 {
			w.now = max(min(wake, w.now+retryWait), w.now) // waits end, turns are offered again
			wake = 1 << 62
		}
		if quiet == 399 && w.faults > 0 {
			w.faults, quiet = 0, 0 // all is still: no more faults come
		}
	}
	for _, q := range w.talks {
		if q.finish == 0 && !(w.broken && q.err != nil) {
			w.t.Errorf("request %d has stranded in epoch %d after %d tokens (%v)", q.req.ID, q.epoch, len(q.tokens), q.err)
		}
	}
	for _, a := range w.hosts {
		if a.dead {
			continue
		}
		if s := a.driver.Stats(); s.Queued+s.Running+s.Parked+s.PagesHeld+s.Slots > 0 {
			w.t.Errorf("%s still has %d queued, %d running, %d parked", a.name, s.Queued, s.Running, s.Parked)
		}
		a.driver.Stop()
	}
}

// Replicas die and lines are cut at any moment: every request ends with the tokens,
// models and log-probabilities of an undisturbed run, and nothing of it is left.
func TestFaultsChangeNothing(t *testing.T) {
	const requests = 6
	seeds := 16
	if testing.Short() {
		seeds = 3
	}
	ls := map[string]layout{
		"me, three models":    {policy: "me", settings: policies.Settings{Weights: []float64{2, 3, 5}}, replicas: []int{2, 2, 2}},
		"me, rare entry":      {policy: "me", settings: policies.Settings{Weights: []float64{1, 5, 5}}, replicas: []int{1, 1, 2}},
		"me, two models":      {policy: "me", replicas: []int{2, 2}},
		"trace, three models": layouts()["trace, three models"],
	}
	for name, l := range ls {
		if name == "trace, three models" {
			l.replicas = []int{2, 2, 2}
		}
		t.Run(name, func(t *testing.T) {
			calm := newWorld(t, l, 1, 0)
			calm.play(requests)
			for i, q := range calm.talks {
				if want := straight(t, l, q.req); !slices.Equal(q.tokens, want.Tokens) || q.finish != want.Finish {
					t.Fatalf("request %d, undisturbed: %v, want %v", i, q.tokens, want.Tokens)
				}
			}
			moved := 0
			for seed := range uint64(seeds) {
				l.ahead = seed%2 == 1
				w := newWorld(t, l, seed, 8)
				w.play(requests)
				for i, q := range w.talks {
					if !slices.Equal(q.tokens, calm.talks[i].tokens) || !slices.Equal(q.values, calm.talks[i].values) {
						t.Errorf("request %d:\n got %v\nwant %v\n got %v\nwant %v", q.req.ID, q.tokens, calm.talks[i].tokens, q.values, calm.talks[i].values)
					}
					if q.epoch > 1 {
						moved++
					}
				}
				if t.Failed() {
					t.Fatalf("seed %d", seed)
				}
			}
			if moved == 0 && l.replicas[0] > 1 {
				t.Error("void: no entry has died")
			}
		})
	}
}

// A replica of the third model dies while turns go round between all three. What a
// collaborator had sent there, and has long moved on, is not sent again.
func TestLostThirdModel(t *testing.T) {
	l := layout{policy: "me", settings: policies.Settings{Weights: []float64{1, 2, 2}}, replicas: []int{1, 1, 2}}
	c := startCluster(t, l)
	var calls []*call
	var reqs []*generate.Request
	for i := range 12 {
		req := request(uint64(i+1), 60)
		k, _ := c.open("m0-0", req)
		calls, reqs = append(calls, k), append(reqs, req)
	}
	for tokens := 0; tokens < 8; { // odd requests have m2-1 as their first choice
		e, err := calls[0].events.Next()
		if err != nil {
			t.Fatal(err)
		}
		tokens += len(e.Tokens)
	}
	c.hosts["m2-1"].stop()
	for i, k := range calls[1:] {
		got, want := c.read(k, 0), straight(t, l, reqs[i+1])
		if !slices.Equal(got.Tokens, want.Tokens) || got.Finish != want.Finish {
			t.Errorf("request %d:\n got %v (%v)\nwant %v", reqs[i+1].ID, got.Tokens, got.Err, want.Tokens)
		}
	}
	calls[0].cancel()
	c.awaitIdle()
}
