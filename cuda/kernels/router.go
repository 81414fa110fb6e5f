package kernels

import (
	"context"
	"errors"
	"fmt"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/nvrtc"
)

// RouterLinearParams mirrors struct RouterLinearParams; see router.cuh. Group is set by Linear.
type RouterLinearParams struct {
	Head, Samples, Stats, Top, X, Embed, W, Bias, Gain, Shift, Y driver.Ptr

	N, K, Hidden, Logits, Group, Net, First int32
	Flags                                   uint32
}

// RouterEndParams mirrors struct RouterEndParams.
type RouterEndParams struct {
	Head, Samples, Stats, X, Gain, Shift, W driver.Ptr

	Bias          float32
	K, Net, First int32
}

// WantNet is where Sample.Want has the number of the net that gives the score, a byte.
const WantNet = 8

// Bits of RouterLinearParams.Flags.
const (
	RouterReLU      = 1
	RouterNormalize = 2
	RouterAhead     = 4
)

// RouterForm is a kind of linear layer of a router net.
type RouterForm int

// The forms; see routerlinear.cu.
const (
	RouterFront RouterForm = iota
	RouterUp
	RouterDown
	routerForms
)

const (
	routerShared  = 11264 // floats, of the rows of a block in shared memory
	routerThreads = 256
)

// routerRows are the most samples of a block, by variant. The narrow one is for steps of one.
var routerRows = [...]int{1, 8}

// MaxRouterWidth bounds K of the front and of up: one row must fit the shared memory.
const MaxRouterWidth = routerShared

// RouterVariants lists the kernels of router nets, in a fixed order. They do not depend on a model's dimensions.
func RouterVariants() []Variant {
	vs := []Variant{{"routerend", nil, 64}}
	for form := range routerForms {
		for _, rows := range routerRows {
			vs = append(vs, Variant{"routerlinear", defines("ROUTER_FORM", int(form), "ROUTER_T", rows), 255})
		}
	}
	return vs
}

// RouterPrograms lists the compilations of RouterVariants for one architecture.
func RouterPrograms(arch string, options ...string) ([]nvrtc.Program, error) {
	return programs(RouterVariants(), arch, options)
}

// Router is the compiled and loaded kernels of router nets on one device.
type Router struct {
	modules    []*driver.Module
	end        *driver.Function
	linear     [routerForms][len(routerRows)]*driver.Function
	overlapped bool
	timeline   *Timeline // nil for none
}

// LoadRouter builds the kernels of router nets and loads them.
func LoadRouter(ctx context.Context, device *driver.Context, b Builder) (*Router, error) {
	return LoadTimedRouter(ctx, device, b, nil)
}

// LoadTimedRouter is LoadTimed for these kernels.
func LoadTimedRouter(ctx context.Context, device *driver.Context, b Builder, t *Timeline) (_ *Router, err error) {
	arch, err := device.Device().Arch()
	if err != nil {
		return nil, err
	}
	list, err := RouterPrograms(arch)
	if err != nil {
		return nil, err
	}
	t.stamp(list)
	images, _, err := b.Build(ctx, list)
	if err != nil {
		return nil, err
	}
	s := &Router{timeline: t}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	places := []**driver.Function{&s.end}
	for form := range s.linear {
		for i := range s.linear[form] {
			places = append(places, &s.linear[form][i])
		}
	}
	for i, v := range RouterVariants() {
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
	return s, nil
}

// Overlapped is Set.Overlapped for these kernels.
func (s *Router) Overlapped() *Router {
	o := *s
	o.overlapped, o.modules = true, nil
	return &o
}

// Close unloads the kernels. Work that uses them must have ended.
func (s *Router) Close() error {
	var errs []error
	for _, m := range s.modules {
		errs = append(errs, m.Close())
	}
	s.modules = nil
	return errors.Join(errs...)
}

// Linear runs a layer over samples rows; padding does nothing. It sets p.Group.
func (s *Router) Linear(st *driver.Stream, form RouterForm, p *RouterLinearParams, samples int) error {
	outs, unit, length := 8, int32(8), int(p.K)
	switch form {
	case RouterFront:
		unit = 4
	case RouterUp:
		outs, length = 32, ceilDiv(length, 256)*256
	case RouterDown:
		length = 1 // it takes no shared memory
	default:
		return fmt.Errorf("router layer: %w: form %d", ErrDims, form)
	}
	inputs := p.Hidden
	if p.Embed != 0 {
		inputs = 2*p.Hidden + p.Logits
	}
	if p.N <= 0 || p.K <= 0 || p.K%unit != 0 || p.W%16 != 0 || length > routerShared ||
		form == RouterFront && (inputs > p.K || p.Hidden <= 0 || p.Logits < 0 || p.Logits > MaxTop) ||
		form == RouterFront && p.Flags&RouterNormalize != 0 && p.Hidden%8 != 0 {
		return fmt.Errorf("router layer: %w: N %d, K %d of %d at %#x", ErrDims, p.N, p.K, inputs, p.W)
	}
	wide := 0
	if samples > 1 {
		wide = len(routerRows) - 1
	}
	p.Group = int32(min(routerRows[wide], routerShared/length))
	return runRouter(s, st, s.linear[form][wide], ceilDiv(int(p.N), outs), ceilDiv(samples, int(p.Group)), p)
}

// End makes the scores of samples rows.
func (s *Router) End(st *driver.Stream, p *RouterEndParams, samples int) error {
	if p.K <= 0 {
		return fmt.Errorf("router end: %w: K %d", ErrDims, p.K)
	}
	return runRouter(s, st, s.end, samples, 1, p)
}

// runRouter is run for these kernels.
func runRouter[P any](s *Router, st *driver.Stream, f *driver.Function, x, y int, p *P) error {
	return run(&Set{overlapped: s.overlapped, timeline: s.timeline}, st, f, x, y, routerThreads, p)
}
