package kernels

import (
	"context"
	"errors"
	"strings"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
)

// StreamkTry is a way to build streamk that benchmarks compare with the chosen ones.
type StreamkTry struct {
	Tiles, Warps, Runs int
	Near               bool // the L2 reads 128 bytes at a time instead of 256
}

// WithStreamk returns the kernels of s with streamk built in another way, for both forms of the plain product. The returned Set
// lives as long as s, and is closed too.
func (s *Set) WithStreamk(ctx context.Context, device *driver.Context, b Builder, try StreamkTry) (_ *Set, err error) {
	arch, err := device.Device().Arch()
	if err != nil {
		return nil, err
	}
	shape := streamkShape{try.Tiles, try.Warps, try.Runs}
	var variants []Variant
	for _, width := range streamkWidths {
		variants = append(variants, streamkVariant(shape, width, 0))
	}
	list, err := programs(variants, arch, nil)
	if err != nil {
		return nil, err
	}
	if try.Near {
		for i := range list {
			list[i].Source = strings.ReplaceAll(list[i].Source, "copy_async_far(", "copy_async(")
		}
	}
	images, _, err := b.Build(ctx, list)
	if err != nil {
		return nil, err
	}
	o := *s
	o.modules = nil
	defer func() {
		if err != nil {
			err = errors.Join(err, o.Close())
		}
	}()
	form := streamkForm{streamkShape: shape}
	for i := range images {
		m, err := device.LoadModule(images[i].Cubin)
		if err != nil {
			return nil, err
		}
		o.modules = append(o.modules, m)
		if form.kernels[i], err = m.Function("streamk"); err != nil {
			return nil, err
		}
	}
	o.streamk[streamkShort], o.streamk[streamkTall] = form, form
	return &o, o.allowStreamk()
}
