package cudaexec

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/kernels"
	"github.com/tokenrouter/tokenrouter/cuda/tensor"
	"github.com/tokenrouter/tokenrouter/models/dummy"
	"github.com/tokenrouter/tokenrouter/worker/model"
)

// Source gives a model's weights: Checkpoint or Dummy.
type Source interface {
	// describe returns the name and shape. It checks that all weights are there.
	describe() (string, *model.Config, error)
	// load fills the parts of w.
	load(ctx context.Context, l *loader, w *weights) error
}

// Checkpoint takes weights from files. The checkpoint may be closed when New has returned.
func Checkpoint(k *model.Checkpoint) Source { return checkpoint{k} }

// Dummy makes weights on the device from a seed, by the recipe of package dummy.
func Dummy(name string, c model.Config, seed uint64) Source { return dummyModel{name, c, seed} }

// loader is what a Source works with.
type loader struct {
	device   *Device
	set      *kernels.Set
	stream   *driver.Stream
	total    int64
	done     atomic.Int64
	progress func(done, total int64)
}

// report counts bytes as loaded.
func (l *loader) report(bytes int64) {
	done := l.done.Add(bytes)
	if l.progress != nil {
		l.progress(done, l.total)
	}
}

type dummyModel struct {
	name string
	cfg  model.Config
	seed uint64
}

func (s dummyModel) describe() (string, *model.Config, error) { return s.name, &s.cfg, nil }

func (s dummyModel) load(ctx context.Context, l *loader, w *weights) error {
	for _, p := range s.cfg.Params() {
		if err := ctx.Err(); err != nil {
			return err
		}
		to, ok := w.parts[p.Name]
		if !ok {
			return fmt.Errorf("dummy weights: %s has no place", p.Name)
		}
		n, err := to.Shape.Elements()
		if err != nil {
			return err
		}
		r := dummy.Of(s.seed, p.Name, p.Shape)
		fill := kernels.HashfillParams{Out: driver.Ptr(to.Ptr), Key: r.Key, N: n, Scale: r.Scale, Offset: r.Offset}
		if err := l.set.Hashfill(l.stream, &fill); err != nil {
			return fmt.Errorf("dummy weights: %s: %w", p.Name, err)
		}
		l.report(int64(n) * 2)
	}
	return l.stream.Synchronize()
}

type checkpoint struct{ k *model.Checkpoint }

func (s checkpoint) describe() (string, *model.Config, error) {
	return s.k.Name, &s.k.Config, s.k.Check()
}

// Uploading: several workers, each with a pinned buffer and a stream, so that reading files, filling buffers and
// copying overlap.
const (
	uploadWorkers = 4
	uploadChunk   = 16 << 20 // bytes of a pinned buffer
)

// piece is a part of one tensor, small enough for a pinned buffer.
type piece struct {
	name  string
	dtype model.DType
	bytes []byte     // in the file
	to    driver.Ptr // of its first element
	elems uint64
}

func (s checkpoint) load(ctx context.Context, l *loader, w *weights) error {
	var pieces []piece
	for _, p := range s.k.Config.Params() {
		to, ok := w.parts[p.Name]
		if !ok {
			return fmt.Errorf("load weights: %s has no place", p.Name)
		}
		t, err := s.k.Tensor(p.Name)
		if err != nil {
			return err
		}
		size := t.DType.Size()
		step := uploadChunk / size
		for at := 0; at < t.Elems(); at += step {
			n := min(step, t.Elems()-at)
			pieces = append(pieces, piece{p.Name, t.DType, t.Bytes[at*size : (at+n)*size],
				driver.Ptr(to.Ptr) + driver.Ptr(2*at), uint64(n)})
		}
	}
	var next atomic.Int64
	group := pool.New().WithContext(ctx).WithCancelOnError().WithFirstError()
	for range min(uploadWorkers, len(pieces)) {
		group.Go(func(ctx context.Context) error { return l.upload(ctx, pieces, &next) })
	}
	return group.Wait()
}

// upload copies pieces until none is left.
func (l *loader) upload(ctx context.Context, pieces []piece, next *atomic.Int64) (err error) {
	u, err := newUploader(l.device)
	if err != nil {
		return fmt.Errorf("load weights: %w", err)
	}
	defer func() {
		if e := u.close(); err == nil {
			err = e
		}
	}()
	for {
		i := next.Add(1) - 1
		if i >= int64(len(pieces)) {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		p := &pieces[i]
		if err := u.send(l.set, p); err != nil {
			return fmt.Errorf("load weights: %s: %w", p.name, err)
		}
		l.report(int64(p.elems) * 2)
	}
}

// uploader is one worker's means.
type uploader struct {
	device *Device
	pinned *driver.HostMem
	stream *driver.Stream
	// wide is device memory for elements to convert, 0 until some are met.
	wide driver.Ptr
}

func newUploader(d *Device) (*uploader, error) {
	pinned, err := d.ctx.HostAlloc(uploadChunk, false)
	if err != nil {
		return nil, err
	}
	stream, err := d.ctx.NewStream(0)
	if err != nil {
		return nil, joinClose(err, pinned.Close)
	}
	return &uploader{device: d, pinned: pinned, stream: stream}, nil
}

func (u *uploader) close() error {
	closers := []func() error{u.stream.Synchronize, u.stream.Close, u.pinned.Close}
	if u.wide != 0 {
		closers = append(closers, func() error { return u.device.free(u.wide) })
	}
	return joinClose(nil, closers...)
}

// send copies one piece and waits for it. The other workers keep disk and bus busy meanwhile.
func (u *uploader) send(set *kernels.Set, p *piece) error {
	copy(u.pinned.Bytes(), p.bytes)
	to := p.to
	if p.dtype != model.BF16 {
		if u.wide == 0 {
			var err error
			if u.wide, err = u.device.alloc(uploadChunk); err != nil {
				return err
			}
		}
		to = u.wide
	}
	if err := u.stream.CopyToDevice(to, u.pinned, 0, uint64(len(p.bytes))); err != nil {
		return err
	}
	if p.dtype != model.BF16 {
		from := int32(1)
		if p.dtype == model.F16 {
			from = 2
		}
		if err := set.Convert(u.stream, &kernels.ConvertParams{In: u.wide, Out: p.to, N: p.elems, From: from}); err != nil {
			return err
		}
	}
	return u.stream.Synchronize()
}

// writeFloats copies float32 values into a view and waits.
func writeFloats(ctx *driver.Context, to tensor.View, values []float32) error {
	return ctx.Write(driver.Ptr(to.Ptr), driver.Bytes(values))
}
