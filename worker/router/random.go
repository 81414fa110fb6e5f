package router

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/tokenrouter/tokenrouter/worker/model"
)

// Shape is the size of a net: the width between blocks, the width inside one, and the
// number of blocks. For citer Inner is the width of its second layer.
type Shape struct{ Width, Inner, Blocks int }

// Random makes a net that nobody trained, for tests and benchmarks. The same arguments
// give the same net. Its scores spread over (0, 1).
func Random(name string, s Sidecar, shape Shape, dtype model.DType, seed uint64) *Checkpoint {
	c := &Checkpoint{Name: name, Sidecar: s, tensors: map[string]model.Tensor{}}
	empty := func(name string, rows int) { c.tensors[name] = model.Tensor{Name: name, Shape: []int{rows, 0}} }
	switch s.Kind {
	case R2R:
		empty("backbone.input_projection.weight", shape.Width)
		for i := range shape.Blocks {
			empty(fmt.Sprintf("backbone.blocks.%d.mlp.0.weight", i), shape.Inner)
		}
	case CITER:
		empty("mlp.0.weight", shape.Width)
		empty("mlp.4.weight", shape.Inner)
	}
	params, err := c.params()
	if err != nil {
		panic(fmt.Sprintf("router: random net %s: %v", name, err))
	}
	r := rand.New(rand.NewPCG(seed, 41))
	for _, p := range params {
		c.tensors[p.Name] = randomTensor(r, p, dtype)
	}
	return c
}

// randomTensor has matrices that keep the size of vectors, gains and variances around
// 1, and the rest around 0.
func randomTensor(r *rand.Rand, p model.Param, dtype model.DType) model.Tensor {
	n := 1
	for _, d := range p.Shape {
		n *= d
	}
	scale, offset := 0.2, 0.0
	switch {
	case len(p.Shape) == 2:
		scale = 1 / math.Sqrt(float64(p.Shape[1]))
	case p.Name == "defer.weight":
		scale = 1 / math.Sqrt(float64(n))
	case p.Name[len(p.Name)-6:] == "weight", p.Name[len(p.Name)-3:] == "var":
		offset = 1
	}
	if dtype != model.BF16 {
		dtype = model.F32
	}
	t := model.Tensor{Name: p.Name, DType: dtype, Shape: p.Shape, Bytes: make([]byte, 0, n*dtype.Size())}
	for range n {
		bits := math.Float32bits(float32(offset + scale*max(-3, min(r.NormFloat64(), 3))))
		if dtype == model.BF16 {
			t.Bytes = binary.LittleEndian.AppendUint16(t.Bytes, uint16((bits+0x7fff+bits>>16&1)>>16))
		} else {
			t.Bytes = binary.LittleEndian.AppendUint32(t.Bytes, bits)
		}
	}
	return t
}
