package router

import (
	"fmt"
	"math"
)

// Embedding is the input embedding of the model that is judged.
type Embedding interface {
	// Row copies the vector [H] of a token to dst.
	Row(dst []float32, id int)
}

// Products multiplies matrices. An executor gives its own, so that a net computes as
// fast as a model.
type Products interface {
	// Matmul computes y [n, w.Rows] = x [n, w.Cols] · wᵀ. A row of y must not depend on
	// the other rows of x.
	Matmul(y, x []float32, w *Matrix, n int)
}

// Row is what a net looks at: one sampled position.
type Row struct {
	// Hidden is the vector [H] handed to the output head, after the final norm.
	Hidden []float32
	// Top are the largest raw logits over the real vocabulary, descending, LogitsSize of
	// them. Nets without logits ignore it.
	Top []float32
	// Token is the candidate: the id just sampled.
	Token int32
}

// Scorer computes scores. It has memory of its own: one goroutine at a time.
type Scorer struct {
	net   *Net
	embed Embedding
	mul   Products
	rows  int
	in    []float32 // [rows, Front.Cols]
	v     []float32 // [rows, D]
	t     []float32 // [rows, D]
	inner []float32 // [rows, F]
}

// NewScorer makes a scorer that passes so many rows through the net at a time. embed
// may be nil for nets that do not look at the candidate, mul for plain loops.
func (n *Net) NewScorer(embed Embedding, mul Products, rows int) *Scorer {
	if mul == nil {
		mul = Plain{}
	}
	s := &Scorer{net: n, embed: embed, mul: mul, rows: rows, v: make([]float32, rows*n.Width())}
	if n.Kind == R2R {
		s.t = make([]float32, rows*n.Width())
		s.inner = make([]float32, rows*n.Inner())
	}
	s.in = make([]float32, rows*n.Front.Cols)
	return s
}

// Net is what the scorer computes.
func (s *Scorer) Net() *Net { return s.net }

// Bytes is the scorer's memory.
func (s *Scorer) Bytes() int64 { return 4 * int64(len(s.in)+len(s.v)+len(s.t)+len(s.inner)) }

// Score fills dst with the scores of rows. Rows must have vectors of the net's sizes
// and candidates that the embedding has.
func (s *Scorer) Score(dst []float32, rows []Row) {
	if len(dst) != len(rows) {
		panic(fmt.Sprintf("router: %d scores for %d rows", len(dst), len(rows)))
	}
	for at := 0; at < len(rows); at += s.rows {
		end := min(at+s.rows, len(rows))
		s.score(dst[at:end], rows[at:end])
	}
}

// score is Score for as many rows as there is memory for.
func (s *Scorer) score(dst []float32, rows []Row) {
	n := s.net
	switch n.Kind {
	case CoLLM:
		for i := range rows {
			dst[i] = n.sigmoid(rows[i].Hidden)
		}
		return
	case CITER:
		for i := range rows {
			copy(s.in[i*n.HiddenSize:(i+1)*n.HiddenSize], rows[i].Hidden[:n.HiddenSize])
		}
	case R2R:
		for i := range rows {
			s.gather(s.in[i*n.Front.Cols:(i+1)*n.Front.Cols], &rows[i])
		}
	}
	d := n.Width()
	s.mul.Matmul(s.v, s.in, &n.Front, len(rows))
	for i := range rows {
		v := s.v[i*d : (i+1)*d]
		for j := range v {
			v[j] += n.FrontBias[j]
			if n.Kind == CITER {
				v[j] = max(v[j], 0)
			}
		}
	}
	for i := range n.Blocks {
		s.block(&n.Blocks[i], len(rows))
	}
	for i := range rows {
		v := s.v[i*d : (i+1)*d]
		if n.Kind == R2R {
			n.OutNorm.apply(v, v)
		}
		dst[i] = n.sigmoid(v)
	}
}

// gather makes the input of r2r's front.
func (s *Scorer) gather(in []float32, r *Row) {
	n := s.net
	h := n.HiddenSize
	copy(in[:h], r.Hidden[:h])
	s.embed.Row(in[h:2*h], int(r.Token))
	copy(in[2*h:], r.Top[:n.LogitsSize])
	if n.NormalizeInput {
		standard(in[:h], in[:h])
		standard(in[h:2*h], in[h:2*h])
		softmax(in[2*h:])
	}
}

// block runs one residual block over the vectors of n rows.
func (s *Scorer) block(b *Block, n int) {
	d, f := b.Up.Cols, b.Up.Rows
	for i := range n {
		b.Norm.apply(s.t[i*d:(i+1)*d], s.v[i*d:(i+1)*d])
	}
	s.mul.Matmul(s.inner, s.t, &b.Up, n)
	for i := range n {
		row := s.inner[i*f : (i+1)*f]
		for j, bias := range b.UpBias {
			row[j] = gelu(row[j] + bias)
		}
	}
	s.mul.Matmul(s.t, s.inner, &b.Down, n)
	for i := range n {
		v, t := s.v[i*d:(i+1)*d], s.t[i*d:(i+1)*d]
		for j, bias := range b.DownBias {
			v[j] += t[j] + bias
		}
	}
}

// sigmoid is the last linear row and the sigmoid.
func (n *Net) sigmoid(v []float32) float32 {
	sum := float64(n.OutBias)
	for i, w := range n.Out {
		sum += float64(w) * float64(v[i])
	}
	return float32(1 / (1 + math.Exp(-sum)))
}

// apply writes the norm of v to dst, which may be v.
func (n *Norm) apply(dst, v []float32) {
	standard(dst, v)
	for i, g := range n.Gain {
		dst[i] = dst[i]*g + n.Bias[i]
	}
}

// standard brings v to mean 0 and variance 1.
func standard(dst, v []float32) {
	var mean, variance float64
	for _, x := range v {
		mean += float64(x)
	}
	mean /= float64(len(v))
	for _, x := range v {
		d := float64(x) - mean
		variance += d * d
	}
	scale := 1 / math.Sqrt(variance/float64(len(v))+NormEps)
	for i, x := range v {
		dst[i] = float32((float64(x) - mean) * scale)
	}
}

// softmax replaces logits, the largest of them first, by their probabilities.
func softmax(z []float32) {
	sum, largest := 0.0, float64(z[0])
	for _, x := range z {
		sum += math.Exp(float64(x) - largest)
	}
	for i, x := range z {
		z[i] = float32(math.Exp(float64(x)-largest) / sum)
	}
}

// gelu is the exact one, by the error function.
func gelu(x float32) float32 {
	return float32(0.5 * float64(x) * (1 + math.Erf(float64(x)/math.Sqrt2)))
}

// Plain are the plain loops.
type Plain struct{}

// Matmul implements Products.
func (Plain) Matmul(y, x []float32, w *Matrix, n int) {
	for t := range n {
		in := x[t*w.Cols : (t+1)*w.Cols]
		for r := range w.Rows {
			y[t*w.Rows+r] = w.dot(r, in)
		}
	}
}

// dot is row r times x, in eight partial sums.
func (m *Matrix) dot(r int, x []float32) float32 {
	var a [8]float32
	from, to := r*m.Cols, (r+1)*m.Cols
	if m.BF16 == nil {
		row := m.F32[from:to]
		for len(row) >= 8 {
			add8(&a, (*[8]float32)(row), (*[8]float32)(x))
			row, x = row[8:], x[8:]
		}
		for i, w := range row {
			a[i] += float32(w * x[i])
		}
		return sum8(&a)
	}
	row := m.BF16[from:to]
	for ; len(row) >= 8; row, x = row[8:], x[8:] {
		var w [8]float32
		for i := range w {
			w[i] = math.Float32frombits(uint32(row[i]) << 16)
		}
		add8(&a, &w, (*[8]float32)(x))
	}
	for i, w := range row {
		a[i] += float32(math.Float32frombits(uint32(w)<<16) * x[i])
	}
	return sum8(&a)
}

// add8 adds eight products. The conversions forbid fused multiply-add, which the
// compiler could use in one place and not in another.
func add8(a, w, x *[8]float32) {
	a[0] += float32(w[0] * x[0])
	a[1] += float32(w[1] * x[1])
	a[2] += float32(w[2] * x[2])
	a[3] += float32(w[3] * x[3])
	a[4] += float32(w[4] * x[4])
	a[5] += float32(w[5] * x[5])
	a[6] += float32(w[6] * x[6])
	a[7] += float32(w[7] * x[7])
}

func sum8(a *[8]float32) float32 {
	return ((a[0] + a[1]) + (a[2] + a[3])) + ((a[4] + a[5]) + (a[6] + a[7]))
}
