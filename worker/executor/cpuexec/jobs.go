package cpuexec

// rowBlock is the number of output rows in a unit of matmul: 32 rows of weights
// stay in the first-level cache while the tokens pass over them.
const rowBlock = 32

// matmulJob is y[t] = W·x[t], cut by rows of W.
type matmulJob struct {
	f    *forward
	y, x []float32
	w    *matrix
	n    int // tokens
	// packed is how many tokens, from the first, are in f.packed too.
	packed int
}

// matmul computes y [n, rows] = x [n, cols] · Wᵀ.
func (f *forward) matmul(y, x []float32, w *matrix, n int) {
	f.mm.y, f.mm.x, f.mm.w, f.mm.n, f.mm.packed = y, x, w, n, 0
	if f.k.matmul8b != nil && w.bf16 != nil && w.cols%8 == 0 {
		f.mm.packed = n &^ 7
		pack8(f.packed, x, f.mm.packed, w.cols)
	}
	f.team.run(&f.mm, (w.rows+rowBlock-1)/rowBlock, n*w.rows*w.cols >= wideWork)
}

func (j *matmulJob) unit(_, u int) {
	first := u * rowBlock
	rows, k := j.w.rows, j.w.cols
	n := min(rowBlock, rows-first)
	w := j.w.band(first, n)
	fours := n &^ 3
	for t := 0; t < j.packed; t += 8 {
		j.f.k.matmul8b(j.y[t*rows+first:], j.f.packed[t*k:(t+8)*k], w.bf16, fours, k, rows)
	}
	if fours < n && j.packed > 0 {
		rest := w.band(fours, n-fours)
		j.tokens(0, j.packed, first+fours, &rest)
	}
	j.tokens(j.packed, j.n, first, &w)
}

// tokens computes the tokens [t, end) for rows of W that begin at first.
func (j *matmulJob) tokens(t, end, first int, w *matrix) {
	rows, n, k := j.w.rows, w.rows, w.cols
	for ; t+4 <= end; t += 4 {
		y, x := j.y[t*rows+first:], j.x[t*k:(t+4)*k]
		if w.bf16 != nil {
			j.f.k.matmul4b(y, x, w.bf16, n, k, rows)
		} else {
			j.f.k.matmul4(y, x, w.f32, n, k, rows)
		}
	}
	for ; t < end; t++ {
		y, x := j.y[t*rows+first:], j.x[t*k:(t+1)*k]
		if w.bf16 != nil {
			j.f.k.matvecb(y, x, w.bf16, n, k)
		} else {
			j.f.k.matvec(y, x, w.f32, n, k)
		}
	}
}

// attentionJob is one layer's attention, cut by token and key head.
type attentionJob struct {
	f *forward
	l int
}

func (f *forward) attention(l, n int) {
	f.at.l = l
	work := 0
	for i := range f.tokens {
		work += 2 * (int(f.tokens[i].pos) + 1) * f.cfg.Heads * f.cfg.HeadDim
	}
	f.team.run(&f.at, n*f.cfg.KVHeads, work >= wideWork)
}

// unit computes the query heads that share one key head, for one token, over all
// positions up to its own. Positions are taken in order, a page at a time; each
// score is a product of its own and the weighted sum goes on from page to page,
// so the size of a page leaves no trace in the result.
func (j *attentionJob) unit(member, u int) {
	f, c := j.f, j.f.cfg
	t, kvHead := u/c.KVHeads, u%c.KVHeads
	tok := &f.tokens[t]
	d, group := c.HeadDim, c.Heads/c.KVHeads
	width := (c.Heads + 2*c.KVHeads) * d
	length := int(tok.pos) + 1
	s := f.scores[member][:length]
	for g := range group {
		head := kvHead*group + g
		q := f.qkv[t*width+head*d : t*width+(head+1)*d]
		for at := 0; at < length; at += f.page {
			n := min(f.page, length-at)
			keys := f.tile(int(tok.table[at/f.page]), j.l, 0, kvHead)
			f.k.matvec(s[at:at+n], q, keys, n, d)
		}
		sum := f.k.expSum(s, maxOf(s))
		out := f.attn[(t*c.Heads+head)*d : (t*c.Heads+head+1)*d]
		clear(out)
		for at := 0; at < length; at += f.page {
			n := min(f.page, length-at)
			values := f.tile(int(tok.table[at/f.page]), j.l, 1, kvHead)
			f.k.weightedSum(out, values, s[at:at+n], n, d)
		}
		scale := 1 / sum
		for i := range out {
			out[i] *= scale
		}
	}
}

func maxOf(s []float32) float32 {
	m := s[0]
	for _, v := range s {
		if v > m {
			m = v
		}
	}
	return m
}
