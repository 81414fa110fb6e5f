package kernels_test

import (
	"math"
	"slices"
	"testing"

	"github.com/tokenrouter/tokenrouter/cuda/cudatest"
	"github.com/tokenrouter/tokenrouter/cuda/kernels"
	"github.com/tokenrouter/tokenrouter/cuda/ref"
)

func TestEmbed(t *testing.T) {
	for _, d := range withBig(t, tiny, wide) {
		r := newRig(t, d)
		table := cudatest.BF16s(1, 7*d.Hidden, 1)
		ids := []int32{6, 0, 3, 3}
		tablePtr, idsPtr := cudatest.Put(t, r.Device, table), cudatest.Put(t, r.Device, ids)
		for _, n := range []int{0, 1, len(ids)} {
			x := bothOrders(r, func() []float32 {
				x := cudatest.Make[float32](t, r.Device, len(ids)*d.Hidden)
				r.ok(r.set.Embed(r.Stream, &kernels.EmbedParams{Head: r.head(kernels.StepHead{Tokens: int32(n)}), Table: tablePtr, IDs: idsPtr, X: x}, len(ids)))
				return cudatest.Get[float32](t, r.Device, x, len(ids)*d.Hidden)
			})
			for i, v := range x {
				tok, j := i/d.Hidden, i%d.Hidden
				if tok >= n {
					if !math.IsNaN(float64(v)) {
						t.Fatalf("padding token %d was written", tok)
					}
				} else if want := ref.Widen(table[int(ids[tok])*d.Hidden+j]); float64(v) != want {
					t.Fatalf("token %d element %d is %v, want %v", tok, j, v, want)
				}
			}
		}
	}
}

func TestRmsnorm(t *testing.T) {
	for _, d := range withBig(t, tiny, odd, wide, five) {
		r := newRig(t, d)
		const rows = 3
		x, delta := cudatest.Normals(2, rows*d.Hidden), cudatest.Normals(3, rows*d.Hidden)
		weight := cudatest.BF16s(4, d.Hidden, 1)
		samples := []kernels.Sample{{Token: 2}, {Token: 0}}
		w := cudatest.Put(t, r.Device, weight)
		for name, c := range map[string]struct{ delta, gather bool }{
			"plain": {}, "add": {delta: true}, "gather": {gather: true}, "gather and add": {true, true},
		} {
			n := rows
			if c.gather {
				n = len(samples)
			}
			padded := slices.Concat(x, make([]float32, 2*d.Hidden)) // a row for each block
			p := kernels.RmsnormParams{Weight: w, X: cudatest.Put(t, r.Device, padded), Eps: 1e-6}
			p.Count = cudatest.Put(t, r.Device, []int32{int32(n)})
			p.Out, p.Out32 = cudatest.Make[uint16](t, r.Device, n*d.Hidden), cudatest.Make[float32](t, r.Device, n*d.Hidden)
			if c.delta {
				p.Delta = cudatest.Put(t, r.Device, delta)
			}
			if c.gather {
				p.Samples = cudatest.Put(t, r.Device, samples)
			}
			r.ok(r.set.Rmsnorm(r.Stream, &p, n+2))
			got := cudatest.Get[uint16](t, r.Device, p.Out, n*d.Hidden)
			got32 := cudatest.Get[float32](t, r.Device, p.Out32, n*d.Hidden)
			after := cudatest.Get[float32](t, r.Device, p.X, rows*d.Hidden)
			for i := range n {
				row := i
				if c.gather {
					row = int(samples[i].Token)
				}
				in := cudatest.Floats(x[row*d.Hidden : (row+1)*d.Hidden])
				for j := range in {
					if c.delta {
						in[j] = float64(float32(in[j]) + delta[row*d.Hidden+j])
					}
					wantAfter := in[j]
					if c.gather {
						wantAfter = float64(x[row*d.Hidden+j])
					}
					if float64(after[row*d.Hidden+j]) != wantAfter {
						t.Fatalf("%s: residual %d of row %d is %v, want %v", name, j, row, after[row*d.Hidden+j], wantAfter)
					}
				}
				want := ref.Rmsnorm(in, ref.WidenAll(weight), 1e-6)
				if msg := cudatest.Close(cudatest.Floats(got32[i*d.Hidden:(i+1)*d.Hidden]), want, 1e-6); msg != "" {
					t.Fatalf("%s, C=%d, row %d, float32: %s", name, d.Hidden, i, msg)
				}
				if msg := cudatest.Close(ref.WidenAll(got[i*d.Hidden:(i+1)*d.Hidden]), want, 3e-3); msg != "" {
					t.Fatalf("%s, C=%d, row %d: %s", name, d.Hidden, i, msg)
				}
			}
		}
	}
}

func TestSilumul(t *testing.T) {
	for _, d := range withBig(t, tiny, odd, wide) {
		r := newRig(t, d)
		const rows = 3
		gu := cudatest.Normals(5, rows*2*d.FFN)
		gu[0], gu[1] = 200, -200 // exp overflows or vanishes
		out := cudatest.Make[uint16](t, r.Device, rows*d.FFN)
		p := kernels.SilumulParams{Head: r.head(kernels.StepHead{Tokens: rows - 1}), GU: cudatest.Put(t, r.Device, gu), Out: out}
		r.ok(r.set.Silumul(r.Stream, &p, rows))
		got := cudatest.Get[uint16](t, r.Device, out, rows*d.FFN)
		for i := range rows - 1 {
			in := cudatest.Floats(gu[i*2*d.FFN : (i+1)*2*d.FFN])
			if msg := cudatest.Close(ref.WidenAll(got[i*d.FFN:(i+1)*d.FFN]), ref.Silumul(in[:d.FFN], in[d.FFN:]), 3e-3); msg != "" {
				t.Fatalf("F=%d row %d: %s", d.FFN, i, msg)
			}
		}
		if got[(rows-1)*d.FFN] != 0xffff {
			t.Error("a padding token was written")
		}
	}
}

func TestQkvpost(t *testing.T) {
	for _, c := range []struct {
		d          kernels.Dims
		norm, bias bool
	}{{tiny, true, false}, {odd, true, true}, {wide, true, false}, {five, false, true}} {
		d := c.d
		r := newRig(t, d)
		const tokens, pages, maxPos, theta = 5, 4, 300, 1e6
		inverse := make([]float64, d.HeadDim/2)
		for i := range inverse {
			inverse[i] = math.Pow(theta, -float64(i)/float64(len(inverse)))
		}
		heads := d.Heads + 2*d.KVHeads
		qkv := cudatest.Normals(6, tokens*heads*d.HeadDim)
		bias := cudatest.BF16s(7, heads*d.HeadDim, 0.5)
		qn, kn := cudatest.BF16s(8, d.HeadDim, 1), cudatest.BF16s(9, d.HeadDim, 1)
		pos := []int32{0, 299, 7, 8, 100}
		slots := []int32{0, int32(3*d.PageSize) + 7, int32(d.PageSize) - 1, -1, int32(2 * d.PageSize)}
		cacheLen := pages * 2 * d.KVHeads * d.PageSize * d.HeadDim
		p := kernels.QkvpostParams{
			Head: r.head(kernels.StepHead{Tokens: tokens}), Pos: cudatest.Put(t, r.Device, pos),
			Slots: cudatest.Put(t, r.Device, slots), Q: cudatest.Make[uint16](t, r.Device, tokens*d.Heads*d.HeadDim),
			Cache: cudatest.Make[uint16](t, r.Device, cacheLen),
			Heads: kernels.HeadsParams{QKV: cudatest.Put(t, r.Device, qkv), Rope: cudatest.Put(t, r.Device, kernels.RopeTable(maxPos, inverse)), Eps: 1e-6},
		}
		if c.bias {
			p.Heads.Bias = cudatest.Put(t, r.Device, bias)
		}
		if c.norm {
			p.Heads.QNorm, p.Heads.KNorm = cudatest.Put(t, r.Device, qn), cudatest.Put(t, r.Device, kn)
		}
		r.ok(r.set.Qkvpost(r.Stream, &p, tokens+1))
		q := cudatest.Get[uint16](t, r.Device, p.Q, tokens*d.Heads*d.HeadDim)
		cache := cudatest.Get[uint16](t, r.Device, p.Cache, cacheLen)
		written := 0
		for tok := range tokens {
			for h := range heads {
				in := cudatest.Floats(qkv[(tok*heads+h)*d.HeadDim:][:d.HeadDim])
				for j := range in {
					if c.bias {
						in[j] += ref.Widen(bias[h*d.HeadDim+j])
					}
				}
				if h < d.Heads+d.KVHeads {
					norm := kn
					if h < d.Heads {
						norm = qn
					}
					if c.norm {
						in = ref.Rmsnorm(in, ref.WidenAll(norm), 1e-6)
					}
					ref.Rope(in, int(pos[tok]), theta)
				}
				var got []uint16
				switch {
				case h < d.Heads:
					got = q[(tok*d.Heads+h)*d.HeadDim:][:d.HeadDim]
				case slots[tok] < 0:
					continue
				default:
					page, off := int(slots[tok])/d.PageSize, int(slots[tok])%d.PageSize
					got = cache[((page*2*d.KVHeads+h-d.Heads)*d.PageSize+off)*d.HeadDim:][:d.HeadDim]
					written += d.HeadDim
				}
				if msg := cudatest.Close(ref.WidenAll(got), in, 3e-3); msg != "" {
					t.Fatalf("D=%d token %d head %d: %s", d.HeadDim, tok, h, msg)
				}
			}
		}
		for _, v := range cache {
			if v == 0xffff {
				written++
			}
		}
		if written != cacheLen {
			t.Errorf("%d elements of the cache outside the slots were written", cacheLen-written)
		}
	}
}
