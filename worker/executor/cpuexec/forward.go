package cpuexec

import (
	"math"

	"github.com/tokenrouter/tokenrouter/worker/model"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// wideWork is the number of multiply-adds from which the helpers are woken:
// about 50 us for one core, several times what waking costs.
const wideWork = 1 << 20

// token is one position to run.
type token struct {
	id    int32
	pos   int32
	table []int32 // the slot's page table
}

// forward runs the layers over the tokens of one step. It owns the activations.
type forward struct {
	cfg     *model.Config
	w       *weights
	k       kernels
	team    *team
	kv      []float32 // [N, L, 2, Hk, P, D]
	page    int       // P
	invFreq []float32 // [D/2]

	tokens   []token
	cos, sin []float32   // [T, D/2]
	x        []float32   // [T, C] residual stream
	h        []float32   // [T, C] input of a matrix
	qkv      []float32   // [T, (Hq+2Hk)·D]
	attn     []float32   // [T, Hq·D]
	gu       []float32   // [T, 2F]
	packed   []float32   // [T, widest input], for matmul8b
	scores   [][]float32 // by team member: [MaxContext]
	sum      [1]float32  // of squares, in norm
	mm       matmulJob
	at       attentionJob
	// trace sees the residual stream [T, C] before layer 0 and after each layer.
	// Nil outside tests.
	trace func(layer int, x []float32)
}

func newForward(c *model.Config, w *weights, k kernels, t *team, maxTokens, maxContext, page int) *forward {
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	f := &forward{
		cfg: c, w: w, k: k, team: t, page: page,
		invFreq: make([]float32, c.HeadDim/2),
		tokens:  make([]token, 0, maxTokens),
		cos:     make([]float32, maxTokens*c.HeadDim/2),
		sin:     make([]float32, maxTokens*c.HeadDim/2),
		x:       make([]float32, maxTokens*c.Hidden),
		h:       make([]float32, maxTokens*c.Hidden),
		qkv:     make([]float32, maxTokens*(q+2*kv)),
		attn:    make([]float32, maxTokens*q),
		gu:      make([]float32, maxTokens*2*c.FFN),
		scores:  make([][]float32, t.helpers+1),
	}
	if k.matmul8b != nil {
		f.packed = make([]float32, max(maxTokens, headBlock)*max(c.Hidden, q, c.FFN))
	}
	for i := range f.scores {
		f.scores[i] = make([]float32, maxContext)
	}
	// The frequencies are rounded to float32 before the angle is taken, and so is
	// the angle: this is how the reference implementation computes them.
	for i, freq := range c.InvFreq() {
		f.invFreq[i] = float32(freq)
	}
	f.mm.f, f.at.f = f, f
	return f
}

// bytes returns the memory of the activations.
func (f *forward) bytes() int64 {
	n := len(f.cos) + len(f.sin) + len(f.x) + len(f.h) + len(f.qkv) + len(f.attn) + len(f.gu) + len(f.packed)
	for _, s := range f.scores {
		n += len(s)
	}
	return int64(n) * 4
}

// gather lists the tokens of a checked batch. table gives a slot's page table.
func (f *forward) gather(b *step.Batch, table func(step.Slot) []int32) {
	f.tokens = f.tokens[:0]
	for i := range b.Rows {
		r := &b.Rows[i]
		pages := table(r.Slot)
		for j, id := range r.Tokens {
			f.tokens = append(f.tokens, token{id, r.Start + int32(j), pages})
		}
	}
}

// run computes all layers. Afterwards x has the residual stream of each token.
func (f *forward) run() {
	c, n := f.cfg, len(f.tokens)
	half := c.HeadDim / 2
	for t, tok := range f.tokens {
		f.w.embed.row(f.x[t*c.Hidden:(t+1)*c.Hidden], int(tok.id))
		for i, freq := range f.invFreq {
			sin, cos := math.Sincos(float64(float32(tok.pos) * freq))
			f.sin[t*half+i], f.cos[t*half+i] = float32(sin), float32(cos)
		}
	}
	f.see(0)
	for l := range f.w.layers {
		f.layer(l, n)
		f.see(l + 1)
	}
}

func (f *forward) see(layer int) {
	if f.trace != nil {
		f.trace(layer, f.x[:len(f.tokens)*f.cfg.Hidden])
	}
}

func (f *forward) layer(l, n int) {
	c, w := f.cfg, &f.w.layers[l]
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	f.normRows(f.h, f.x, w.attnNorm, n)
	f.matmul(f.qkv, f.h, &w.qkv, n)
	for t := range n {
		f.headsAndCache(l, t, f.qkv[t*(q+2*kv):(t+1)*(q+2*kv)])
	}
	f.attention(l, n)
	f.matmul(f.h, f.attn, &w.out, n)
	addTo(f.x, f.h, n*c.Hidden)

	f.normRows(f.h, f.x, w.ffnNorm, n)
	f.matmul(f.gu, f.h, &w.gateUp, n)
	// The activation of token t is packed to [T, F] at the front: row t of the
	// result ends before row t+1 of the input begins.
	for t := range n {
		row := f.gu[t*2*c.FFN : (t+1)*2*c.FFN]
		f.k.siluMul(row[:c.FFN], row[c.FFN:])
		copy(f.gu[t*c.FFN:(t+1)*c.FFN], row[:c.FFN])
	}
	f.matmul(f.h, f.gu, &w.down, n)
	addTo(f.x, f.h, n*c.Hidden)
}

func addTo(x, y []float32, n int) {
	x, y = x[:n], y[:n]
	for i := range x {
		x[i] += y[i]
	}
}

// normRows is the RMS norm of n rows: y = x / sqrt(mean(x²) + eps) · w.
func (f *forward) normRows(y, x, w []float32, n int) {
	c := len(w)
	for t := range n {
		f.norm(y[t*c:(t+1)*c], x[t*c:(t+1)*c], w)
	}
}

func (f *forward) norm(y, x, w []float32) {
	f.k.matvec(f.sum[:], x, x, 1, len(x))
	scale := float32(1 / math.Sqrt(float64(f.sum[0])/float64(len(x))+f.cfg.NormEps))
	w, y = w[:len(x)], y[:len(x)]
	for i, v := range x {
		y[i] = v * scale * w[i]
	}
}

// headsAndCache adds the biases to the heads of token t, norms and rotates queries
// and keys, scales the queries for the softmax, and stores key and value in the
// token's page. Biases and norms are there if the family has them.
func (f *forward) headsAndCache(l, t int, row []float32) {
	c, w := f.cfg, &f.w.layers[l]
	d, half := c.HeadDim, c.HeadDim/2
	cos, sin := f.cos[t*half:(t+1)*half], f.sin[t*half:(t+1)*half]
	scale := float32(1 / math.Sqrt(float64(d)))
	if w.qkvBias != nil {
		addTo(row, w.qkvBias, len(row))
	}
	for h := range c.Heads {
		v := row[h*d : (h+1)*d]
		if w.qNorm != nil {
			f.norm(v, v, w.qNorm)
		}
		rotate(v, cos, sin)
		for i := range v {
			v[i] *= scale
		}
	}
	tok := &f.tokens[t]
	page := int(tok.table[int(tok.pos)/f.page])
	in := int(tok.pos) % f.page * d
	for h := range c.KVHeads {
		k := row[(c.Heads+h)*d : (c.Heads+h+1)*d]
		if w.kNorm != nil {
			f.norm(k, k, w.kNorm)
		}
		rotate(k, cos, sin)
		copy(f.tile(page, l, 0, h)[in:in+d], k)
		copy(f.tile(page, l, 1, h)[in:in+d], row[(c.Heads+c.KVHeads+h)*d:])
	}
}

// rotate turns the pairs (i, i+D/2) by the token's angles.
func rotate(v, cos, sin []float32) {
	half := len(v) / 2
	a, b := v[:half], v[half:]
	cos, sin, b = cos[:half], sin[:half], b[:half]
	for i, x := range a {
		y := b[i]
		a[i] = float32(x*cos[i]) - float32(y*sin[i])
		b[i] = float32(y*cos[i]) + float32(x*sin[i])
	}
}

// tile returns the keys (which 0) or values (which 1) [P, D] of one head in a page.
func (f *forward) tile(page, l, which, head int) []float32 {
	c := f.cfg
	size := f.page * c.HeadDim
	at := (((page*c.Layers+l)*2+which)*c.KVHeads + head) * size
	return f.kv[at : at+size]
}

// sampled writes the final norm of token t's residual stream to hidden [C].
func (f *forward) sampled(hidden []float32, t int) {
	c := f.cfg.Hidden
	f.norm(hidden, f.x[t*c:(t+1)*c], f.w.norm)
}
