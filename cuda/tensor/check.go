package tensor

import "fmt"

// Any is the extent that Check accepts whatever it is.
const Any = -1

// Check returns an error unless the view has the type, the rank and the extents given, where Any fits all, and its
// address is a multiple of align (a power of two, or 0 for no check). An empty view may have any address. name appears
// in the error.
func (v View) Check(name string, d DType, align uint64, dims ...int) error {
	if v.DType != d {
		return fmt.Errorf("%s: %w: have %v, want %v", name, ErrDType, v.DType, d)
	}
	if v.Shape.rank != len(dims) {
		return fmt.Errorf("%s: %w: have %v, want %d axes", name, ErrShape, v, len(dims))
	}
	bytes, err := v.Bytes()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for i, want := range dims {
		if want != Any && v.Shape.dims[i] != want {
			return fmt.Errorf("%s: %w: have %v, want axis %d to be %d", name, ErrShape, v, i, want)
		}
	}
	if bytes == 0 {
		return nil
	}
	if v.Ptr == 0 {
		return fmt.Errorf("%s: %w: no address", name, ErrAlign)
	}
	if align > 1 && v.Ptr&(align-1) != 0 {
		return fmt.Errorf("%s: %w: %#x, want a multiple of %d", name, ErrAlign, v.Ptr, align)
	}
	return nil
}

// Sizes binds symbolic extents across the arguments of one launch: the first use of a symbol fixes it, later uses must
// agree. The zero value is ready.
//
//	var s tensor.Sizes
//	s.Bind("x", x, "T", "C")
//	s.Bind("weight", w, "C")
//	if err := s.Err(); err != nil { … }
type Sizes struct {
	names  [2 * MaxRank]string
	owners [2 * MaxRank]string
	values [2 * MaxRank]int
	count  int
	err    error
}

// Bind gives a symbol to each axis of a view; "_" takes any extent. After the first error it does nothing.
func (s *Sizes) Bind(name string, v View, symbols ...string) {
	if s.err != nil {
		return
	}
	if v.Shape.rank != len(symbols) || v.Shape.rank > MaxRank {
		s.err = fmt.Errorf("%s: %w: have %v, want %d axes", name, ErrShape, v, len(symbols))
		return
	}
	for i, symbol := range symbols {
		if symbol != "_" {
			s.bind(name, symbol, v.Shape.dims[i])
		}
	}
}

func (s *Sizes) bind(owner, symbol string, extent int) {
	for i := range s.count {
		if s.names[i] != symbol {
			continue
		}
		if s.values[i] != extent && s.err == nil {
			s.err = fmt.Errorf("%s: %w: %s is %d, but %d in %s", owner, ErrShape, symbol, extent, s.values[i], s.owners[i])
		}
		return
	}
	if s.count == len(s.names) {
		if s.err == nil {
			s.err = fmt.Errorf("%s: %w: more than %d symbols", owner, ErrShape, len(s.names))
		}
		return
	}
	s.names[s.count], s.owners[s.count], s.values[s.count] = symbol, owner, extent
	s.count++
}

// Get is the extent bound to a symbol, 0 when there is none.
func (s *Sizes) Get(symbol string) int {
	for i := range s.count {
		if s.names[i] == symbol {
			return s.values[i]
		}
	}
	return 0
}

// Err is the first disagreement.
func (s *Sizes) Err() error { return s.err }
