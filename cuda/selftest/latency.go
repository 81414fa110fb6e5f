package selftest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
)

var oneThread = driver.Launch{Grid: driver.X(1), Block: driver.X(1)}

// sample times a call many times, after a few for warmth.
func (r *rig) sample(ctx context.Context, rounds int, call func() error) ([]time.Duration, error) {
	out := make([]time.Duration, 0, rounds)
	for i := range rounds + 20 {
		start := time.Now()
		if err := call(); err != nil {
			return nil, err
		}
		took := time.Since(start)
		if i >= 20 {
			out = append(out, took)
		}
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// launchLatency times one launch with a wait, as a kernel and as a graph of one node, and a launch alone.
func (r *rig) launchLatency(ctx context.Context) error {
	empty := r.kernel["empty"]
	launch := func() error { return r.stream.LaunchRaw(empty, &oneThread, nil, 0) }
	if err := errors.Join(launch(), r.wait(ctx)); err != nil { // also loads the code
		return err
	}
	x, err := r.capture(launch)
	if err != nil {
		return err
	}
	for _, item := range []struct {
		name string
		call func() error
	}{
		{"kernel launch + stream synchronise", func() error { return errors.Join(launch(), r.stream.Synchronize()) }},
		{"graph launch + stream synchronise", func() error { return errors.Join(x.Launch(r.stream), r.stream.Synchronize()) }},
	} {
		samples, err := r.sample(ctx, r.env.rounds, item.call)
		if err != nil {
			return err
		}
		r.line(item.name, quantiles(samples))
	}
	const batch = 100 // below the depth of the driver's queue
	start := time.Now()
	for range batch {
		if err := launch(); err != nil {
			return err
		}
	}
	took := time.Since(start)
	if err := r.wait(ctx); err != nil {
		return err
	}
	r.line("kernel launch alone", fmt.Sprintf("%.2f µs mean (%d)", float64(took.Nanoseconds())/1e3/batch, batch))
	return nil
}

// word is a 64-bit word of pinned memory, shared with the device.
func word(m *driver.HostMem, offset uint64) *uint64 {
	return (*uint64)(unsafe.Add(m.Pointer(), offset))
}

// spin waits until the word has a value, without blocking in C.
func (r *rig) spin(ctx context.Context, at *uint64, want uint64) error {
	return r.waitFor(ctx, func() (bool, error) {
		got := atomic.LoadUint64(at)
		if got == ^uint64(0) {
			return false, errors.New("the kernel gave up waiting for the host")
		}
		return got >= want, nil
	})
}

// flagLatency times from a graph's launch until Go sees the flag that its kernel writes into host memory.
func (r *rig) flagLatency(ctx context.Context) error {
	m, errM := r.host(4096)
	counter, errC := r.alloc(8)
	if err := errors.Join(errM, errC); err != nil {
		return err
	}
	seen := word(m, 0)
	atomic.StoreUint64(seen, 0)
	if err := errors.Join(r.stream.Set8(counter, 0, 8), r.wait(ctx)); err != nil {
		return err
	}
	x, err := r.capture(func() error {
		return driver.LaunchWith(r.stream, r.kernel["flag"], &oneThread, &flagParams{flag: m.Device(), counter: counter})
	})
	if err != nil {
		return err
	}
	count := uint64(0)
	samples, err := r.sample(ctx, r.env.rounds, func() error {
		count++
		if err := x.Launch(r.stream); err != nil {
			return err
		}
		return r.spin(ctx, seen, count)
	})
	if err != nil {
		return err
	}
	r.line("graph launch → mapped flag seen by Go", quantiles(samples))
	return r.wait(ctx)
}

// pingPong times round trips with a kernel that stays on the device.
func (r *rig) pingPong(ctx context.Context) error {
	m, err := r.host(4096)
	if err != nil {
		return err
	}
	request, answer := word(m, 0), word(m, 128)
	atomic.StoreUint64(request, 0)
	atomic.StoreUint64(answer, 0)
	rounds := r.env.rounds
	p := &pingParams{
		request: m.Device(), answer: m.Device() + 128, rounds: uint64(rounds + 20), limitNS: uint64(r.env.wait.Nanoseconds() / 2),
	}
	if err := driver.LaunchWith(r.stream, r.kernel["ping"], &oneThread, p); err != nil {
		return err
	}
	round := uint64(0)
	samples, err := r.sample(ctx, rounds, func() error {
		round++
		atomic.StoreUint64(request, round)
		return r.spin(ctx, answer, round)
	})
	// Whatever happened, the kernel ends now, or soon by its own limit.
	atomic.StoreUint64(request, ^uint64(0))
	if err := errors.Join(err, r.wait(ctx)); err != nil {
		return err
	}
	r.line("host ↔ resident kernel, round trip", quantiles(samples))
	return nil
}

// nodeCost times graphs of many empty kernels.
func (r *rig) nodeCost(ctx context.Context) error {
	const nodes = 1000
	x, err := r.capture(func() error {
		for range nodes {
			if err := r.stream.LaunchRaw(r.kernel["empty"], &oneThread, nil, 0); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	took, err := r.elapsed(ctx, 5, func() error { return x.Launch(r.stream) })
	if err != nil {
		return err
	}
	r.line("empty kernel node in a graph", fmt.Sprintf("%.3f µs (median of 5, %d nodes)", float64(took.Nanoseconds())/1e3/nodes, nodes))
	return nil
}
