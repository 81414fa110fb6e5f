package selftest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
)

// elapsed is the median device time of some work, after one run for warmth.
func (r *rig) elapsed(ctx context.Context, runs int, work func() error) (time.Duration, error) {
	start, errS := r.ctx.NewEvent(driver.EventOptions{Timing: true})
	if errS == nil {
		r.later(start.Close)
	}
	end, errE := r.ctx.NewEvent(driver.EventOptions{Timing: true})
	if errE == nil {
		r.later(end.Close)
	}
	if err := errors.Join(errS, errE); err != nil {
		return 0, err
	}
	if err := errors.Join(work(), r.wait(ctx)); err != nil {
		return 0, err
	}
	var times []time.Duration
	for range runs {
		if err := errors.Join(start.Record(r.stream), work(), end.Record(r.stream), r.wait(ctx)); err != nil {
			return 0, err
		}
		took, err := end.Since(start)
		if err != nil {
			return 0, err
		}
		times = append(times, took)
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}

// rate prints bytes in a time.
func rate(bytes float64, took time.Duration) string {
	if took <= 0 {
		return "too fast to measure"
	}
	return fmt.Sprintf("%.1f GB/s (%.0f MB in %v)", bytes/took.Seconds()/1e9, bytes/1e6, took.Round(time.Microsecond))
}

// bandwidth measures copies over the bus and in the device, and a kernel that only reads.
func (r *rig) bandwidth(ctx context.Context) error {
	free, _, err := r.ctx.Memory()
	if err != nil {
		return err
	}
	bytes := min(r.env.bytes, free/4) &^ 0xffff
	if bytes == 0 {
		return fmt.Errorf("%w: %d bytes of device memory are free", errSkipped, free)
	}
	hostBytes := min(bytes, 256<<20)
	a, errA := r.alloc(bytes)
	b, errB := r.alloc(bytes)
	m, errM := r.host(hostBytes)
	if err := errors.Join(errA, errB, errM); err != nil {
		return err
	}
	if err := errors.Join(r.stream.Set8(a, 1, bytes), r.stream.Set8(b, 2, bytes), r.wait(ctx)); err != nil {
		return err
	}
	sms, err := r.device.Attribute(driver.MultiprocessorCount)
	if err != nil {
		return err
	}
	grid := &driver.Launch{Grid: driver.X(uint32(4 * max(sms, 1))), Block: driver.X(512)}
	for _, item := range []struct {
		name  string
		moved float64
		work  func() error
	}{
		{"host → device, pinned", float64(hostBytes), func() error { return r.stream.CopyToDevice(a, m, 0, hostBytes) }},
		{"device → host, pinned", float64(hostBytes), func() error { return r.stream.CopyToHost(m, 0, a, hostBytes) }},
		{"device copy, read + written", 2 * float64(bytes), func() error { return r.stream.Copy(b, a, bytes) }},
		{"read kernel, 16-byte loads", float64(bytes), func() error {
			return driver.LaunchWith(r.stream, r.kernel["read"], grid, &readParams{in: a, out: b, n: bytes / 16})
		}},
	} {
		took, err := r.elapsed(ctx, 5, item.work)
		if err != nil {
			return fmt.Errorf("%s: %w", item.name, err)
		}
		r.line(item.name, rate(item.moved, took))
	}
	return nil
}

// peers copies to every other device, when there is one that can be reached.
func (r *rig) peers(ctx context.Context) error {
	if r.driver.DeviceCount() == 1 {
		return fmt.Errorf("%w: there is one device", errSkipped)
	}
	for i := 1; i < r.driver.DeviceCount(); i++ {
		if err := r.scope(func() error { return r.peer(ctx, i) }); err != nil {
			return fmt.Errorf("device %d: %w", i, err)
		}
	}
	return nil
}

func (r *rig) peer(ctx context.Context, ordinal int) error {
	const bytes = 256 << 20
	device, err := r.driver.Device(ordinal)
	if err != nil {
		return err
	}
	there, errT := r.device.CanAccessPeer(device)
	back, errB := device.CanAccessPeer(r.device)
	if err := errors.Join(errT, errB); err != nil {
		return err
	}
	name := fmt.Sprintf("peer copy 0 → %d", ordinal)
	if !there || !back {
		r.line(name, "no peer access")
		return nil
	}
	other, err := device.Retain()
	if err != nil {
		return err
	}
	r.later(other.Close)
	if err := errors.Join(r.ctx.EnablePeer(other), other.EnablePeer(r.ctx)); err != nil {
		return err
	}
	src, err := r.alloc(bytes)
	if err != nil {
		return err
	}
	dst, err := other.Alloc(bytes)
	if err != nil {
		return err
	}
	r.later(func() error { return other.Free(dst) })
	if err := errors.Join(r.stream.Set32(src, 0xabcd0000+uint32(ordinal), bytes/4), r.wait(ctx)); err != nil {
		return err
	}
	took, err := r.elapsed(ctx, 5, func() error { return r.stream.CopyPeer(dst, other, src, r.ctx, bytes) })
	if err != nil {
		return err
	}
	got := make([]uint32, 1)
	if err := other.Read(driver.Bytes(got), dst+bytes-4); err != nil {
		return err
	}
	if got[0] != 0xabcd0000+uint32(ordinal) {
		return fmt.Errorf("last word is %#x", got[0])
	}
	r.line(name, rate(bytes, took))
	return nil
}
