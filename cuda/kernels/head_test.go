package kernels_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/cuda/cudatest"
	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/kernels"
	"github.com/tokenrouter/tokenrouter/cuda/ref"
	"github.com/tokenrouter/tokenrouter/worker/sampler"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

const headPad = 3 // unused columns of the logits, NaN

// head is what the kernels of the output head found.
type head struct {
	stats []kernels.Stat
	top   []kernels.TopEntry
}

// runHead runs features and sampling over rows of logits.
func runHead(r *rig, rows [][]float32, samples []kernels.Sample) head {
	r.tb.Helper()
	v := r.set.Dims.Vocab
	flat := make([]float32, 0, len(rows)*(v+headPad))
	for _, z := range rows {
		flat = append(append(flat, z...), float32(math.NaN()), float32(math.NaN()), float32(math.NaN()))
	}
	n := len(rows)
	for i := range samples {
		if samples[i].Given == 0 {
			samples[i].Given = -1
		}
		samples[i].Slot = -1
	}
	p := kernels.LogitstatsParams{
		Head: r.head(kernels.StepHead{Samples: int32(n)}), Samples: cudatest.Put(r.tb, r.Device, samples),
		Logits: cudatest.Put(r.tb, r.Device, flat), Stats: cudatest.Make[kernels.Stat](r.tb, r.Device, n),
		Top: cudatest.Make[kernels.TopEntry](r.tb, r.Device, n*kernels.MaxTop), Ld: int32(v + headPad),
	}
	p.Parts = cudatest.Make[kernels.LogitPart](r.tb, r.Device, n*kernels.LogitParts)
	r.ok(r.set.LogitPart(r.Stream, &kernels.LogitpartParams{Head: p.Head, Logits: p.Logits, Parts: p.Parts, Ld: p.Ld}, n+1))
	r.ok(r.set.LogitStats(r.Stream, &p, n+1))
	last := cudatest.Make[int32](r.tb, r.Device, 1)
	r.ok(r.set.Sample(r.Stream, &kernels.SampleParams{Head: p.Head, Samples: p.Samples, Logits: p.Logits, Stats: p.Stats, Last: last, Ld: p.Ld}, n+1))
	return head{cudatest.Get[kernels.Stat](r.tb, r.Device, p.Stats, n), cudatest.Get[kernels.TopEntry](r.tb, r.Device, p.Top, n*kernels.MaxTop)}
}

// logitRows makes rows of every awkward kind.
func logitRows(v int) map[string][]float32 {
	normal := cudatest.Normals(1, v)
	peaked := make([]float32, v)
	ties := make([]float32, v)
	for i := range v {
		peaked[i] = -30
		ties[i] = float32(i*7%5) - 2
	}
	peaked[v-1] = 20
	masked := append([]float32(nil), normal...)
	for i := range masked {
		if i%3 != 0 {
			masked[i] = float32(math.Inf(-1))
		}
	}
	zeros := make([]float32, v) // all the same, half of them -0
	for i := range zeros {
		zeros[i] = float32(math.Copysign(0, float64(i%2*2-1)))
	}
	return map[string][]float32{"normal": normal, "peaked": peaked, "ties": ties, "masked": masked, "zeros": zeros}
}

func TestLogitstats(t *testing.T) {
	tops := []int{0, 1, 7, kernels.MaxTop}
	if testing.Short() {
		tops = []int{0, kernels.MaxTop}
	}
	for _, d := range withBig(t, tiny, odd, wide, five) {
		r := newRig(t, d)
		for name, z := range logitRows(d.Vocab) {
			want := ref.Logitstats(z)
			for _, k := range tops {
				var got head
				bothOrders(r, func() []kernels.Stat {
					got = runHead(r, [][]float32{z, z}, []kernels.Sample{{Top: int32(k)}, {Top: 1}})
					return got.stats
				})
				s := got.stats[0]
				if int(s.ArgMax) != want.ArgMax || float64(s.Max) != want.Max || s.Token != s.ArgMax || s.Flags != 0 {
					t.Errorf("V=%d %s: arg max %d (%v), token %d, flags %d; want %d (%v)", d.Vocab, name, s.ArgMax, s.Max, s.Token, s.Flags, want.ArgMax, want.Max)
				}
				for what, pair := range map[string][2]float64{
					"lse": {float64(s.LSE), want.LSE}, "entropy": {float64(s.Entropy), want.Entropy}, "margin": {float64(s.Margin), want.Margin},
					"logprob": {float64(s.Logprob), want.Max - want.LSE},
				} {
					if math.Abs(pair[0]-pair[1]) > 1e-5*(1+math.Abs(pair[1])) {
						t.Errorf("V=%d %s: %s is %v, want %v", d.Vocab, name, what, pair[0], pair[1])
					}
				}
				for i := range min(k, d.Vocab) {
					if e := got.top[i]; int(e.ID) != want.Order[i] || e.Logit != z[e.ID] {
						t.Fatalf("V=%d %s: entry %d of %d is %+v, want id %d", d.Vocab, name, i, k, e, want.Order[i])
					}
				}
				if e := got.top[kernels.MaxTop]; int(e.ID) != want.Order[0] {
					t.Errorf("second row: %+v", e)
				}
			}
		}
	}
}

func TestLogitstatsFlags(t *testing.T) {
	r := newRig(t, tiny)
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	all := make([]float32, tiny.Vocab)
	for i := range all {
		all[i] = -inf
	}
	rows := [][]float32{cudatest.Normals(1, tiny.Vocab), cudatest.Normals(2, tiny.Vocab), all, cudatest.Normals(3, tiny.Vocab)}
	rows[0][700] = nan
	rows[1][0] = inf
	got := runHead(r, rows, []kernels.Sample{{Top: 4}, {Temperature: 1, TopP: 0.5}, {}, {}})
	for i, want := range []int32{1, 1, 1, 0} {
		if got.stats[i].Flags != want {
			t.Errorf("row %d has flags %d, want %d", i, got.stats[i].Flags, want)
		}
	}
}

// The device draws what worker/sampler draws.
func TestSample(t *testing.T) {
	for _, d := range withBig(t, tiny, odd, wide) {
		r := newRig(t, d)
		rounds := 6
		if testing.Short() {
			rounds = 3
		}
		if !r.Simulated {
			rounds = 200
		}
		if d.Vocab > 10_000 {
			rounds = 8
		}
		rng := rand.New(rand.NewPCG(3, uint64(d.Vocab)))
		var rows [][]float32
		var samples []kernels.Sample
		var params []sampling.Params
		for i := range rounds {
			for _, z := range logitRows(d.Vocab) {
				p := sampling.Params{Temperature: []float32{0.3, 1, 2.5}[i%3], TopP: []float32{1, 0.9, 0.2, 0}[rng.IntN(4)], Seed: rng.Uint64()}
				p.TopK = []int32{0, 1, 20, 100000}[rng.IntN(4)]
				p.MinP = []float32{0, 0.3, 1, 0.01}[rng.IntN(4)]
				rows, params = append(rows, z), append(params, p)
				samples = append(samples, kernels.Sample{
					Position: uint32(i * 1000), Model: uint32(i % 3), SeedLo: uint32(p.Seed), SeedHi: uint32(p.Seed >> 32),
					Temperature: p.Temperature, TopP: p.TopP, TopK: p.TopK, MinP: p.MinP,
				})
			}
		}
		var got head
		bothOrders(r, func() []kernels.Stat {
			got = runHead(r, rows, samples)
			return got.stats
		})
		var s sampler.Sampler
		for i := range rows {
			out := step.Out{Position: int32(samples[i].Position)}
			s.Sample(rows[i], &params[i], uint8(samples[i].Model), &step.Row{Logprobs: 0}, &out)
			if got.stats[i].Token != out.Token || math.Abs(float64(got.stats[i].Logprob-out.Logprob)) > 1e-5*(1+math.Abs(float64(out.Logprob))) {
				t.Errorf("V=%d row %d %+v: token %d (%v), the sampler has %d (%v)", d.Vocab, i, params[i], got.stats[i].Token, got.stats[i].Logprob, out.Token, out.Logprob)
			}
		}
	}
}

func TestPublish(t *testing.T) {
	r := newRig(t, tiny)
	const n = 5
	c, v, ld := tiny.Hidden, tiny.Vocab, tiny.Vocab+headPad
	samples := []kernels.Sample{
		{Want: kernels.WantScore | kernels.WantNoTop, Top: 100}, {Want: kernels.WantHidden, Top: 3}, {}, {Want: kernels.WantLogits, Top: 128},
		{Want: kernels.WantScore | kernels.WantHidden, Top: 7},
	}
	hidden, logits := cudatest.Normals(1, n*c), cudatest.Normals(3, n*ld)
	stats := make([]kernels.Stat, n)
	for i := range stats {
		stats[i].Token = int32(10 + i)
	}
	top := make([]kernels.TopEntry, n*kernels.MaxTop)
	for i := range top {
		top[i] = kernels.TopEntry{ID: int32(i), Logit: float32(-i)}
	}
	h := r.head(kernels.StepHead{Step: 1 << 40, Samples: n})
	p := kernels.PublishParams{
		Head: h, Samples: cudatest.Put(t, r.Device, samples), Stats: cudatest.Put(t, r.Device, stats), Top: cudatest.Put(t, r.Device, top),
		Hidden: cudatest.Put(t, r.Device, hidden),
		Logits: cudatest.Put(t, r.Device, logits), OutStats: cudatest.Make[kernels.Stat](t, r.Device, n),
		OutTop: cudatest.Make[kernels.TopEntry](t, r.Device, n*kernels.MaxTop), OutHidden: cudatest.Make[float32](t, r.Device, n*c),
		OutLogits: cudatest.Make[float32](t, r.Device, n*v), OutStep: cudatest.Make[uint64](t, r.Device, 1),
		Arrived: cudatest.Put(t, r.Device, []uint32{0}), C: int32(c), V: int32(v), Ld: int32(ld),
	}
	r.ok(r.set.Publish(r.Stream, &p, n))
	if s := cudatest.Get[uint64](t, r.Device, p.OutStep, 1)[0]; s != 1<<40 {
		t.Errorf("flag is %d", s)
	}
	if a := cudatest.Get[uint32](t, r.Device, p.Arrived, 1)[0]; a != 0 {
		t.Errorf("%d blocks are still counted", a)
	}
	outStats := cudatest.Get[kernels.Stat](t, r.Device, p.OutStats, n)
	outTop := cudatest.Get[kernels.TopEntry](t, r.Device, p.OutTop, n*kernels.MaxTop)
	outHidden := cudatest.Get[float32](t, r.Device, p.OutHidden, n*c)
	outLogits := cudatest.Get[float32](t, r.Device, p.OutLogits, n*v)
	for i, q := range samples {
		if outStats[i] != stats[i] {
			t.Errorf("sample %d: %+v, want %+v", i, outStats[i], stats[i])
		}
		sent := int(q.Top)
		if q.Want&kernels.WantNoTop != 0 {
			sent = 0
		}
		first := i * kernels.MaxTop
		if !slices.Equal(outTop[first:first+sent], top[first:first+sent]) {
			t.Errorf("sample %d: top list %v", i, outTop[first:first+sent])
		}
		for _, e := range outTop[first+sent : first+kernels.MaxTop] {
			if !math.IsNaN(float64(e.Logit)) {
				t.Errorf("sample %d: %+v beyond the %d entries asked for", i, e, sent)
				break
			}
		}
		if has := !math.IsNaN(float64(outHidden[i*c+c-1])); has != (q.Want&kernels.WantHidden != 0) || has && outHidden[i*c+1] != hidden[i*c+1] {
			t.Errorf("sample %d: hidden %v", i, outHidden[i*c+1])
		}
		if has := !math.IsNaN(float64(outLogits[i*v+v-1])); has != (q.Want&kernels.WantLogits != 0) || has && outLogits[i*v+v-1] != logits[i*ld+v-1] {
			t.Errorf("sample %d: logits", i)
		}
	}
	// Without samples the flag still moves.
	p.Head = r.head(kernels.StepHead{Step: 2})
	r.ok(r.set.Publish(r.Stream, &p, 0))
	if s := cudatest.Get[uint64](t, r.Device, driver.Ptr(p.OutStep), 1)[0]; s != 2 {
		t.Errorf("flag is %d after a step without samples", s)
	}
}
