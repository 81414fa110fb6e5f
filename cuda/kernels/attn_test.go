package kernels_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tokenrouter/tokenrouter/cuda/cudatest"
	"github.com/tokenrouter/tokenrouter/cuda/kernels"
	"github.com/tokenrouter/tokenrouter/cuda/ref"
)

// attnRow is one sequence of an attention test: n tokens whose first is at pos.
type attnRow struct{ pos, n int }

// attnCase holds a cache with rows of random content on shuffled pages; everything else in it is NaN.
type attnCase struct {
	d        kernels.Dims
	rows     []attnRow
	q        []uint16
	cache    []uint16
	table    []int32
	maxPages int
	keys     [][]float64 // for each row, [positions][Hk][D] flat
	values   [][]float64
}

func newAttnCase(d kernels.Dims, seed uint64, rows []attnRow) *attnCase {
	c := &attnCase{d: d, rows: rows}
	tokens, pages := 0, 0
	for _, r := range rows {
		tokens += r.n
		n := (r.pos + r.n + d.PageSize - 1) / d.PageSize
		pages += n
		c.maxPages = max(c.maxPages, n)
	}
	c.q = cudatest.BF16s(seed, tokens*d.Heads*d.HeadDim, 1)
	perHead := d.PageSize * d.HeadDim
	c.cache = make([]uint16, (pages+2)*2*d.KVHeads*perHead)
	for i := range c.cache {
		c.cache[i] = 0xffff
	}
	c.table = make([]int32, len(rows)*c.maxPages)
	for i := range c.table {
		c.table[i] = 1 << 30 // a wrong look-up must crash
	}
	order := rand.New(rand.NewPCG(seed, 2)).Perm(pages + 2)
	next := 0
	for i, r := range rows {
		n := r.pos + r.n
		k := cudatest.BF16s(seed+uint64(i)*2+100, n*d.KVHeads*d.HeadDim, 1)
		v := cudatest.BF16s(seed+uint64(i)*2+101, n*d.KVHeads*d.HeadDim, 1)
		c.keys, c.values = append(c.keys, ref.WidenAll(k)), append(c.values, ref.WidenAll(v))
		for p := range n {
			if p%d.PageSize == 0 {
				c.table[i*c.maxPages+p/d.PageSize] = int32(order[next])
				next++
			}
			page := int(c.table[i*c.maxPages+p/d.PageSize])
			for h := range d.KVHeads {
				at := (page*2*d.KVHeads+h)*perHead + p%d.PageSize*d.HeadDim
				copy(c.cache[at:], k[(p*d.KVHeads+h)*d.HeadDim:][:d.HeadDim])
				copy(c.cache[at+d.KVHeads*perHead:], v[(p*d.KVHeads+h)*d.HeadDim:][:d.HeadDim])
			}
		}
	}
	return c
}

// want is the reference output, [T][Hq][D].
func (c *attnCase) want() []float64 {
	var out []float64
	q, at := ref.WidenAll(c.q), 0
	for i, r := range c.rows {
		for p := r.pos; p < r.pos+r.n; p++ {
			for h := range c.d.Heads {
				kh := h / c.d.Group()
				keys, values := make([][]float64, p+1), make([][]float64, p+1)
				for j := range p + 1 {
					keys[j] = c.keys[i][(j*c.d.KVHeads+kh)*c.d.HeadDim:][:c.d.HeadDim]
					values[j] = c.values[i][(j*c.d.KVHeads+kh)*c.d.HeadDim:][:c.d.HeadDim]
				}
				out = append(out, ref.Attend(q[at:at+c.d.HeadDim], keys, values, 1/math.Sqrt(float64(c.d.HeadDim)))...)
				at += c.d.HeadDim
			}
		}
	}
	return out
}

// fewBlocks is fewer blocks than most cases have items, and more than some.
const fewBlocks = 3

// attnLaunch is a case on the device.
type attnLaunch struct {
	attn   kernels.AttnParams
	blocks int
}

// prepare plans the case with at most partials one-chunk items and uploads it.
func (c *attnCase) prepare(r *rig, partials int) *attnLaunch {
	r.tb.Helper()
	var plan kernels.AttnPlan
	plan.Reset(c.d, partials)
	token := 0
	for i, row := range c.rows {
		plan.Add(token, row.n, row.pos, i)
		token += row.n
	}
	rows := max(plan.Partials(), 1) * c.d.KVHeads * kernels.TileRows
	l := &attnLaunch{blocks: len(plan.Items)}
	l.attn = kernels.AttnParams{
		Head:  r.head(kernels.StepHead{Tokens: int32(token), Items: int32(len(plan.Items)), Combines: int32(len(plan.Combines))}),
		Items: cudatest.Put(r.tb, r.Device, append(plan.Items, make([]kernels.AttnItem, fewBlocks)...)), Q: cudatest.Put(r.tb, r.Device, c.q),
		Cache: cudatest.Put(r.tb, r.Device, c.cache), Table: cudatest.Put(r.tb, r.Device, c.table),
		Out:   cudatest.Make[uint16](r.tb, r.Device, len(c.q)),
		PartO: cudatest.Make[float32](r.tb, r.Device, rows*c.d.HeadDim), PartML: cudatest.Make[float32](r.tb, r.Device, rows*2),
		Combines: cudatest.Put(r.tb, r.Device, plan.Combines),
		Arrived:  cudatest.Put(r.tb, r.Device, make([]uint32, len(plan.Combines)*c.d.KVHeads)),
		MaxPages: int32(c.maxPages), Scale: kernels.AttnScale(c.d.HeadDim),
	}
	return l
}

func (l *attnLaunch) launch(r *rig) {
	r.tb.Helper()
	r.ok(r.set.Attn(r.Stream, &l.attn, l.blocks))
}

// run computes the case.
func (c *attnCase) run(r *rig, partials int) []uint16 {
	r.tb.Helper()
	l := c.prepare(r, partials)
	l.launch(r)
	return cudatest.Get[uint16](r.tb, r.Device, l.attn.Out, len(c.q))
}

func TestAttention(t *testing.T) {
	for _, d := range withBig(t, tiny, odd, wide, five) {
		r := newRig(t, d)
		shapes := [][]attnRow{
			{{0, 1}},
			{{63, 1}, {0, 17}, {255, 1}, {64, 2}},
			{{256, 1}, {250, 9}, {d.PageSize - 1, 2}, {d.PageSize, 1}},
		}
		if !r.Simulated {
			shapes = append(shapes, []attnRow{{0, 700}, {4095, 1}, {1000, 40}, {3, 1}}, []attnRow{{9000, 3}})
		} else if d == tiny {
			shapes = append(shapes, []attnRow{{520, 6}, {1023, 1}})
		}
		for i, rows := range shapes {
			c := newAttnCase(d, uint64(10*i), rows)
			whole := bothOrders(r, func() []uint16 { return c.run(r, 0) })
			if msg := cudatest.Close(ref.WidenAll(whole), c.want(), 5e-3); msg != "" {
				t.Errorf("%+v rows %v: %s", d, rows, msg)
			}
			for _, partials := range []int{2, 5, 1 << 20} {
				if split := c.run(r, partials); !slices.Equal(split, whole) {
					t.Errorf("%+v rows %v: %d partials change the bits", d, rows, partials)
				}
			}
			l := c.prepare(r, 1<<20)
			l.blocks = fewBlocks // as a graph has it: some blocks walk several items; twice, as counters must be left at 0
			l.launch(r)
			l.launch(r)
			if few := cudatest.Get[uint16](t, r.Device, l.attn.Out, len(c.q)); !slices.Equal(few, whole) {
				t.Errorf("%+v rows %v: few blocks change the bits", d, rows)
			}
		}
	}
}

// A row's bits depend neither on its neighbours nor on how many of its tokens come at once.
func TestAttentionIsInvariant(t *testing.T) {
	r := newRig(t, tiny)
	rows := []attnRow{{250, 12}, {5, 3}}
	c := newAttnCase(tiny, 77, rows)
	whole := c.run(r, 0)
	width := tiny.Heads * tiny.HeadDim
	at := 0
	for i, row := range rows {
		for n := range row.n {
			one := *c
			one.rows = []attnRow{{row.pos + n, 1}}
			one.q = c.q[(at+n)*width : (at+n+1)*width]
			one.table = c.table[i*c.maxPages : (i+1)*c.maxPages]
			if got := one.run(r, n%2*1000); !slices.Equal(got, whole[(at+n)*width:(at+n+1)*width]) {
				t.Fatalf("row %d token %d alone has other bits", i, n)
			}
		}
		at += row.n
	}
}

// Random ragged batches, against the reference.
func TestAttentionRagged(t *testing.T) {
	d, rounds, limit := tiny, 3, 90
	r := newRig(t, d)
	if !r.Simulated {
		rounds, limit = 40, 1500
	}
	rng := rand.New(rand.NewPCG(5, 6))
	for round := range rounds {
		var rows []attnRow
		for range 1 + rng.IntN(5) {
			rows = append(rows, attnRow{rng.IntN(limit), 1 + rng.IntN(64)*rng.IntN(2)})
		}
		c := newAttnCase(d, uint64(round), rows)
		if msg := cudatest.Close(ref.WidenAll(c.run(r, rng.IntN(20))), c.want(), 5e-3); msg != "" {
			t.Fatal(fmt.Sprint("round ", round, " rows ", rows, ": ", msg))
		}
	}
}
