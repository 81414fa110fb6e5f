package kernels

import (
	"context"
	"errors"
	"fmt"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/nvrtc"
)

// Builder makes module images. *nvrtc.Builder is one; package simt has the emulator's.
type Builder interface {
	Build(context.Context, []nvrtc.Program) ([]nvrtc.Binary, nvrtc.BuildStats, error)
}

// Set is the compiled and loaded kernels of one model on one device.
type Set struct {
	Dims    Dims
	modules []*driver.Module

	adjust, convert, embed, hashfill, part, stats, prep, publish, qkvpost, rmsnorm, sample, silumul *driver.Function

	attn     [AttnForms]*driver.Function
	gemv     [len(gemvWidths)]*driver.Function
	gemvGate [len(gemvWidths)]*driver.Function
	slim     [2][slimForms][slimWidths]*driver.Function // plain and gate
	band     [2]*driver.Function
	tile     [2][len(tilePasses)]*driver.Function
	panel    [2][len(panelShapes)]*driver.Function // nil where hopper says no

	// multiprocessors is the device's, and banded says that its shared memory is large enough for band.
	multiprocessors int
	attnRing        int // spans in the ring of the wide attn
	banded          bool
	// overlapped launches with the attribute of programmatic dependent launch.
	overlapped bool
	timeline   *Timeline // nil for none
}

// Overlapped returns the same kernels, launched so that a kernel may begin while the one before it ends. The device is
// of compute capability 9.0 or later. All kernels wait for their predecessors before they use their results. The
// returned Set lives as long as s, which is the one to close.
func (s *Set) Overlapped() *Set {
	o := *s
	o.overlapped, o.modules = true, nil
	return &o
}

// Load builds the kernels for a model's dimensions and loads them. The context's device gives the architecture.
func Load(ctx context.Context, device *driver.Context, b Builder, d Dims) (*Set, error) {
	return LoadTimed(ctx, device, b, d, nil)
}

// LoadTimed is Load for kernels whose blocks note when they run. The Timeline is of the same device.
func LoadTimed(ctx context.Context, device *driver.Context, b Builder, d Dims, t *Timeline) (*Set, error) {
	arch, err := device.Device().Arch()
	if err != nil {
		return nil, err
	}
	return load(ctx, device, b, d, t, arch)
}

func load(ctx context.Context, device *driver.Context, b Builder, d Dims, t *Timeline, arch string) (_ *Set, err error) {
	programs, err := Programs(d, arch)
	if err != nil {
		return nil, err
	}
	t.stamp(programs)
	images, _, err := b.Build(ctx, programs)
	if err != nil {
		return nil, err
	}
	variants := Variants(d, arch)
	s := &Set{Dims: d, timeline: t, attnRing: attnRing(arch)}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	places := s.places(arch)
	if len(places) != len(variants) {
		return nil, fmt.Errorf("kernels: %d variants for %d functions", len(variants), len(places))
	}
	for i, v := range variants {
		m, err := device.LoadModule(images[i].Cubin)
		if err != nil {
			return nil, fmt.Errorf("kernel %s: %w", v.Kernel, err)
		}
		s.modules = append(s.modules, m)
		if *places[i], err = m.Function(v.Kernel); err != nil {
			return nil, err
		}
		if err = t.add(m, *places[i]); err != nil {
			return nil, err
		}
	}
	return s, s.allow(device.Device())
}

// allow asks for the shared memory that kernels need beyond 48 KiB, and for the device's size.
func (s *Set) allow(d driver.Device) error {
	for form, f := range s.attn {
		if err := f.SetMaxSharedBytes(attnShared(s.Dims, AttnForm(form), s.attnRing)); err != nil {
			return err
		}
	}
	shared, err := d.Attribute(driver.SharedBytesPerBlockOptin)
	if err != nil {
		return err
	}
	for _, f := range s.band {
		if shared < bandShared {
			break
		}
		if err := f.SetMaxSharedBytes(bandShared); err != nil {
			return err
		}
		s.banded = true
	}
	for gate := range s.panel {
		for i, f := range s.panel[gate] {
			if f == nil {
				continue
			}
			if err := f.SetMaxSharedBytes(panelShapes[i].shared()); err != nil {
				return err
			}
		}
	}
	s.multiprocessors, err = d.Attribute(driver.MultiprocessorCount)
	return err
}

// places lists where the functions go, in the order of Variants.
func (s *Set) places(arch string) []**driver.Function {
	out := []**driver.Function{
		&s.attn[AttnNarrow], &s.attn[AttnWide], &s.embed, &s.part, &s.stats, &s.qkvpost, &s.rmsnorm, &s.sample, &s.silumul,
		&s.adjust, &s.convert, &s.hashfill, &s.prep, &s.publish,
	}
	for i := range s.gemv {
		out = append(out, &s.gemv[i])
	}
	for i := range s.gemvGate {
		out = append(out, &s.gemvGate[i])
	}
	for gate := range s.slim {
		for form := range s.slim[gate] {
			for width := range s.slim[gate][form] {
				out = append(out, &s.slim[gate][form][width])
			}
		}
		out = append(out, &s.band[gate])
		for i := range s.tile[gate] {
			out = append(out, &s.tile[gate][i])
		}
		for i := range s.panel[gate] {
			if hopper(arch) {
				out = append(out, &s.panel[gate][i])
			}
		}
	}
	return out
}

// Close unloads the kernels. Work that uses them must have ended.
func (s *Set) Close() error {
	var errs []error
	for _, m := range s.modules {
		errs = append(errs, m.Close())
	}
	s.modules = nil
	return errors.Join(errs...)
}
