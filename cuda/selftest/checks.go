package selftest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
)

// The parameter structs of kernels.cu.
type (
	addParams struct {
		a, b, out driver.Ptr
		n, _      int32
	}
	reduceParams struct {
		in, out driver.Ptr
		n, _    int32
	}
	flagParams struct{ flag, counter driver.Ptr }
	pingParams struct {
		request, answer driver.Ptr
		rounds, limitNS uint64
	}
	readParams struct {
		in, out driver.Ptr
		n       uint64
	}
)

// sequence is small whole numbers, whose sums are exact in fp32.
func sequence(n, step int) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = float32(i * step % 17)
	}
	return out
}

// upload copies values to new device memory.
func (r *rig) upload(values []float32) (driver.Ptr, error) {
	p, err := r.alloc(uint64(4 * len(values)))
	if err != nil {
		return 0, err
	}
	return p, r.ctx.Write(p, driver.Bytes(values))
}

// checkAdd runs a kernel at sizes around a block's border.
func (r *rig) checkAdd(ctx context.Context) error {
	for _, n := range []int{1, 255, 256, 257, 1 << 20} {
		a, b := sequence(n, 3), sequence(n, 5)
		pa, errA := r.upload(a)
		pb, errB := r.upload(b)
		out, errOut := r.alloc(uint64(4*n + 4)) // one guard word behind the end
		if err := errors.Join(errA, errB, errOut); err != nil {
			return err
		}
		l := &driver.Launch{Grid: driver.X(uint32((n + 255) / 256)), Block: driver.X(256)}
		err := errors.Join(r.stream.Set32(out, 0x7fc00000, uint64(n+1)), driver.LaunchWith(r.stream, r.kernel["add"], l, &addParams{a: pa, b: pb, out: out, n: int32(n)}),
			r.wait(ctx))
		if err != nil {
			return err
		}
		got := make([]float32, n+1)
		if err := r.ctx.Read(driver.Bytes(got), out); err != nil {
			return err
		}
		for i := range n {
			if got[i] != a[i]+b[i] {
				return fmt.Errorf("n=%d: element %d is %g, want %g", n, i, got[i], a[i]+b[i])
			}
		}
		if got[n] == got[n] {
			return fmt.Errorf("n=%d: the kernel wrote past the end", n)
		}
	}
	r.line("vector add", "correct at 5 sizes")
	return nil
}

// checkReduce sums in two passes.
func (r *rig) checkReduce(ctx context.Context) error {
	const n, blocks = 1_000_003, 264
	values := sequence(n, 7)
	want := float32(0)
	for _, v := range values {
		want += v
	}
	in, errIn := r.upload(values)
	partial, errP := r.alloc(4 * blocks)
	out, errOut := r.alloc(4)
	if err := errors.Join(errIn, errP, errOut); err != nil {
		return err
	}
	first := &driver.Launch{Grid: driver.X(blocks), Block: driver.X(256)}
	second := &driver.Launch{Grid: driver.X(1), Block: driver.X(1024)}
	err := errors.Join(driver.LaunchWith(r.stream, r.kernel["reduce"], first, &reduceParams{in: in, out: partial, n: n}),
		driver.LaunchWith(r.stream, r.kernel["reduce"], second, &reduceParams{in: partial, out: out, n: blocks}), r.wait(ctx))
	if err != nil {
		return err
	}
	got := make([]float32, 1)
	if err := r.ctx.Read(driver.Bytes(got), out); err != nil {
		return err
	}
	if got[0] != want {
		return fmt.Errorf("sum is %g, want %g", got[0], want)
	}
	r.line("reduction", fmt.Sprintf("correct, %d elements", n))
	return nil
}

// checkGraph replays three dependent additions: each replay adds 3·b to the accumulator.
func (r *rig) checkGraph(ctx context.Context) error {
	const n, replays = 1000, 5
	b := sequence(n, 5)
	acc, errA := r.upload(make([]float32, n))
	pb, errB := r.upload(b)
	if err := errors.Join(errA, errB); err != nil {
		return err
	}
	l := &driver.Launch{Grid: driver.X((n + 255) / 256), Block: driver.X(256)}
	p := &addParams{a: acc, b: pb, out: acc, n: n}
	start := time.Now()
	x, err := r.capture(func() error {
		add := func() error { return driver.LaunchWith(r.stream, r.kernel["add"], l, p) }
		return errors.Join(add(), add(), add())
	})
	if err != nil {
		return err
	}
	took := time.Since(start)
	p.n = 0 // the graph holds its own copy of the parameters
	if err := x.Upload(r.stream); err != nil {
		return err
	}
	for range replays {
		if err := x.Launch(r.stream); err != nil {
			return err
		}
	}
	if err := r.wait(ctx); err != nil {
		return err
	}
	got := make([]float32, n)
	if err := r.ctx.Read(driver.Bytes(got), acc); err != nil {
		return err
	}
	for i := range got {
		if want := 3 * replays * b[i]; got[i] != want {
			return fmt.Errorf("element %d is %g after %d replays, want %g", i, got[i], replays, want)
		}
	}
	r.line("graph replay", fmt.Sprintf("correct; capture and instantiate took %v", took.Round(time.Microsecond)))
	return nil
}

// checkMapping maps memory behind reserved addresses, uses it across the border of two pieces, and gives it back.
func (r *rig) checkMapping(ctx context.Context) error {
	granule, err := r.ctx.Granule()
	if err != nil {
		return err
	}
	v, err := r.ctx.Reserve(8 * granule)
	if err != nil {
		return err
	}
	r.later(v.Close)
	start := time.Now()
	if err := errors.Join(v.Map(0, granule), v.Map(granule, granule)); err != nil {
		return err
	}
	took := time.Since(start) / 2
	at := v.Base() + driver.Ptr(granule) - 8
	if err := errors.Join(r.stream.Set32(at, 0x01020304, 4), r.wait(ctx)); err != nil {
		return err
	}
	got := make([]uint32, 4)
	if err := r.ctx.Read(driver.Bytes(got), at); err != nil {
		return err
	}
	for i, word := range got {
		if word != 0x01020304 {
			return fmt.Errorf("word %d across the border of two pieces is %#x", i, word)
		}
	}
	if err := v.Unmap(0); err != nil {
		return err
	}
	r.line("mapped memory", fmt.Sprintf("correct; granule %d KiB, %v to map one", granule>>10, took.Round(time.Microsecond)))
	return nil
}
