package tensor

import (
	"errors"
	"fmt"
	"math/bits"
	"strings"
)

var (
	// ErrShape means that a rank or size is not the one asked for, or that a size is negative or the product overflows.
	ErrShape = errors.New("shape does not fit")
	// ErrDType means that the element type is not the one asked for, or unknown.
	ErrDType = errors.New("element type does not fit")
	// ErrAlign means that an address is not a multiple of the alignment asked for.
	ErrAlign = errors.New("address is not aligned")
	// ErrSpace means that an arena is full.
	ErrSpace = errors.New("arena is full")
)

// DType is the type of an element. The zero value is no type.
type DType uint8

// The element types.
const (
	BF16 DType = iota + 1
	F32
	F16
	F8E4M3
	U8
	I32
	U32
	I64
	U64
)

// dtypes lists name and bytes of each DType.
var dtypes = [...]struct {
	name  string
	bytes uint64
}{
	BF16: {"bf16", 2}, F32: {"f32", 4}, F16: {"f16", 2}, F8E4M3: {"f8e4m3", 1}, U8: {"u8", 1}, I32: {"i32", 4},
	U32: {"u32", 4}, I64: {"i64", 8}, U64: {"u64", 8},
}

// Valid reports whether the type is one of the constants.
func (d DType) Valid() bool { return d > 0 && int(d) < len(dtypes) }

// Bytes is the size of an element, 0 for an unknown type.
func (d DType) Bytes() uint64 {
	if !d.Valid() {
		return 0
	}
	return dtypes[d].bytes
}

func (d DType) String() string {
	if !d.Valid() {
		return fmt.Sprintf("dtype(%d)", uint8(d))
	}
	return dtypes[d].name
}

// MaxRank is the largest number of axes.
const MaxRank = 6

// Shape is the extent of each axis, outermost first. It is a value without pointers, so Views cost no allocation.
type Shape struct {
	rank int
	dims [MaxRank]int
}

// Of makes a shape. More than MaxRank axes give a shape that no check accepts.
func Of(dims ...int) Shape {
	s := Shape{rank: len(dims)}
	if len(dims) <= MaxRank {
		copy(s.dims[:], dims)
	}
	return s
}

// Rank is the number of axes; a scalar has none.
func (s Shape) Rank() int { return s.rank }

// Dim is the extent of axis i, which must be below Rank. A negative i counts from the innermost axis.
func (s Shape) Dim(i int) int {
	if i < 0 {
		i += s.rank
	}
	return s.dims[i]
}

// Elements is the number of elements. It is an error when an extent is negative, the rank is beyond MaxRank, or the
// product exceeds 63 bits.
func (s Shape) Elements() (uint64, error) {
	if s.rank > MaxRank {
		return 0, fmt.Errorf("%w: %d axes, at most %d", ErrShape, s.rank, MaxRank)
	}
	product, zero := uint64(1), false
	for _, n := range s.dims[:s.rank] {
		if n < 0 {
			return 0, fmt.Errorf("%w: negative extent in %v", ErrShape, s)
		}
		if n == 0 {
			zero = true
			continue
		}
		high, low := bits.Mul64(product, uint64(n))
		if high != 0 || low >= 1<<63 {
			return 0, fmt.Errorf("%w: %v has too many elements", ErrShape, s)
		}
		product = low
	}
	if zero {
		return 0, nil
	}
	return product, nil
}

func (s Shape) String() string {
	if s.rank > MaxRank {
		return fmt.Sprintf("[%d axes]", s.rank)
	}
	text := make([]string, s.rank)
	for i := range text {
		text[i] = fmt.Sprint(s.dims[i])
	}
	return "[" + strings.Join(text, ", ") + "]"
}

// View is an array in device memory, contiguous, the last axis innermost.
type View struct {
	// Ptr is the device address of the first element.
	Ptr   uint64
	Shape Shape
	DType DType
}

// String is a view as messages show it, without the address: "[4, 128] bf16".
func (v View) String() string { return v.Shape.String() + " " + v.DType.String() }

// Bytes is the size of the array.
func (v View) Bytes() (uint64, error) {
	if !v.DType.Valid() {
		return 0, fmt.Errorf("%w: %v", ErrDType, v.DType)
	}
	n, err := v.Shape.Elements()
	if err != nil {
		return 0, err
	}
	high, low := bits.Mul64(n, v.DType.Bytes())
	if high != 0 || low >= 1<<63 {
		return 0, fmt.Errorf("%w: %v has too many bytes", ErrShape, v)
	}
	return low, nil
}

// Rows is the sub-view of rows [start, end) of the outermost axis.
func (v View) Rows(start, end int) (View, error) {
	if v.Shape.rank < 1 || start < 0 || end < start || end > v.Shape.dims[0] {
		return View{}, fmt.Errorf("%w: rows [%d, %d) of %v", ErrShape, start, end, v)
	}
	row := v
	row.Shape.dims[0] = 1
	stride, err := row.Bytes()
	if err != nil {
		return View{}, err
	}
	if _, err := v.Bytes(); err != nil {
		return View{}, err
	}
	v.Ptr += uint64(start) * stride
	v.Shape.dims[0] = end - start
	return v, nil
}

// Reshape is the same array with another shape of as many elements.
func (v View) Reshape(s Shape) (View, error) {
	have, err := v.Shape.Elements()
	if err != nil {
		return View{}, err
	}
	want, err := s.Elements()
	if err != nil {
		return View{}, err
	}
	if have != want {
		return View{}, fmt.Errorf("%w: %v as %v", ErrShape, v, s)
	}
	v.Shape = s
	return v, nil
}
