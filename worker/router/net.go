package router

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/sourcegraph/conc/iter"

	"github.com/tokenrouter/tokenrouter/worker/model"
)

// Matrix is [Rows, Cols], as float32 or, where the file has bfloat16, as that: half
// the memory to read, and the same results.
type Matrix struct {
	Rows, Cols int
	F32        []float32
	BF16       []uint16 // nil if F32 is used
}

// Norm is a layer norm: gain and bias.
type Norm struct{ Gain, Bias []float32 }

// Block is v += Down·gelu(Up·norm(v) + UpBias) + DownBias.
type Block struct {
	Norm             Norm
	Up, Down         Matrix
	UpBias, DownBias []float32
}

// Net is a folded router. It does not change and may be shared.
//
//	r2r:    v = Front·[hidden; embedding of the candidate; largest logits] + FrontBias,
//	        then the blocks, then sigmoid(Out·norm(v) + OutBias)
//	citer:  v = relu(Front·hidden + FrontBias), then sigmoid(Out·v + OutBias)
//	co-llm: sigmoid(Out·hidden)
type Net struct {
	Name string
	Sidecar
	// Front is float32; it has no rows for co-llm. With NormalizeInput, hidden vector and
	// embedding are first brought to mean 0 and variance 1, each on its own, and the
	// logits to their softmax; gains and biases are in Front.
	Front     Matrix
	FrontBias []float32
	Blocks    []Block
	OutNorm   Norm // r2r alone
	Out       []float32
	OutBias   float32
}

// NormEps is added to variances under the root, in layer norms and batch norms.
const NormEps = 1e-5

// Top is the number of largest logits that the net takes of each row.
func (n *Net) Top() int {
	if n.Kind == R2R {
		return n.LogitsSize
	}
	return 0
}

// Width is the length of the vectors between the layers; 0 if there are none.
func (n *Net) Width() int { return n.Front.Rows }

// Inner is the width inside a block; 0 without blocks.
func (n *Net) Inner() int {
	if len(n.Blocks) == 0 {
		return 0
	}
	return n.Blocks[0].Up.Rows
}

// Bytes is the memory of the weights.
func (n *Net) Bytes() int64 {
	size := func(m *Matrix) int64 { return int64(len(m.F32))*4 + int64(len(m.BF16))*2 }
	total := size(&n.Front) + int64(len(n.FrontBias)+len(n.Out))*4
	for i := range n.Blocks {
		b := &n.Blocks[i]
		total += size(&b.Up) + size(&b.Down) + int64(len(b.UpBias)+3*len(b.DownBias))*4
	}
	return total
}

// Fold joins everything before the first non-linear step, and for citer everything
// after it. Sums are in float64.
func (c *Checkpoint) Fold() *Net {
	n := &Net{Name: c.Name, Sidecar: c.Sidecar}
	switch c.Kind {
	case R2R:
		c.foldR2R(n)
	case CITER:
		c.foldCITER(n)
	case CoLLM:
		n.Out = c.vector("defer.weight")
	}
	return n
}

// foldR2R: Front = W_i·[W_c's parts for hidden and token, W_c's part for logits · W_l].
func (c *Checkpoint) foldR2R(n *Net) {
	h, d, k := c.HiddenSize, c.shape.Width, c.LogitsSize
	wi, wc, wl := c.vector("backbone.input_projection.weight"), c.vector("combined_projection.weight"), c.vector("logits_projection.weight")
	bi, bc, bl := c.vector("backbone.input_projection.bias"), c.vector("combined_projection.bias"), c.vector("logits_projection.bias")
	var hidden, token Norm
	if c.NormalizeInput {
		hidden, token = c.norm("layer_norm_hidden_states"), c.norm("layer_norm_token")
	}
	cols := 2*h + k
	n.Front = Matrix{Rows: d, Cols: cols, F32: make([]float32, d*cols)}
	n.FrontBias = make([]float32, d)
	groups := make([]struct{}, (d+foldRows-1)/foldRows)
	iter.Iterator[struct{}]{}.ForEachIdx(groups, func(g int, _ *struct{}) {
		first := g * foldRows
		rows := min(foldRows, d-first)
		// joined are rows of W_i·W_c [3H].
		var joined [foldRows][]float64
		for r := range joined {
			joined[r] = make([]float64, 3*h)
		}
		var w [foldRows]float64
		for j := range d {
			for r := range rows {
				w[r] = float64(wi[(first+r)*d+j])
			}
			addRows(&joined, wc[j*3*h:(j+1)*3*h], &w)
		}
		for r := range rows {
			i := first + r
			sum, logits := float64(bi[i]), make([]float64, k)
			for j, x := range wi[i*d : (i+1)*d] {
				sum += float64(x) * float64(bc[j])
			}
			for j, x := range joined[r][2*h:] {
				addRow(logits, wl[j*k:(j+1)*k], x)
				sum += x * float64(bl[j])
			}
			sum += scaleBy(joined[r][:h], hidden) + scaleBy(joined[r][h:2*h], token)
			row := n.Front.F32[i*cols : (i+1)*cols]
			for j, v := range joined[r][:2*h] {
				row[j] = float32(v)
			}
			for j, v := range logits {
				row[2*h+j] = float32(v)
			}
			n.FrontBias[i] = float32(sum)
		}
	})
	for i := range c.shape.Blocks {
		p := fmt.Sprintf("backbone.blocks.%d.", i)
		n.Blocks = append(n.Blocks, Block{
			Norm: c.norm(p + "layer_norm"), Up: c.matrix(p + "mlp.0.weight"), UpBias: c.vector(p + "mlp.0.bias"),
			Down: c.matrix(p + "mlp.3.weight"), DownBias: c.vector(p + "mlp.3.bias"),
		})
	}
	n.OutNorm = c.norm("backbone.output_layer.0")
	n.Out, n.OutBias = c.vector("backbone.output_layer.1.weight"), c.vector("backbone.output_layer.1.bias")[0]
}

// foldRows is the number of rows of a product that are summed at a time: the other
// matrix is read once for all of them.
const foldRows = 4

// addRows adds w[r]·row to sums[r].
func addRows(sums *[foldRows][]float64, row []float32, w *[foldRows]float64) {
	a, b, c, d := sums[0][:len(row)], sums[1][:len(row)], sums[2][:len(row)], sums[3][:len(row)]
	for i, v := range row {
		x := float64(v)
		a[i] += w[0] * x
		b[i] += w[1] * x
		c[i] += w[2] * x
		d[i] += w[3] * x
	}
}

// addRow adds w·row to sum.
func addRow(sum []float64, row []float32, w float64) {
	row = row[:len(sum)]
	for i := range sum {
		sum[i] += w * float64(row[i])
	}
}

// scaleBy brings a norm's gain into a row of weights and returns what its bias adds. A
// norm that is not there changes nothing.
func scaleBy(row []float64, n Norm) float64 {
	if n.Gain == nil {
		return 0
	}
	sum := 0.0
	for i := range row {
		sum += row[i] * float64(n.Bias[i])
		row[i] *= float64(n.Gain[i])
	}
	return sum
}

// foldCITER brings the batch norm into the first layer, and the two last layers into
// one row: there is nothing between them.
func (c *Checkpoint) foldCITER(n *Net) {
	h, width := c.HiddenSize, c.shape.Width
	norm, mean, variance := c.norm("mlp.1"), c.vector("mlp.1.running_mean"), c.vector("mlp.1.running_var")
	n.Front = Matrix{Rows: width, Cols: h, F32: c.vector("mlp.0.weight")}
	n.FrontBias = c.vector("mlp.0.bias")
	for i := range width {
		scale := float64(norm.Gain[i]) / math.Sqrt(float64(variance[i])+NormEps)
		for j := range h {
			n.Front.F32[i*h+j] = float32(float64(n.Front.F32[i*h+j]) * scale)
		}
		n.FrontBias[i] = float32((float64(n.FrontBias[i])-float64(mean[i]))*scale + float64(norm.Bias[i]))
	}
	last, second, bias := c.vector("linear.weight"), c.vector("mlp.4.weight"), c.vector("mlp.4.bias")
	out, sum := make([]float64, width), float64(c.vector("linear.bias")[0])
	for j, w := range last {
		addRow(out, second[j*width:(j+1)*width], float64(w))
		sum += float64(w) * float64(bias[j])
	}
	n.Out, n.OutBias = make([]float32, width), float32(sum)
	for i, v := range out {
		n.Out[i] = float32(v)
	}
}

func (c *Checkpoint) norm(name string) Norm {
	return Norm{Gain: c.vector(name + ".weight"), Bias: c.vector(name + ".bias")}
}

// matrix keeps bfloat16 as it is.
func (c *Checkpoint) matrix(name string) Matrix {
	t := c.tensors[name]
	m := Matrix{Rows: t.Shape[0], Cols: t.Shape[1]}
	if t.DType != model.BF16 {
		m.F32 = c.vector(name)
		return m
	}
	m.BF16 = make([]uint16, 0, t.Elems())
	for b := t.Bytes; len(b) > 0; b = b[2:] {
		m.BF16 = append(m.BF16, binary.LittleEndian.Uint16(b))
	}
	return m
}
