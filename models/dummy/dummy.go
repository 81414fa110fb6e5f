package dummy

import (
	"encoding/binary"
	"math"
	"strings"
)

const golden = 0x9E3779B97F4A7C15

func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// Tensor is one tensor's recipe.
type Tensor struct {
	Key           uint64
	Scale, Offset float32
}

// Of gives the recipe of a tensor by its checkpoint name and shape.
func Of(seed uint64, name string, shape []int) Tensor {
	h := uint64(0xCBF29CE484222325)
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 0x100000001B3
	}
	t := Tensor{Key: mix(h + mix(seed+golden))}
	switch {
	case len(shape) == 1 && strings.HasSuffix(name, "norm.weight"):
		t.Scale, t.Offset = 0.25, 1
	case len(shape) <= 1:
		t.Scale = 0.02
	default:
		gain := 1.0
		if strings.HasSuffix(name, "embed_tokens.weight") || strings.HasSuffix(name, "lm_head.weight") {
			gain = 4
		}
		t.Scale = float32(gain * math.Sqrt(3/float64(max(shape[len(shape)-1], 1))))
	}
	return t
}

// At returns element i before it is rounded to bfloat16.
func (t Tensor) At(i uint64) float32 {
	x := mix(t.Key + (i+1)*golden)
	u := float32(int16(x>>48)) * (1.0 / 32768)
	return t.Offset + float32(t.Scale*u) // the conversion keeps the product from being fused with the sum
}

// Fill writes elements [first, first+len(dst)) as raw bfloat16.
func (t Tensor) Fill(dst []uint16, first uint64) {
	for i := range dst {
		u := math.Float32bits(t.At(first + uint64(i)))
		dst[i] = uint16((u + 0x7fff + u>>16&1) >> 16) // to nearest even; the values are finite
	}
}

// Bytes are a whole tensor's elements in little-endian bfloat16, as a checkpoint has them.
func Bytes(seed uint64, name string, shape []int) []byte {
	n := 1
	for _, d := range shape {
		n *= d
	}
	t, out := Of(seed, name, shape), make([]byte, 2*n)
	var block [4096]uint16
	for at := 0; at < n; at += len(block) {
		part := block[:min(len(block), n-at)]
		t.Fill(part, uint64(at))
		for i, v := range part {
			binary.LittleEndian.PutUint16(out[2*(at+i):], v)
		}
	}
	return out
}
