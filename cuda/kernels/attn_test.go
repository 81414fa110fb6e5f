package kernels_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/sourcegraph/conc/iter"

	"github.com/tokenrouter/tokenrouter/cuda/cudatest"
	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/kernels"
	"github.com/tokenrouter/tokenrouter/cuda/ref"
)

// attnRow is one sequence of an attention test: n tokens whose first is at pos.
type attnRow struct{ pos, n int }

// attnCase holds what the product before attention made for rows of random content, and a cache of what earlier steps left
// on shuffled pages. Everything else in the cache is NaN.
type attnCase struct {
	d        kernels.Dims
	rows     []attnRow
	qkv      []float32 // [T][Hq + 2 Hk][D]
	bias     []uint16
	norms    [2][]uint16 // of queries and keys
	rope     []float32   // of maxPages * P positions
	past     []uint16    // the cache without the step's tokens
	table    []int32
	maxPages int
	truth    *attnTruth // computed once
}

// attnTruth is the reference of a case.
type attnTruth struct {
	made [][]float64 // heads of the step's tokens, [T][Hq + 2 Hk]
	at   []int       // which of the output's [T][Hq] heads are compared, ascending
	out  []float64   // these heads
}

// attnBudget bounds the multiplications of a reference, for long prompts of many heads: some seconds of one core.
const attnBudget = 300_000_000

const attnTheta = 1e4

func newAttnCase(d kernels.Dims, seed uint64, rows []attnRow) *attnCase {
	c := &attnCase{d: d, rows: rows}
	tokens, pages := 0, 0
	for _, r := range rows {
		tokens += r.n
		n := (r.pos + r.n + d.PageSize - 1) / d.PageSize
		pages += n
		c.maxPages = max(c.maxPages, n)
	}
	heads := d.Heads + 2*d.KVHeads
	c.qkv, c.bias = cudatest.Normals(seed, tokens*heads*d.HeadDim), cudatest.BF16s(seed+1, heads*d.HeadDim, 0.3)
	c.norms = [2][]uint16{cudatest.BF16s(seed+2, d.HeadDim, 1), cudatest.BF16s(seed+3, d.HeadDim, 1)}
	inverse := make([]float64, d.HeadDim/2)
	for i := range inverse {
		inverse[i] = math.Pow(attnTheta, -float64(i)/float64(len(inverse)))
	}
	c.rope = kernels.RopeTable(c.maxPages*d.PageSize, inverse)
	perHead := d.PageSize * d.HeadDim
	c.past = slices.Repeat([]uint16{0xffff}, (pages+2)*2*d.KVHeads*perHead)
	c.table = make([]int32, len(rows)*c.maxPages)
	for i := range c.table {
		c.table[i] = 1 << 30 // a wrong look-up must crash
	}
	order := rand.New(rand.NewPCG(seed, 2)).Perm(pages + 2)
	next := 0
	for i, r := range rows {
		for at := range (r.pos + r.n + d.PageSize - 1) / d.PageSize {
			c.table[i*c.maxPages+at] = int32(order[next])
			next++
		}
		content := cudatest.BF16s(seed+uint64(i)+100, r.pos*2*d.KVHeads*d.HeadDim, 1)
		for p := range r.pos {
			for h := range 2 * d.KVHeads {
				copy(c.past[c.at(i, p, h):], content[(p*2*d.KVHeads+h)*d.HeadDim:][:d.HeadDim])
			}
		}
	}
	return c
}

// at is where the cache has head h (keys, then values) of position p of row i.
func (c *attnCase) at(i, p, h int) int {
	d, page := c.d, int(c.table[i*c.maxPages+p/c.d.PageSize])
	return ((page*2*d.KVHeads+h)*d.PageSize + p%d.PageSize) * d.HeadDim
}

// head makes head h of token t at a position in float64, as qkvpost does, rounded at the end.
func (c *attnCase) head(t, h, pos int) []float64 {
	d := c.d
	x := cudatest.Floats(c.qkv[(t*(d.Heads+2*d.KVHeads)+h)*d.HeadDim:][:d.HeadDim])
	for j := range x {
		x[j] += ref.Widen(c.bias[h*d.HeadDim+j])
	}
	if h < d.Heads+d.KVHeads {
		norm := c.norms[0]
		if h >= d.Heads {
			norm = c.norms[1]
		}
		x = ref.Rmsnorm(x, ref.WidenAll(norm), 1e-6)
		ref.Rope(x, pos, attnTheta)
	}
	for j := range x {
		x[j] = ref.Widen(ref.BF16(float32(x[j])))
	}
	return x
}

// attnToken is a token of the step: its row, and its position there.
type attnToken struct{ row, pos int }

func (c *attnCase) tokens() (out []attnToken) {
	for i, r := range c.rows {
		for n := range r.n {
			out = append(out, attnToken{i, r.pos + n})
		}
	}
	return out
}

// sampled lists the heads of the output to compare: all, or evenly spread ones of all query heads if that is too much work.
// The last one, which has seen most, is always there.
func (c *attnCase) sampled(tokens []attnToken) (at []int) {
	work := 0
	for _, t := range tokens {
		work += (t.pos + 1) * c.d.Heads * 2 * c.d.HeadDim
	}
	stride := (work + attnBudget - 1) / attnBudget
	for gcd(stride, c.d.Heads) > 1 {
		stride++
	}
	for i := len(tokens)*c.d.Heads - 1; i >= 0; i -= stride {
		at = append(at, i)
	}
	slices.Reverse(at)
	return at
}

func gcd(a, b int) int {
	for b > 0 {
		a, b = b, a%b
	}
	return a
}

// want is the reference. All cores work on it.
func (c *attnCase) want() *attnTruth {
	if c.truth != nil {
		return c.truth
	}
	d, tokens := c.d, c.tokens()
	all := d.Heads + 2*d.KVHeads
	w := &attnTruth{made: make([][]float64, len(tokens)*all), at: c.sampled(tokens)}
	iter.ForEachIdx(w.made, func(i int, made *[]float64) { *made = c.head(i/all, i%all, tokens[i/all].pos) })
	// Keys, then values, of all positions of a row: [rows][2 Hk][positions][D].
	cached := make([][][]float64, len(c.rows)*2*d.KVHeads)
	iter.ForEachIdx(cached, func(i int, list *[][]float64) {
		row, h, first := i/(2*d.KVHeads), i%(2*d.KVHeads), 0
		for _, r := range c.rows[:row] {
			first += r.n
		}
		for p := range c.rows[row].pos {
			*list = append(*list, ref.WidenAll(c.past[c.at(row, p, h):][:d.HeadDim]))
		}
		for n := range c.rows[row].n {
			*list = append(*list, w.made[(first+n)*all+d.Heads+h])
		}
	})
	for _, head := range iter.Map(w.at, func(at *int) []float64 {
		i, h := *at/d.Heads, *at%d.Heads
		t := tokens[i]
		kv := cached[t.row*2*d.KVHeads:]
		keys, values := kv[h/d.Group()][:t.pos+1], kv[d.KVHeads+h/d.Group()][:t.pos+1]
		return ref.Attend(w.made[i*all+h], keys, values, 1/math.Sqrt(float64(d.HeadDim)))
	}) {
		w.out = append(w.out, head...)
	}
	c.truth = w
	return w
}

// fewBlocks is fewer blocks than most cases have items, and more than some.
const fewBlocks = 3

// attnLaunch is a case on the device.
type attnLaunch struct {
	c      *attnCase
	form   kernels.AttnForm
	attn   kernels.AttnParams
	post   kernels.QkvpostParams
	blocks int
	tokens int
}

// prepare plans the case for so many blocks of each key head and uploads it.
func (c *attnCase) prepare(r *rig, form kernels.AttnForm, blocks int) *attnLaunch {
	r.tb.Helper()
	var plan kernels.AttnPlan
	plan.Reset(c.d, form, kernels.AttnRoom{Rows: 1 << 20, Chunks: 1 << 20})
	var pos, slots []int32
	token := 0
	for i, row := range c.rows {
		plan.Add(token, row.n, row.pos, i)
		token += row.n
		for p := row.pos; p < row.pos+row.n; p++ {
			pos = append(pos, int32(p))
			slots = append(slots, c.table[i*c.maxPages+p/c.d.PageSize]*int32(c.d.PageSize)+int32(p%c.d.PageSize))
		}
	}
	plan.Finish(blocks)
	rows := max(plan.PartialRows(), 1) * c.d.KVHeads
	put := func(v []uint16) driver.Ptr { return cudatest.Put(r.tb, r.Device, v) }
	heads := kernels.HeadsParams{
		QKV: cudatest.Put(r.tb, r.Device, c.qkv), Bias: put(c.bias), QNorm: put(c.norms[0]), KNorm: put(c.norms[1]),
		Rope: cudatest.Put(r.tb, r.Device, c.rope), Eps: 1e-6,
	}
	head := r.head(kernels.StepHead{Tokens: int32(token), Items: int32(len(plan.Items))})
	l := &attnLaunch{c: c, form: form, blocks: len(plan.Items), tokens: token}
	l.attn = kernels.AttnParams{
		Head: head, Items: cudatest.Put(r.tb, r.Device, append(plan.Items, make([]kernels.AttnItem, fewBlocks)...)),
		Q: cudatest.Make[uint16](r.tb, r.Device, token*c.d.Heads*c.d.HeadDim), Cache: put(c.past), Table: cudatest.Put(r.tb, r.Device, c.table),
		Out:   cudatest.Make[uint16](r.tb, r.Device, token*c.d.Heads*c.d.HeadDim),
		PartO: cudatest.Make[float32](r.tb, r.Device, rows*c.d.HeadDim), PartML: cudatest.Make[float32](r.tb, r.Device, rows*2),
		Arrived:  cudatest.Put(r.tb, r.Device, make([]uint32, plan.Spread()*c.d.KVHeads)),
		MaxPages: int32(c.maxPages), Scale: kernels.AttnScale(c.d.HeadDim), Heads: heads,
	}
	l.post = kernels.QkvpostParams{
		Head: head, Pos: cudatest.Put(r.tb, r.Device, pos), Slots: cudatest.Put(r.tb, r.Device, slots), Q: l.attn.Q, Cache: l.attn.Cache, Heads: heads,
	}
	return l
}

func (l *attnLaunch) launch(r *rig) {
	r.tb.Helper()
	post, attn := l.post, l.attn // parameters lie in no object with Go pointers
	if l.form == kernels.AttnWide {
		r.ok(r.set.Qkvpost(r.Stream, &post, l.tokens))
	}
	r.ok(r.set.Attn(r.Stream, &attn, l.form, l.blocks))
}

// outcome is what a launch leaves: the output, then the cache.
func (l *attnLaunch) outcome(r *rig) []uint16 {
	r.tb.Helper()
	out := cudatest.Get[uint16](r.tb, r.Device, l.attn.Out, l.tokens*l.c.d.Heads*l.c.d.HeadDim)
	return append(out, cudatest.Get[uint16](r.tb, r.Device, l.attn.Cache, len(l.c.past))...)
}

// run computes the case and returns the output, then the cache.
func (c *attnCase) run(r *rig, form kernels.AttnForm, blocks int) []uint16 {
	r.tb.Helper()
	l := c.prepare(r, form, blocks)
	l.launch(r)
	return l.outcome(r)
}

// check compares an outcome with the reference.
func (c *attnCase) check(got []uint16) string {
	want, all := c.want(), c.d.Heads+2*c.d.KVHeads
	var out []float64
	for _, at := range want.at {
		out = append(out, ref.WidenAll(got[at*c.d.HeadDim:(at+1)*c.d.HeadDim])...)
	}
	if msg := cudatest.Close(out, want.out, 5e-3); msg != "" {
		return msg
	}
	cache, first := got[len(c.qkv)/all*c.d.Heads:], 0
	left := slices.Clone(c.past)
	for i, r := range c.rows {
		for p := r.pos; p < r.pos+r.n; p++ {
			for h := range 2 * c.d.KVHeads {
				at := c.at(i, p, h)
				if msg := cudatest.Close(ref.WidenAll(cache[at:at+c.d.HeadDim]), want.made[(first+p-r.pos)*all+c.d.Heads+h], 3e-3); msg != "" {
					return fmt.Sprintf("cache of row %d position %d head %d: %s", i, p, h, msg)
				}
				copy(left[at:], cache[at:at+c.d.HeadDim])
			}
		}
		first += r.n
	}
	if !slices.Equal(left, cache) {
		return "the cache was written elsewhere"
	}
	return ""
}

func TestAttention(t *testing.T) {
	plans := []int{1, 4, 9, 1 << 20}
	if testing.Short() {
		plans = []int{4, 1 << 20}
	}
	for _, d := range withBig(t, tiny, odd, wide, five) {
		r := newRig(t, d)
		shapes := [][]attnRow{
			{{0, 1}},
			{{63, 1}, {0, 17}, {255, 1}, {64, 2}},
			{{128, 1}, {122, 9}, {d.PageSize - 1, 2}, {d.PageSize, 1}},
		}
		if !r.Simulated {
			shapes = append(shapes, []attnRow{{0, 700}, {4095, 1}, {1000, 40}, {3, 1}, {2040, 20}}, []attnRow{{9000, 3}}, []attnRow{{0, 6000}})
		} else if d == tiny {
			shapes = append(shapes, []attnRow{{520, 6}, {2046, 5}})
		}
		for i, rows := range shapes {
			c := newAttnCase(d, uint64(10*i), rows)
			whole := bothOrders(r, func() []uint16 { return c.run(r, kernels.AttnWide, 1) })
			if msg := c.check(whole); msg != "" {
				t.Errorf("%+v rows %v: %s", d, rows, msg)
			}
			for _, form := range []kernels.AttnForm{kernels.AttnWide, kernels.AttnNarrow} {
				for _, blocks := range plans {
					if split := c.run(r, form, blocks); !slices.Equal(split, whole) {
						t.Errorf("%+v rows %v form %d: a plan for %d blocks changes the bits", d, rows, form, blocks)
					}
				}
				l := c.prepare(r, form, 1<<20)
				l.blocks = fewBlocks // as a graph has it: some blocks walk several items; twice, as counters must be left at 0
				l.launch(r)
				l.launch(r)
				if few := l.outcome(r); !slices.Equal(few, whole) {
					t.Errorf("%+v rows %v form %d: few blocks change the bits", d, rows, form)
				}
			}
			if r.Simulated {
				bothOrders(r, func() []uint16 { return c.run(r, kernels.AttnNarrow, 1<<20) })
			}
		}
	}
}

// The emulator is of an architecture with a ring of two spans; here it has those with three, and with two.
func TestAttentionRings(t *testing.T) {
	r := newRig(t, tiny)
	if !r.Simulated {
		t.Skip("skip: a GPU has the ring of its architecture")
	}
	c := newAttnCase(tiny, 9, []attnRow{{128, 1}, {250, 40}, {0, 70}, {1030, 2}})
	whole := c.run(r, kernels.AttnNarrow, 1)
	if msg := c.check(whole); msg != "" {
		t.Fatal(msg)
	}
	for _, arch := range []string{"sm_80", "sm_90a"} {
		set, err := kernels.LoadFor(t.Context(), r.Context, r.Builder, tiny, arch)
		r.ok(err)
		other := &rig{Device: r.Device, set: set, tb: t}
		for _, blocks := range []int{1, 4, 1 << 20} {
			if got := bothOrders(other, func() []uint16 { return c.run(other, kernels.AttnWide, blocks) }); !slices.Equal(got, whole) {
				t.Errorf("%s, a plan for %d blocks: other bits", arch, blocks)
			}
		}
		l := c.prepare(other, kernels.AttnWide, 1<<20)
		l.blocks = fewBlocks // that walk several items each
		l.launch(other)
		if got := l.outcome(other); !slices.Equal(got, whole) {
			t.Errorf("%s, few blocks: other bits", arch)
		}
		r.ok(set.Close())
	}
}

// The partials of a wide tile of 64 rows come to shared memory in several batches.
func TestAttentionJoinsInBatches(t *testing.T) {
	r := newRig(t, tiny)
	c := newAttnCase(tiny, 5, []attnRow{{1030, 64 / tiny.Group()}})
	whole := c.run(r, kernels.AttnWide, 1)
	if split := bothOrders(r, func() []uint16 { return c.run(r, kernels.AttnWide, 1<<20) }); !slices.Equal(split, whole) {
		t.Error("spread over blocks it has other bits")
	}
}

// A row's bits depend neither on its neighbours nor on how many of its tokens come at once.
func TestAttentionIsInvariant(t *testing.T) {
	r := newRig(t, tiny)
	rows := []attnRow{{250, 12}, {5, 3}}
	c := newAttnCase(tiny, 77, rows)
	whole := c.run(r, kernels.AttnWide, 1)
	width, heads := tiny.Heads*tiny.HeadDim, (tiny.Heads+2*tiny.KVHeads)*tiny.HeadDim
	at := 0
	cache := whole[len(c.qkv)/heads*width:]
	for i, row := range rows {
		for n := range row.n {
			one := *c
			one.rows = []attnRow{{row.pos + n, 1}}
			one.qkv = c.qkv[(at+n)*heads : (at+n+1)*heads]
			one.table = c.table[i*c.maxPages : (i+1)*c.maxPages]
			one.past = cache // later positions hold something else, which must not matter
			if got := one.run(r, kernels.AttnForm(n%2), 1+n/2%2*1000)[:width]; !slices.Equal(got, whole[(at+n)*width:(at+n+1)*width]) {
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
		for _, form := range []kernels.AttnForm{kernels.AttnNarrow, kernels.AttnWide} {
			if msg := c.check(c.run(r, form, 1+rng.IntN(40))); msg != "" {
				t.Fatal(fmt.Sprint("round ", round, " form ", form, " rows ", rows, ": ", msg))
			}
		}
	}
}
