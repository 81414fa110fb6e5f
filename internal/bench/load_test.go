package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// watcher counts requests and notes when they came.
type watcher struct {
	answer http.HandlerFunc

	mu         sync.Mutex
	now, most  int
	began      time.Time
	at         []time.Duration
	bodies     []map[string]any
	authorized []string
}

func (w *watcher) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	var body map[string]any
	err := json.NewDecoder(r.Body).Decode(&body)
	w.mu.Lock()
	if err != nil {
		body = map[string]any{"not JSON": err.Error()}
	}
	if w.began.IsZero() {
		w.began = time.Now()
	}
	w.at = append(w.at, time.Since(w.began))
	w.bodies = append(w.bodies, body)
	w.authorized = append(w.authorized, r.Header.Get("Authorization"))
	w.now++
	w.most = max(w.most, w.now)
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.now--
		w.mu.Unlock()
	}()
	w.answer(out, r)
}

func short() http.HandlerFunc { return script(act{100 * ms, token("a") + stop + endMark}) }

func TestClosedLoop(t *testing.T) {
	w := &watcher{answer: short()}
	inBubble(t, w, func(t *testing.T, transport http.RoundTripper) {
		cfg := plain(t, transport)
		cfg.Concurrency, cfg.Requests, cfg.Warmup = 4, 10, 3
		r := runBench(t, cfg)
		if r.Succeeded != 10 || len(w.at) != 13 || w.most != 4 || r.Requests != 10 {
			t.Errorf("%d successes of %d requests, at most %d at once", r.Succeeded, len(w.at), w.most)
		}
		same(t, "wall", r.WallS, .3) // 4 + 4 + 2
		if r.Loop != "closed" || r.Warmup != 3 {
			t.Errorf("report: %+v", r)
		}
	})
}

func TestClosedLoopForADuration(t *testing.T) {
	w := &watcher{answer: short()}
	inBubble(t, w, func(t *testing.T, transport http.RoundTripper) {
		cfg := plain(t, transport)
		cfg.Concurrency, cfg.Requests, cfg.Duration = 2, 0, 250*ms
		r := runBench(t, cfg)
		// Starts at 0, 100 and 200 ms; the last ones end after the duration.
		if r.Succeeded != 6 {
			t.Errorf("%d successes", r.Succeeded)
		}
		same(t, "wall", r.WallS, .3)
	})
}

func TestOpenLoopConstant(t *testing.T) {
	w := &watcher{answer: short()}
	inBubble(t, w, func(t *testing.T, transport http.RoundTripper) {
		cfg := plain(t, transport)
		cfg.Concurrency, cfg.Requests, cfg.Rate, cfg.Arrivals = 0, 5, 50, Constant
		r := runBench(t, cfg)
		for i, at := range w.at {
			if want := time.Duration(i) * 20 * ms; at != want {
				t.Errorf("request %d at %v, want %v", i, at, want)
			}
		}
		if r.Succeeded != 5 || w.most != 5 || r.Loop != "open" || r.Concurrency != DefaultInFlight {
			t.Errorf("%d at most in flight, report %+v", w.most, r)
		}
		same(t, "start delay", spreadOf(t, "start delay", r.StartDelay).Max, 0)
	})
}

// With too few places requests start late. The delay is reported, and the
// latency does not have it.
func TestOpenLoopDelayed(t *testing.T) {
	w := &watcher{answer: short()}
	inBubble(t, w, func(t *testing.T, transport http.RoundTripper) {
		cfg := plain(t, transport)
		cfg.Concurrency, cfg.Requests, cfg.Rate, cfg.Arrivals = 1, 3, 50, Constant
		r := runBench(t, cfg)
		same(t, "start delay", r.StartDelay.Max, 160) // the third waits until 200 ms instead of 40
		same(t, "latency", r.Latency.Max, 100)
		if w.most != 1 {
			t.Errorf("%d in flight", w.most)
		}
	})
}

func TestOpenLoopForADuration(t *testing.T) {
	w := &watcher{answer: short()}
	inBubble(t, w, func(t *testing.T, transport http.RoundTripper) {
		cfg := plain(t, transport)
		cfg.Concurrency, cfg.Requests, cfg.Duration, cfg.Rate, cfg.Arrivals = 0, 0, 100*ms, 50, Constant
		if r := runBench(t, cfg); r.Succeeded != 5 {
			t.Errorf("%d requests, want those at 0, 20, 40, 60 and 80 ms", r.Succeeded)
		}
	})
}

func TestPoissonArrivals(t *testing.T) {
	const n, rate = 20000, 100.
	at, again, other := arrivals(Poisson, rate, 7), arrivals(Poisson, rate, 7), arrivals(Poisson, rate, 8)
	var last time.Duration
	var sum, squares float64
	differ := false
	for range n {
		now := at()
		if now < last {
			t.Fatal("arrivals are not in order")
		}
		if now != again() {
			t.Fatal("the same seed gives other arrivals")
		}
		differ = differ || now != other()
		gap := (now - last).Seconds()
		sum += gap
		squares += gap * gap
		last = now
	}
	mean := sum / n
	deviation := math.Sqrt(squares/n - mean*mean)
	// The standard error of both is below 1.5 % of the mean.
	if math.Abs(mean*rate-1) > .05 || math.Abs(deviation*rate-1) > .08 || !differ {
		t.Errorf("mean gap %v s, deviation %v s, want both near %v", mean, deviation, 1/rate)
	}
}

func TestMixedOutcomes(t *testing.T) {
	var n atomic.Int64
	good := short()
	handler := func(w http.ResponseWriter, r *http.Request) {
		switch n.Add(1) % 4 {
		case 0:
			w.WriteHeader(http.StatusTooManyRequests)
			fmt.Fprint(w, `{"error":{"message":"first or later","code":"queue_full"}}`)
		case 1:
			cut(w, r)
		default:
			good(w, r)
		}
	}
	inBubble(t, http.HandlerFunc(handler), func(t *testing.T, transport http.RoundTripper) {
		cfg := plain(t, transport)
		cfg.Requests = 20
		r := runBench(t, cfg)
		if r.Succeeded+r.Failed != 20 || r.Failed != 10 || len(r.Failures) != 2 || r.ErrorRate != .5 || r.OutputTokens != 10 {
			t.Errorf("report: %+v", r)
		}
		if r.Failures[0].Count != 5 || r.Failures[1].Count != 5 {
			t.Errorf("failures: %+v", r.Failures)
		}
	})
}

func TestWarmupFails(t *testing.T) {
	inBubble(t, http.NotFoundHandler(), func(t *testing.T, transport http.RoundTripper) {
		cfg := plain(t, transport)
		cfg.Warmup = 2
		b, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if r, err := b.Run(t.Context()); r != nil || !errors.Is(err, ErrWarmup) {
			t.Errorf("Run = %v, %v", r, err)
		}
	})
}

func TestNoServer(t *testing.T) {
	inBubble(t, http.NotFoundHandler(), func(t *testing.T, _ http.RoundTripper) {
		refused := &http.Transport{DialContext: (&refuser{}).dial}
		cfg := plain(t, refused)
		cfg.Requests, cfg.Duration = 0, time.Second
		r := runBench(t, cfg)
		// One try each 100 ms, not a busy loop.
		if r.Failed != 10 || r.Failures[0].Kind != KindConnect {
			t.Errorf("report: %+v", r)
		}
	})
}

func TestInterrupted(t *testing.T) {
	for _, rate := range []float64{0, 1000} {
		t.Run(fmt.Sprint(rate), func(t *testing.T) {
			inBubble(t, short(), func(t *testing.T, transport http.RoundTripper) {
				cfg := plain(t, transport)
				cfg.Concurrency, cfg.Requests, cfg.Rate, cfg.Arrivals = 2, 1000, rate, Constant
				b, err := New(cfg)
				if err != nil {
					t.Fatal(err)
				}
				ctx, stop := context.WithTimeoutCause(t.Context(), 250*ms, context.Canceled)
				defer stop()
				r, err := b.Run(ctx)
				if err == nil || r == nil || !r.Interrupted || r.Succeeded != 4 || r.Failed != 0 {
					t.Errorf("Run = %+v, %v", r, err)
				}
				if p := b.Progress(); !p.Measuring || p.Done != 4 || p.Tokens != 4 || p.Elapsed != 250*ms {
					t.Errorf("progress: %+v", p)
				}
			})
		})
	}
}

func TestRequestBodies(t *testing.T) {
	w := &watcher{answer: short()}
	inBubble(t, w, func(t *testing.T, transport http.RoundTripper) {
		half := .5
		cfg := plain(t, transport)
		cfg.Requests, cfg.Key, cfg.MaxTokens, cfg.IgnoreEOS, cfg.Temperature, cfg.Seed, cfg.SendSeed = 3, "secret", 9, true, &half, 40, true
		runBench(t, cfg)
		for i, want := range []string{"one", "two", "one"} {
			message := fmt.Sprintf("[map[content:%s role:user]]", want)
			b := w.bodies[i]
			if fmt.Sprint(b["messages"]) != message || b["seed"] != float64(40+i) || b["max_tokens"] != 9. || b["ignore_eos"] != true ||
				b["temperature"] != .5 || b["stream"] != true || fmt.Sprint(b["stream_options"]) != "map[include_usage:true]" || b["model"] != "m" {
				t.Errorf("body %d: %v", i, b)
			}
			if w.authorized[i] != "Bearer secret" {
				t.Errorf("authorization %q", w.authorized[i])
			}
		}
		w.bodies = nil
		runBench(t, plain(t, transport))
		for _, absent := range []string{"seed", "ignore_eos", "max_tokens", "temperature"} {
			if _, ok := w.bodies[0][absent]; ok {
				t.Errorf("%s was sent without being asked for", absent)
			}
		}
	})
}

func TestConfigFaults(t *testing.T) {
	good := plain(t, nil)
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Config){
		"url":           func(c *Config) { c.URL = "server:80" },
		"model":         func(c *Config) { c.Model = "" },
		"endpoint":      func(c *Config) { c.Endpoint = "embeddings" },
		"prompts":       func(c *Config) { c.Prompts = Prompts{} },
		"rate":          func(c *Config) { c.Rate = math.NaN() },
		"negative rate": func(c *Config) { c.Rate = -1 },
		"arrivals":      func(c *Config) { c.Rate = 1 },
		"concurrency":   func(c *Config) { c.Concurrency = 0 },
		"too many":      func(c *Config) { c.Concurrency = MaxConcurrency + 1 },
		"both":          func(c *Config) { c.Duration = time.Second },
		"neither":       func(c *Config) { c.Requests = 0 },
		"warmup":        func(c *Config) { c.Warmup = -1 },
		"temperature":   func(c *Config) { v := math.Inf(1); c.Temperature = &v },
	} {
		c := good
		change(&c)
		if _, err := New(c); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
