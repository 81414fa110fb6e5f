package tensor

import "fmt"

// DefaultAlign suits vector loads, bulk copies and cuBLASLt, and keeps buffers on their own L2 sectors.
const DefaultAlign = 256

// Arena hands out aligned parts of one device allocation, front to back. It does not own the allocation. It is not safe
// for concurrent use.
//
// Invariant: 0 ≤ used ≤ size, and parts do not overlap unless Reset lies between them.
type Arena struct {
	base, size, used uint64
	peak             uint64
}

// NewArena takes the allocation [base, base+size), whose base is a multiple of DefaultAlign.
func NewArena(base, size uint64) (*Arena, error) {
	if base == 0 || base%DefaultAlign != 0 {
		return nil, fmt.Errorf("new arena: %w: base %#x, want a multiple of %d", ErrAlign, base, DefaultAlign)
	}
	if base+size < base {
		return nil, fmt.Errorf("new arena: %w: [%#x, +%d) wraps", ErrShape, base, size)
	}
	return &Arena{base: base, size: size}, nil
}

// Measure returns an arena without memory that only sums: laying the same buffers out in it tells, as Used, how large
// the real one must be. Sizing and use then share one piece of code.
func Measure() *Arena { return &Arena{base: DefaultAlign, size: 1 << 62} }

// View takes the next part for an array, aligned to DefaultAlign. An array without elements gets a valid address and
// takes no space.
func (a *Arena) View(d DType, dims ...int) (View, error) {
	v := View{Shape: Of(dims...), DType: d}
	bytes, err := v.Bytes()
	if err != nil {
		return View{}, err
	}
	v.Ptr, err = a.Bytes(bytes, DefaultAlign)
	if err != nil {
		return View{}, fmt.Errorf("%v: %w", v, err)
	}
	return v, nil
}

// Bytes takes the next part with an alignment, a power of two up to DefaultAlign, and returns its address. After an
// error nothing is taken.
func (a *Arena) Bytes(bytes, align uint64) (uint64, error) {
	if align == 0 || align&(align-1) != 0 || align > DefaultAlign {
		return 0, fmt.Errorf("%w: alignment %d", ErrAlign, align)
	}
	start := (a.used + align - 1) &^ (align - 1)
	if start < a.used || start > a.size || bytes > a.size-start {
		return 0, fmt.Errorf("%w: want %d bytes, %d of %d used", ErrSpace, bytes, a.used, a.size)
	}
	a.used = start + bytes
	a.peak = max(a.peak, a.used)
	return a.base + start, nil
}

// Used is the number of bytes handed out, with the gaps for alignment.
func (a *Arena) Used() uint64 { return a.used }

// Peak is the largest Used so far.
func (a *Arena) Peak() uint64 { return a.peak }

// Mark is the present position, for Reset.
func (a *Arena) Mark() uint64 { return a.used }

// Reset gives back all parts handed out since the mark. A mark beyond the present position is an error.
func (a *Arena) Reset(mark uint64) error {
	if mark > a.used {
		return fmt.Errorf("reset arena: %w: mark %d of %d", ErrShape, mark, a.used)
	}
	a.used = mark
	return nil
}
