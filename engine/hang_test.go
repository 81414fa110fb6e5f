package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sourcegraph/conc"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/step"
	"github.com/tokenrouter/tokenrouter/worker/subservice"
)

// hanging is an executor whose next step does not end once armed is set. It counts the calls after that.
type hanging struct {
	executor.Executor
	launch bool          // the step's launch does not end, instead of the wait for it
	free   chan struct{} // ends the launch
	armed  atomic.Bool
	hung   atomic.Bool
	late   atomic.Int32
}

func (x *hanging) Launch(b *step.Batch) (executor.Ticket, error) {
	if x.hung.Load() {
		x.late.Add(1)
	}
	if x.launch && x.armed.Load() {
		x.hung.Store(true)
		<-x.free
	}
	return x.Executor.Launch(b)
}

func (x *hanging) Wait(ctx context.Context, t executor.Ticket, r *step.Result) error {
	if !x.launch && x.armed.Load() {
		x.hung.Store(true)
		<-ctx.Done()
		return ctx.Err()
	}
	return x.Executor.Wait(ctx, t, r)
}

func (x *hanging) Close(s step.Slot) {
	if x.hung.Load() {
		x.late.Add(1)
	}
	x.Executor.Close(s)
}

func (x *hanging) Shutdown() error {
	if x.hung.Load() {
		x.late.Add(1)
	}
	return x.Executor.Shutdown()
}

// counted is the sum of a metric.
func counted(t *testing.T, metrics *prometheus.Registry, name string) (n float64) {
	t.Helper()
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name {
				n += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return n
}

// Reliability goals, row 15, for one process: a step that does not end takes its replica's process out within 3 s. The requests
// go on at the other replica of the model, with the same text, whether the replica was their entry or had their turn.
func TestHungStepMovesRequests(t *testing.T) {
	for _, tc := range []struct {
		replica string
		launch  bool
	}{{"s-b", true}, {"l-b", false}, {"s-b", false}, {"l-b", true}}[:few(2, 4)] {
		t.Run(fmt.Sprintf("%s, launch %t", tc.replica, tc.launch), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := &hanging{launch: tc.launch, free: make(chan struct{})}
				metrics := []*prometheus.Registry{prometheus.NewRegistry(), prometheus.NewRegistry(), prometheus.NewRegistry()}
				c := crewWith(t, 3, func(i int, cfg *Config) {
					cfg.Metrics, cfg.Restarts = metrics[i], 2
					cfg.newCPU = func(model string, vocab, pages int) (executor.Executor, error) {
						fake, err := fakes(model, vocab, pages)
						if err != nil || i == 0 || model != map[string]string{"s-b": "tiny-s", "l-b": "tiny-l"}[tc.replica] {
							return fake, err
						}
						x.Executor = fake
						return x, nil
					}
				}, "0:s-a:tiny-s", "0:l-a:tiny-l", "1:s-b:tiny-s", "2:l-b:tiny-l")
				c.await(cluster.Ready, "s-a", "l-a", "s-b", "l-b")
				half := 0.5
				c.groups[0].Policy = Policy{Name: "random", Threshold: &half}
				c.assign()
				awaitPolicy(t, c.engines, c.groups[0].Policy)
				e := c.serve("s-a", "s-b")
				list := seeded(questions(24, few(100, 300)))
				for i := range list {
					list[i].IgnoreEOS = true
				}
				at := c.engines[c.where[tc.replica]]
				c.hung = at
				steps := func() subservice.Stats { return at.list()[0].current.Load().Stats() }
				// Steps of one row and of two, and so of those of three, are known well.
				want := answers(t, e, list, 3, nil)
				for round := 0; steps().BatchRows.Counts[0] < 100 || steps().BatchRows.Counts[1] < 100; round++ {
					if round == 20 {
						t.Fatalf("void: few steps: %+v", steps())
					}
					answers(t, e, list, 3, nil)
				}
				var asking conc.WaitGroup
				var got [][]said
				asking.Go(func() { got = answers(t, e, list, 3, nil) })
				for before := steps().Steps; steps().Steps < before+20; { // a request is past its prompt
					<-time.After(time.Millisecond)
				}
				x.armed.Store(true)
				armed := time.Now()
				<-at.closing
				if took := time.Since(armed); took > 3*time.Second {
					t.Errorf("the process ends after %v", took)
				}
				if err := at.Close(); !errors.Is(err, ErrHung) || !errors.Is(err, subservice.ErrHung) {
					t.Errorf("the engine ended with %v", err)
				}
				asking.Wait()
				moved := false
				for i := range want {
					if d := differs(got[i], want[i]); d != "" {
						t.Errorf("request %d differs: %s", i, d)
					}
					moved = moved || got[i][0].End.Epoch > want[i][0].End.Epoch
				}
				if moved != (tc.replica == "s-b") {
					t.Errorf("requests have moved: %t", moved)
				}
				for i, m := range metrics {
					want := 0.0
					if c.engines[i] == at {
						want = 1
					}
					if n := counted(t, m, "trctl_steps_hung_total"); n != want {
						t.Errorf("engine %d counts %v hung steps, want %v", i, n, want)
					}
					if n := counted(t, m, "trctl_process_restarts"); n != 2 {
						t.Errorf("engine %d counts %v restarts", i, n)
					}
				}
				if n := x.late.Load(); n > 0 {
					t.Errorf("the executor was called %d times after that", n)
				}
				close(x.free)
			})
		})
	}
}

// hangingCrew is one engine with a small and a large model, whose small one runs on x.
func hangingCrew(t *testing.T, x *hanging) *crewed {
	t.Helper()
	c := crewWith(t, 1, func(_ int, cfg *Config) {
		cfg.newCPU = func(model string, vocab, pages int) (executor.Executor, error) {
			fake, err := fakes(model, vocab, pages)
			if model != "tiny-s" || err != nil {
				return fake, err
			}
			x.Executor = fake
			return x, nil
		}
	}, "0:s-a:tiny-s", "0:l-a:tiny-l")
	c.await(cluster.Ready, "s-a", "l-a")
	return c
}

// Replicas on one device give each other the time that their own steps have; on another device they do not.
func TestStepsOfOneDeviceHoldEachOtherUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := &hanging{}
		c := hangingCrew(t, x)
		at := c.engines[0]
		of := func(name string) *replica {
			return at.list()[slices.IndexFunc(at.list(), func(r *replica) bool { return r.name == name })]
		}
		small, large := of("s-a"), of("l-a")
		x.armed.Store(true)
		e := c.serve("s-a")
		var asking conc.WaitGroup
		asking.Go(func() { _, _ = ask(e, questions(1, 10)[0]) }) // it ends with the engine
		<-time.After(time.Second)
		if own, other := at.heldUp(small), at.heldUp(large); own != 0 || other != moveTime { // as much as a first step has
			t.Errorf("held up by %v and %v", own, other)
		}
		elsewhere := *large.model
		elsewhere.place.cuda = true
		gpu := newReplica("g", &elsewhere)
		if d := at.heldUp(gpu); d != 0 {
			t.Errorf("held up by another device: %v", d)
		}
		at.moving.Add(1)
		if cpu, gpu := at.heldUp(small), at.heldUp(gpu); cpu != 0 || gpu != moveTime {
			t.Errorf("held up by a load: %v and %v", cpu, gpu)
		}
		if err := at.Close(); err != nil {
			t.Errorf("the engine ended with %v", err)
		}
		asking.Wait()
	})
}

// An engine that is to stop while a step hangs stops, and asks for no new process.
func TestHungStepWhileEngineStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := &hanging{}
		c := hangingCrew(t, x)
		x.armed.Store(true)
		e := c.serve("s-a")
		var asking conc.WaitGroup
		asking.Go(func() { _, _ = ask(e, questions(1, 10)[0]) }) // it ends with the engine
		<-time.After(time.Second)
		if err := c.engines[0].Close(); err != nil {
			t.Errorf("the engine ended with %v", err)
		}
		asking.Wait()
	})
}

// Nothing is asked of the driver after a hang: it might not come back. An executor on a CPU without the step is shut down.
func TestHungStepLeavesGPU(t *testing.T) {
	cfg, fake, _, _ := loading(t)
	e, r := newEngine(cfg), newReplica("a", new(loaded))
	d, err := e.gpus.acquire(0)
	if err != nil {
		t.Fatal(err)
	}
	m, err := load(Model{Name: "tiny-s"})
	if err != nil {
		t.Fatal(err)
	}
	e.models = append(e.models, m)
	before := len(fake.Calls())
	e.noteHang(r, subservice.ErrHung)
	hung, other, cpu := new(closing), new(closing), new(closing)
	for x, fault := range map[*running]error{
		{Executor: hung, gpu: d}: subservice.ErrHung, {Executor: other, gpu: d}: nil, {Executor: cpu}: nil,
	} {
		if err := e.end(r, x, fault); err != nil {
			t.Error(err)
		}
	}
	if err := e.release(); err != nil {
		t.Error(err)
	}
	if err := m.checkpoint.Check(); err != nil {
		t.Errorf("a load that was left behind loses its weights: %v", err)
	}
	if after := fake.Calls(); len(after) != before {
		t.Errorf("the driver was asked for %v", after[before:])
	}
	if hung.times+other.times != 0 || cpu.times != 1 {
		t.Errorf("executors were shut down %d, %d and %d times", hung.times, other.times, cpu.times)
	}
	if err := d.device.Close(); err != nil {
		t.Error(err)
	}
}

// closing counts how often an executor is shut down.
type closing struct {
	executor.Executor
	times int
}

func (c *closing) Shutdown() error { c.times++; return nil }

// What shares the driver with a step that hangs may hang as well; a new process does not wait for it.
func TestHungStepHoldsOthersUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(Config{})
		stuck, free := make(chan struct{}), make(chan struct{})
		var running conc.WaitGroup
		began := time.Now()
		running.Go(func() {
			err := e.runAll(t.Context(), func(ctx context.Context) error {
				<-ctx.Done()
				close(stuck)
				<-free
				return nil
			})
			if !errors.Is(err, ErrHung) || time.Since(began) != letGo {
				t.Errorf("ended after %v with %v", time.Since(began), err)
			}
		})
		e.noteHang(&replica{name: "a"}, fmt.Errorf("run: %w", subservice.ErrHung))
		e.noteHang(&replica{name: "b"}, fmt.Errorf("run: %w", subservice.ErrHung)) // changes nothing
		<-stuck
		running.Wait()
		close(free)
	})
}

// Whoever waits for the end of a drain does not wait for what is left behind after a hang.
func TestHungStepEndsDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		loads, free := make(chan struct{}), make(chan struct{})
		c := crewWith(t, 1, func(_ int, cfg *Config) {
			cfg.newCPU = func(model string, vocab, pages int) (executor.Executor, error) {
				close(loads)
				<-free // as a load does that waits for the step
				return fakes(model, vocab, pages)
			}
		}, "0:s-a:tiny-s")
		at := c.engines[0]
		c.hung = at
		<-loads
		at.Drain()
		at.noteHang(&replica{name: "b"}, subservice.ErrHung)
		<-at.closing
		if err := at.Close(); !errors.Is(err, ErrHung) {
			t.Errorf("the engine ended with %v", err)
		}
		select {
		case <-at.Drained():
		default:
			t.Error("the engine has ended and is not drained")
		}
		close(free)
	})
}
