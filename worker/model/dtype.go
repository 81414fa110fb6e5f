package model

import (
	"encoding/binary"
	"fmt"
	"math"
)

// DType is an element type, by its safetensors name.
type DType string

const (
	BF16 DType = "BF16"
	F16  DType = "F16"
	F32  DType = "F32"
	F64  DType = "F64"
	I32  DType = "I32"
	I64  DType = "I64"
	U8   DType = "U8"
)

// Size returns the bytes of one element, or 0 for a type that is not known.
func (d DType) Size() int {
	switch d {
	case "BOOL", U8, "I8", "F8_E4M3", "F8_E5M2":
		return 1
	case BF16, F16, "I16", "U16":
		return 2
	case F32, I32, "U32":
		return 4
	case F64, I64, "U64":
		return 8
	}
	return 0
}

// Tensor is one named array, row-major and little-endian. Bytes alias the
// checkpoint's file and are valid until Close; they must not be written.
type Tensor struct {
	Name  string
	DType DType
	Shape []int
	Bytes []byte
}

// Elems returns the number of elements. Invariant: it equals len(Bytes) / DType.Size().
func (t *Tensor) Elems() int { return len(t.Bytes) / t.DType.Size() }

// Float32 returns the elements as float32 in fresh memory. Only BF16, F16 and
// F32 convert, all of them exactly.
func (t *Tensor) Float32() ([]float32, error) {
	out := make([]float32, t.Elems())
	return out, t.CopyFloat32(out)
}

// CopyFloat32 is Float32 into the caller's memory, which must have Elems elements.
func (t *Tensor) CopyFloat32(dst []float32) error {
	if len(dst) != t.Elems() {
		return fmt.Errorf("tensor %s: destination of %d elements, found %d", t.Name, len(dst), t.Elems())
	}
	b := t.Bytes
	switch t.DType {
	case F32:
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
		}
	case BF16:
		for i := range dst {
			dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(b[2*i:])) << 16)
		}
	case F16:
		for i := range dst {
			dst[i] = halfToFloat(binary.LittleEndian.Uint16(b[2*i:]))
		}
	default:
		return fmt.Errorf("tensor %s: expected type BF16, F16 or F32, found %s", t.Name, t.DType)
	}
	return nil
}

// halfToFloat converts IEEE binary16.
func halfToFloat(h uint16) float32 {
	sign := uint32(h>>15) << 31
	exp := uint32(h>>10) & 31
	frac := uint32(h) & 1023
	switch exp {
	case 0: // zero or subnormal: frac · 2^-24
		f := float32(frac) * (1.0 / (1 << 24))
		return math.Float32frombits(sign | math.Float32bits(f))
	case 31: // infinity or NaN
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}
