package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/sourcegraph/conc/pool"
)

// connectPause is how long a worker of the closed loop waits after it could not
// connect.
const connectPause = 100 * time.Millisecond

// Bench is one benchmark, to be run once.
type Bench struct {
	cfg    Config
	target string
	head   []byte
	header http.Header
	http   http.RoundTripper
	own    *http.Transport // http, if it was made here

	tally *tally
	// began is when the measured part started; nil before.
	began atomic.Pointer[time.Time]
}

// New checks a configuration. It starts nothing.
func New(cfg Config) (*Bench, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	head, err := cfg.bodyHead()
	if err != nil {
		return nil, err
	}
	b := &Bench{cfg: cfg, target: cfg.target(), head: head, http: cfg.Transport, tally: newTally(uint64(cfg.Seed), MaxSamples)}
	if b.http == nil {
		b.own = newTransport(cfg.Concurrency)
		b.http = b.own
	}
	b.header = http.Header{"Content-Type": {"application/json"}}
	if cfg.Stream {
		b.header.Set("Accept", "text/event-stream")
	}
	if cfg.Key != "" {
		b.header.Set("Authorization", "Bearer "+cfg.Key)
	}
	return b, nil
}

// newTransport keeps one connection for each request in flight. There is no proxy
// between, and no compression: both would delay the pieces of a stream.
func newTransport(connections int) *http.Transport {
	return &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		ForceAttemptHTTP2:   true,
		TLSHandshakeTimeout: 30 * time.Second,
		MaxIdleConns:        connections,
		MaxIdleConnsPerHost: connections,
		IdleConnTimeout:     time.Minute,
		DisableCompression:  true,
		ReadBufferSize:      startBytes,
	}
}

// Progress is how far a run is.
type Progress struct {
	// Measuring is false during the warm-up.
	Measuring bool
	Done      int // requests that ended, the failed ones included
	Failed    int
	Tokens    int64 // output tokens of the successes
	Elapsed   time.Duration
}

// Progress may be called at any time, by any goroutine.
func (b *Bench) Progress() Progress {
	p := b.tally.progress()
	if began := b.began.Load(); began != nil {
		p.Measuring = true
		p.Elapsed = time.Since(*began)
	}
	return p
}

// Run sends the load and returns the report. When ctx ends it aborts what is in
// flight, which is then not counted, and returns the report of what was done,
// marked as interrupted, with the error of ctx. Requests that fail are no error.
// If all warm-up requests fail, Run returns ErrWarmup and no report.
func (b *Bench) Run(ctx context.Context) (*Report, error) {
	if b.own != nil {
		defer b.own.CloseIdleConnections()
	}
	if err := b.warmUp(ctx); err != nil {
		return nil, err
	}
	start := time.Now()
	b.began.Store(&start)
	var err error
	if b.cfg.Rate > 0 {
		err = b.open(ctx, start)
	} else {
		err = b.closed(ctx, start)
	}
	r := b.tally.report(&b.cfg, start)
	if ctx.Err() != nil {
		r.Interrupted = true
		return r, ctx.Err()
	}
	return r, err
}

// ErrWarmup says that every warm-up request failed.
var ErrWarmup = errors.New("every warm-up request failed")

// warmUp sends the warm-up requests and waits for their ends.
func (b *Bench) warmUp(ctx context.Context) error {
	if b.cfg.Warmup == 0 {
		return ctx.Err()
	}
	var next, succeeded atomic.Int64
	var sample atomic.Pointer[failure]
	workers := pool.New().WithContext(ctx).WithCancelOnError().WithFirstError()
	for range min(b.cfg.Concurrency, b.cfg.Warmup) {
		workers.Go(func(ctx context.Context) error {
			s := sender{b: b}
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= b.cfg.Warmup {
					return nil
				}
				if o := s.send(ctx, warmupIndex+i, time.Now()); o.failure == nil {
					succeeded.Add(1)
				} else {
					sample.CompareAndSwap(nil, o.failure)
				}
			}
			return ctx.Err()
		})
	}
	if err := workers.Wait(); err != nil {
		return err
	}
	if f := sample.Load(); succeeded.Load() == 0 && f != nil {
		return fmt.Errorf("%w, the first with %s", ErrWarmup, f.describe())
	}
	return nil
}

// warmupIndex is the number of the first warm-up request: far from the measured
// ones, so that generated prompts differ from theirs.
const warmupIndex = 1 << 30

// closed runs the workers of the closed loop.
func (b *Bench) closed(ctx context.Context, start time.Time) error {
	var next atomic.Int64
	workers := pool.New().WithContext(ctx).WithCancelOnError().WithFirstError()
	for range min(b.cfg.Concurrency, b.count()) {
		workers.Go(func(ctx context.Context) error {
			s := sender{b: b}
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				now := time.Now()
				if i >= b.count() || b.cfg.Duration > 0 && now.Sub(start) >= b.cfg.Duration {
					return nil
				}
				o := s.send(ctx, i, now)
				if ctx.Err() != nil {
					break
				}
				b.tally.add(o)
				if o.failure != nil && o.failure.kind == KindConnect {
					pause(ctx, connectPause)
				}
			}
			return ctx.Err()
		})
	}
	return workers.Wait()
}

// count is how many requests there are at most.
func (b *Bench) count() int {
	if b.cfg.Requests > 0 {
		return b.cfg.Requests
	}
	return math.MaxInt
}

// open sends requests at the times that the arrivals say. When too many are in
// flight it waits; the start delay shows that.
func (b *Bench) open(ctx context.Context, start time.Time) error {
	// idle holds senders that are not in use, so that their buffers live on.
	// Capacity: all of them, so putting one back never blocks; never closed.
	idle := make(chan *sender, b.cfg.Concurrency)
	flights := pool.New().WithContext(ctx).WithCancelOnError().WithFirstError().WithMaxGoroutines(b.cfg.Concurrency)
	at := arrivals(b.cfg.Arrivals, b.cfg.Rate, uint64(b.cfg.Seed))
	for i := range b.count() {
		after := at()
		if b.cfg.Duration > 0 && after >= b.cfg.Duration {
			break
		}
		planned := start.Add(after)
		if !pause(ctx, time.Until(planned)) {
			break
		}
		flights.Go(func(ctx context.Context) error {
			var s *sender
			select {
			case s = <-idle:
			default:
				s = &sender{b: b}
			}
			o := s.send(ctx, i, planned)
			if ctx.Err() == nil {
				b.tally.add(o)
			}
			idle <- s
			return ctx.Err()
		})
	}
	return flights.Wait()
}

// arrivals returns a function whose calls return the times of requests after the
// start, in order. The first gap counts, so a Poisson process has no request at 0.
func arrivals(kind Arrivals, rate float64, seed uint64) func() time.Duration {
	rng := rand.New(rand.NewPCG(seed, 1))
	at := 0.0 // in seconds
	n := 0
	return func() time.Duration {
		if kind == Constant {
			at = float64(n) / rate
			n++
		} else {
			at += rng.ExpFloat64() / rate
		}
		return time.Duration(at * float64(time.Second))
	}
}

// pause waits, and reports false when ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	if ctx.Err() != nil {
		return false
	}
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
