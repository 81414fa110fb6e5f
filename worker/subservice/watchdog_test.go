package subservice

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/executor/fakeexec"
	"github.com/tokenrouter/tokenrouter/worker/scheduler"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// never is a step's time after which nobody waits for it.
const never = 1000 * time.Hour

// stuckLaunch is an executor whose launch of one step blocks until free is closed.
type stuckLaunch struct {
	executor.Executor
	step uint64
	free chan struct{}
}

func (e *stuckLaunch) Launch(b *step.Batch) (executor.Ticket, error) {
	if b.Step == e.step {
		<-e.free
	}
	return e.Executor.Launch(b)
}

// watched is one replica that runs in a bubble.
type watched struct {
	t    *testing.T
	sub  *Subservice
	log  bytes.Buffer
	stop context.CancelFunc
	loop *pool.ErrorPool
	// jumped is how far the clock has jumped.
	jumped atomic.Int64
	heldUp atomic.Int64
}

// runWatched runs a replica whose steps take what took says. change may be nil.
func runWatched(t *testing.T, took func(*step.Batch) time.Duration, change func(*fakeexec.Config), wrap func(executor.Executor) executor.Executor) *watched {
	t.Helper()
	w := &watched{t: t, loop: pool.New().WithErrors()}
	cfg := fakeexec.Default()
	cfg.Info.Vocab, cfg.Info.Pages, cfg.Info.MaxTokens, cfg.Info.MaxContext, cfg.StepTime = testVocab, 1024, 1024, 1<<13, took
	cfg.Script = fakeexec.Hashed(testVocab - 1)
	if change != nil {
		change(&cfg)
	}
	exec, err := fakeexec.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	set, err := policies.New("single", 1, policies.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	var x executor.Executor = exec
	if wrap != nil {
		x = wrap(x)
	}
	began := time.Now()
	w.sub, err = New(Config{
		Replica: "m0-0", Model: "m0", Executor: x, Tokenizer: loadTokenizer(t), StopIDs: []int32{testVocab - 1},
		Deployments: []Deployment{{Name: "pair", Models: []string{"m0"}, Policy: set.For(0), Replicas: [][]string{{"m0-0"}}}},
		Scheduler:   scheduler.Config{MaxRows: 16, MaxTokens: 1024, ChunkTokens: 1008, MaxSlots: 16, MaxQueue: 64},
		Clock:       func() time.Duration { return time.Since(began) + time.Duration(w.jumped.Load()) },
		Lookahead:   LookaheadOn,
		HeldUp:      func() time.Duration { return time.Duration(w.heldUp.Load()) },
		Logger:      slog.New(slog.NewTextHandler(&w.log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	w.stop = stop
	w.loop.Go(func() error { return w.sub.Run(ctx) })
	return w
}

// ask submits a request with a prompt of so many tokens.
func (w *watched) ask(id uint64, prompt int, tokens int32) *stream {
	w.t.Helper()
	req := request(id, tokens)
	req.PromptIDs = make([]int32, prompt)
	for i := range req.PromptIDs {
		req.PromptIDs[i] = int32(id+uint64(i)*7) % (testVocab - 1)
	}
	sub, refusal := w.sub.prepare(req)
	if refusal == nil {
		refusal = w.sub.submit(w.t.Context(), sub)
	}
	if refusal != nil {
		w.t.Fatal(refusal)
	}
	return sub.q.entry.stream
}

// last waits for a request's last event, and counts its tokens.
func (w *watched) last(s *stream) (last generate.Event, tokens int) {
	for {
		events, behind := s.take()
		for _, e := range events {
			tokens += len(e.Tokens)
			if e.Kind == generate.EventFinish || e.Kind == generate.EventError {
				return e, tokens
			}
		}
		if behind {
			w.t.Fatal("void: the sequence is held")
		}
		<-s.wake
	}
}

// end stops the replica and returns what Run has.
func (w *watched) end() error {
	w.stop()
	return w.loop.Wait()
}

// A step that does not end, in whichever call, ends the replica once it had its time, and its requests are told to go elsewhere.
func TestHungStepEndsReplica(t *testing.T) {
	const at = 60
	for _, tc := range []struct {
		name   string
		step   uint64
		call   string
		ahead  bool
		within [2]time.Duration // since the last step that ended
	}{
		{"first step", 1, "wait", false, [2]time.Duration{30 * time.Second, 31 * time.Second}},
		{"first launch", 1, "launch", false, [2]time.Duration{30 * time.Second, 31 * time.Second}},
		{"wait", at, "wait", false, [2]time.Duration{2 * time.Second, 3 * time.Second}},
		{"launch", at, "launch", false, [2]time.Duration{2 * time.Second, 3 * time.Second}},
		{"wait of a step launched ahead", at, "wait", true, [2]time.Duration{2 * time.Second, 3 * time.Second}},
		{"launch ahead", at, "launch", true, [2]time.Duration{2 * time.Second, 3 * time.Second}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stuck := &stuckLaunch{free: make(chan struct{})}
				var last time.Time // when the last step that ends was launched
				w := runWatched(t, func(b *step.Batch) time.Duration {
					if b.Step == tc.step && tc.call == "wait" {
						return never
					}
					last = time.Now()
					return 10 * time.Millisecond
				}, func(c *fakeexec.Config) {
					if tc.ahead {
						c.Info.Depth, c.Info.Features = 2, c.Info.Features|step.FContinue
					}
				}, func(x executor.Executor) executor.Executor {
					if stuck.Executor = x; tc.call == "launch" {
						stuck.step = tc.step
					}
					return stuck
				})
				last = time.Now()
				e, tokens := w.last(w.ask(1, 5, 200))
				if e.Kind != generate.EventError || !e.Err.Retryable {
					t.Errorf("the request ended with %+v", e)
				}
				if waited := time.Since(last); waited < tc.within[0] || waited > tc.within[1] {
					t.Errorf("the step was given %v, want %v", waited, tc.within)
				}
				if tokens < int(tc.step)-3 {
					t.Errorf("void: %d tokens", tokens)
				}
				err := w.loop.Wait()
				var hung *HungError
				if !errors.Is(err, ErrHung) || !errors.As(err, &hung) || hung.Call != tc.call || hung.Rows != 1 {
					t.Errorf("Run ended with %v", err)
				}
				if s := w.sub.Stats(); s.Running+s.Queued+s.Parked != 0 {
					t.Errorf("a sequence is left: %+v", s)
				}
				log := w.log.String()
				if strings.Count(log, "a step does not end") != 1 || !strings.Contains(log, "model=fake step=") ||
					!strings.Contains(log, "rows=1 tokens=") || !strings.Contains(log, "expected=") {
					t.Errorf("log:\n%s", log)
				}
				if sub, refusal := w.sub.prepare(request(2, 5)); refusal != nil {
					t.Fatal(refusal)
				} else if refusal = w.sub.submit(t.Context(), sub); refusal == nil || !refusal.Retryable {
					t.Errorf("a request after that is refused with %v", refusal)
				}
				before := w.sub.stats.Load()
				close(stuck.free)
				synctest.Wait()
				if w.sub.stats.Load() != before {
					t.Error("the loop went on although its state was taken over")
				}
			})
		})
	}
}

// A replica that is to stop does not wait for a step that hangs for ever.
func TestHungStepWhileStopping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := runWatched(t, func(*step.Batch) time.Duration { return never }, nil, nil)
		w.ask(1, 5, 10)
		synctest.Wait()
		if err := w.end(); !errors.Is(err, ErrHung) {
			t.Errorf("Run ended with %v", err)
		}
	})
}

// Steps that are slow and healthy are waited for.
func TestHealthyStepsAreNoHangs(t *testing.T) {
	ahead := func(c *fakeexec.Config) { c.Info.Depth, c.Info.Features = 2, c.Info.Features|step.FContinue }
	quick := 10 * time.Millisecond
	for _, tc := range []struct {
		name   string
		took   func(*step.Batch) time.Duration
		change func(*fakeexec.Config)
		load   func(*watched) *stream // the last of its requests
	}{
		{"first step compiles", func(b *step.Batch) time.Duration {
			if b.Step == 1 {
				return 29 * time.Second
			}
			return quick
		}, nil, func(w *watched) *stream { return w.ask(1, 5, 100) }},
		{"tenth step compiles", func(b *step.Batch) time.Duration {
			if b.Step == 10 {
				return 29 * time.Second
			}
			return quick
		}, nil, func(w *watched) *stream { return w.ask(1, 5, 100) }},
		{"first prefill of its size", func(b *step.Batch) time.Duration {
			if b.Tokens() > 100 {
				return 29 * time.Second
			}
			return quick
		}, nil, func(w *watched) *stream {
			w.last(w.ask(1, 5, 100))
			return w.ask(2, 900, 10)
		}},
		{"first prefill of its size after slow steps", func(b *step.Batch) time.Duration {
			return time.Duration(b.Tokens()) * 100 * time.Millisecond // 100 s for the prefill
		}, nil, func(w *watched) *stream {
			w.last(w.ask(1, 5, 100))
			return w.ask(2, 1000, 10)
		}},
		{"more to attend to than any before of its size", func(b *step.Batch) time.Duration {
			return time.Duration(workOf(b).pairs) * time.Second / 1000 // 5 ms at first, 6 s and more for the long one
		}, nil, func(w *watched) *stream {
			w.last(w.ask(1, 5, 200))
			return w.ask(2, 6000, 10)
		}},
		{"two in flight", func(b *step.Batch) time.Duration {
			if b.Step == 60 || b.Step == 61 {
				return 1900 * time.Millisecond // the second one ends 3.8 s after its launch
			}
			return quick
		}, ahead, func(w *watched) *stream { return w.ask(1, 5, 100) }},
		{"idle for long", func(*step.Batch) time.Duration { return quick }, ahead, func(w *watched) *stream {
			w.last(w.ask(1, 5, 100))
			<-time.After(time.Hour)
			return w.ask(2, 5, 100)
		}},
		{"nine times slower at once", func(b *step.Batch) time.Duration {
			if b.Step > 60 {
				return 9 * time.Second
			}
			return time.Second
		}, nil, func(w *watched) *stream { return w.ask(1, 5, 100) }},
		{"slower little by little", func(b *step.Batch) time.Duration {
			return quick * time.Duration(1+b.Step) // 10 s at the end
		}, nil, func(w *watched) *stream { return w.ask(1, 5, 255) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := runWatched(t, tc.took, tc.change, nil)
				if e, tokens := w.last(tc.load(w)); e.Kind != generate.EventFinish || tokens < 10 {
					t.Errorf("%d tokens, then %+v", tokens, e)
				}
				if err := w.end(); err != nil || strings.Contains(w.log.String(), "level=ERROR") {
					t.Errorf("Run ended with %v; log:\n%s", err, w.log.String())
				}
			})
		})
	}
}

// Reliability goals, rows 6 and 7: a process that stood still gives its step all the time anew, however often.
func TestPauseIsNoHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := runWatched(t, func(b *step.Batch) time.Duration {
			if b.Step == 60 {
				return 5900 * time.Millisecond
			}
			return 10 * time.Millisecond
		}, nil, nil)
		began := time.Now()
		s := w.ask(1, 5, 100)
		// The step is in progress from 590 ms to 6.49 s.
		for _, at := range []time.Duration{time.Second, 2900 * time.Millisecond, 4800 * time.Millisecond} {
			<-time.After(at - time.Since(began))
			w.jumped.Add(int64(30 * time.Second))
		}
		if e, tokens := w.last(s); e.Kind != generate.EventFinish || tokens != 100 {
			t.Errorf("%d tokens, then %+v", tokens, e)
		}
		if err := w.end(); err != nil {
			t.Errorf("Run ended with %v", err)
		}
	})
}

// A pause between the begin of a call and the first look is one as well.
func TestPauseBeforeFirstLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatchdog(&executor.Info{Device: "GPU"}, patienceWith(&executor.Info{Device: "GPU"}, 0), nil)
		w.begin(&step.Batch{Step: 1, Rows: make([]step.Row, 1)}, 0)
		w.enter("wait")
		woken := time.Now()
		hung := w.watch(func() time.Duration { return time.Hour + time.Since(woken) }, nil, slog.New(slog.DiscardHandler))
		if waited := time.Since(woken); waited < unknownOnGPU || waited > unknownOnGPU+2*lookEvery || hung.Waited > waited {
			t.Errorf("found after %v: %+v", waited, hung)
		}
	})
}

// A step that others on the device hold up is given as long as they may take, to its end; the steps after it are not.
func TestHeldUpStepsAreNoHangs(t *testing.T) {
	for _, tc := range []struct {
		name   string
		after  time.Duration // how long steps are held up after step 60 has ended
		within [2]time.Duration
	}{
		{"no longer", 0, [2]time.Duration{2 * time.Second, 3 * time.Second}},
		{"less", 20 * time.Second, [2]time.Duration{20 * time.Second, 21 * time.Second}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := runWatched(t, func(b *step.Batch) time.Duration {
					switch b.Step {
					case 60:
						return 11500 * time.Millisecond // from 590 ms on
					case 80:
						return never
					}
					return 10 * time.Millisecond
				}, nil, nil)
				s := w.ask(1, 5, 100)
				w.heldUp.Store(int64(30 * time.Second))
				<-time.After(10 * time.Second)
				w.heldUp.Store(0)
				<-time.After(2*time.Second + 280*time.Millisecond) // step 80 has begun
				w.heldUp.Store(int64(tc.after))
				began := time.Now()
				e, tokens := w.last(s)
				if waited := time.Since(began); e.Kind != generate.EventError || tokens != 79 || waited < tc.within[0] || waited > tc.within[1] {
					t.Errorf("after %v and %d tokens %+v", waited, tokens, e)
				}
				if err := w.loop.Wait(); !errors.Is(err, ErrHung) {
					t.Errorf("Run ended with %v", err)
				}
			})
		})
	}
}

// Others are told how long the step in progress may take, and nothing between steps.
func TestStepAllowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := runWatched(t, func(b *step.Batch) time.Duration {
			if b.Step == 60 {
				return 1900 * time.Millisecond
			}
			return 10 * time.Millisecond
		}, nil, nil)
		synctest.Wait()
		if d := w.sub.StepAllowed(); d != 0 {
			t.Errorf("%v without a step", d)
		}
		s := w.ask(1, 5, 100)
		for at, want := range []time.Duration{30 * time.Second, 2 * time.Second} { // the first step, and step 60
			<-time.After(time.Duration(at)*time.Second + time.Millisecond)
			if d := w.sub.StepAllowed(); d != want {
				t.Errorf("%v, want %v", d, want)
			}
		}
		w.last(s)
		synctest.Wait()
		if d := w.sub.StepAllowed(); d != 0 {
			t.Errorf("%v after all steps", d)
		}
		if err := w.end(); err != nil {
			t.Errorf("Run ended with %v", err)
		}
	})
}

// hangsAtStep60 is steps that are known well, and one that never ends.
func hangsAtStep60(b *step.Batch) time.Duration {
	if b.Step == 60 {
		return never
	}
	return 10 * time.Millisecond
}

// A step that hangs after a long time without any is found as soon.
func TestHungStepAfterIdleness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := runWatched(t, hangsAtStep60, nil, nil)
		w.last(w.ask(1, 5, 50))
		<-time.After(time.Hour)
		began := time.Now()
		if e, _ := w.last(w.ask(2, 5, 50)); e.Kind != generate.EventError || time.Since(began) > 3*time.Second {
			t.Errorf("the request ended after %v with %+v", time.Since(began), e)
		}
		if err := w.loop.Wait(); !errors.Is(err, ErrHung) {
			t.Errorf("Run ended with %v", err)
		}
	})
}

// A step that hangs after a pause is still found.
func TestHungStepAfterPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := runWatched(t, hangsAtStep60, nil, nil)
		s := w.ask(1, 5, 100)
		<-time.After(2 * time.Second)
		w.jumped.Add(int64(30 * time.Second))
		paused := time.Now()
		if e, _ := w.last(s); e.Kind != generate.EventError {
			t.Errorf("the request ended with %+v", e)
		}
		if waited := time.Since(paused); waited < 2*time.Second || waited > 3500*time.Millisecond {
			t.Errorf("found %v after the pause", waited)
		}
		if err := w.loop.Wait(); !errors.Is(err, ErrHung) {
			t.Errorf("Run ended with %v", err)
		}
	})
}
