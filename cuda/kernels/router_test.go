package kernels_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/cuda/cudatest"
	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/kernels"
	"github.com/tokenrouter/tokenrouter/cuda/nvrtc"
	"github.com/tokenrouter/tokenrouter/cuda/ref"
	"github.com/tokenrouter/tokenrouter/worker/model"
	"github.com/tokenrouter/tokenrouter/worker/router"
)

// netRig is a device with the kernels of router nets.
type netRig struct {
	*cudatest.Device
	set *kernels.Router
	tb  testing.TB
}

func newNetRig(tb testing.TB) *netRig {
	tb.Helper()
	dev := cudatest.Open(tb)
	set, err := kernels.LoadRouter(tb.Context(), dev.Context, dev.Builder)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := errors.Join(dev.Stream.Synchronize(), set.Close()); err != nil {
			tb.Error(err)
		}
	})
	return &netRig{dev, set, tb}
}

// onDevice is a net on the device.
type onDevice struct {
	net                                    *router.Net
	front, frontBias, gain, shift, out     driver.Ptr
	k                                      int
	up, upBias, down, downBias, gains, lns []driver.Ptr
}

// put brings a net to the device. Its blocks are bfloat16, so nothing is rounded.
func (r *netRig) put(n *router.Net) *onDevice {
	floats := func(v []float32) driver.Ptr {
		if len(v) == 0 {
			return 0
		}
		return cudatest.Put(r.tb, r.Device, v)
	}
	d := &onDevice{net: n, frontBias: floats(n.FrontBias), gain: floats(n.OutNorm.Gain), shift: floats(n.OutNorm.Bias), out: floats(n.Out)}
	d.k = (n.Front.Cols + 3) / 4 * 4
	padded := make([]float32, n.Front.Rows*d.k)
	for i := range n.Front.Rows {
		copy(padded[i*d.k:], n.Front.F32[i*n.Front.Cols:(i+1)*n.Front.Cols])
	}
	d.front = floats(padded)
	for i := range n.Blocks {
		b := &n.Blocks[i]
		d.up, d.down = append(d.up, cudatest.Put(r.tb, r.Device, b.Up.BF16)), append(d.down, cudatest.Put(r.tb, r.Device, b.Down.BF16))
		d.upBias, d.downBias = append(d.upBias, floats(b.UpBias)), append(d.downBias, floats(b.DownBias))
		d.gains, d.lns = append(d.gains, floats(b.Norm.Gain)), append(d.lns, floats(b.Norm.Bias))
	}
	return d
}

// inputs are a step's, on the device.
type inputs struct {
	head, samples, stats, top, hidden, embed driver.Ptr
	v, inner                                 driver.Ptr
	stat                                     []kernels.Stat
}

// rowsFor makes rows, their embedding, and what a step has of them; rows with skip do not want net 3.
func (r *netRig) rowsFor(n *router.Net, rows, first, pad int, skip func(int) bool) ([]router.Row, [][]float32, *inputs) {
	const vocab = 50
	h := n.HiddenSize
	embed := cudatest.BF16s(9, vocab*h, 0.05)
	hidden, logits := cudatest.Normals(4, rows*h), cudatest.Normals(5, rows*router.MaxLogits)
	var list []router.Row
	var vectors [][]float32
	samples, stats := make([]kernels.Sample, first+rows), make([]kernels.Stat, first+rows)
	top := make([]kernels.TopEntry, (first+rows)*kernels.MaxTop)
	for i := range rows {
		z := logits[i*router.MaxLogits : (i+1)*router.MaxLogits]
		for j := range z {
			z[j] = 20 + 6*z[j]
		}
		slices.SortFunc(z, func(a, b float32) int { return int(math.Copysign(1, float64(b-a))) })
		s := first + i
		token := int32(i * 13 % vocab)
		stats[s].Token = token
		samples[s].Want = kernels.WantScore | 3<<kernels.WantNet
		if skip(i) {
			samples[s].Want = []uint32{0, kernels.WantScore | 2<<kernels.WantNet, kernels.WantHidden | 3<<kernels.WantNet}[i%3]
		}
		for j, v := range z {
			top[s*kernels.MaxTop+j] = kernels.TopEntry{ID: int32(j), Logit: v}
		}
		list = append(list, router.Row{Hidden: hidden[i*h : (i+1)*h], Top: z, Token: token})
		vector := make([]float32, h)
		for j := range vector {
			vector[j] = float32(ref.Widen(embed[int(token)*h+j]))
		}
		vectors = append(vectors, vector)
	}
	in := &inputs{
		head:    cudatest.Put(r.tb, r.Device, []kernels.StepHead{{Samples: int32(first + rows)}}),
		samples: cudatest.Put(r.tb, r.Device, samples), stats: cudatest.Put(r.tb, r.Device, stats), top: cudatest.Put(r.tb, r.Device, top),
		hidden: cudatest.Put(r.tb, r.Device, hidden), embed: cudatest.Put(r.tb, r.Device, embed), stat: stats,
		v:     cudatest.Make[float32](r.tb, r.Device, (rows+pad)*max(n.Width(), 1)),
		inner: cudatest.Make[float32](r.tb, r.Device, (rows+pad)*max(n.Inner(), 1)),
	}
	return list, vectors, in
}

// run enqueues the net.
func (r *netRig) run(d *onDevice, in *inputs, samples, first int, flags uint32) error {
	n := d.net
	p := kernels.RouterLinearParams{Head: in.head, Samples: in.samples, Stats: in.stats, Top: in.top, Net: 3, First: int32(first)}
	x, width := in.hidden, n.HiddenSize
	if n.Kind != router.CoLLM {
		front := p
		front.X, front.W, front.Bias, front.Y = in.hidden, d.front, d.frontBias, in.v
		front.N, front.K, front.Hidden, front.Flags = int32(n.Width()), int32(d.k), int32(n.HiddenSize), flags
		if n.Kind == router.R2R {
			front.Embed, front.Logits = in.embed, int32(n.LogitsSize)
		} else {
			front.Flags |= kernels.RouterReLU
		}
		if n.NormalizeInput {
			front.Flags |= kernels.RouterNormalize
		}
		if err := r.set.Linear(r.Stream, kernels.RouterFront, &front, samples); err != nil {
			return err
		}
		x, width = in.v, n.Width()
	}
	for i := range n.Blocks {
		up, down := p, p
		up.X, up.W, up.Bias, up.Gain, up.Shift, up.Y = in.v, d.up[i], d.upBias[i], d.gains[i], d.lns[i], in.inner
		up.N, up.K, up.Flags = int32(n.Inner()), int32(n.Width()), flags
		down.X, down.W, down.Bias, down.Y = in.inner, d.down[i], d.downBias[i], in.v
		down.N, down.K, down.Flags = int32(n.Width()), int32(n.Inner()), flags
		if err := errors.Join(r.set.Linear(r.Stream, kernels.RouterUp, &up, samples), r.set.Linear(r.Stream, kernels.RouterDown, &down, samples)); err != nil {
			return err
		}
	}
	return r.set.End(r.Stream, &kernels.RouterEndParams{
		Head: in.head, Samples: in.samples, Stats: in.stats, X: x, Gain: d.gain, Shift: d.shift, W: d.out, Bias: n.OutBias,
		K: int32(width), Net: 3, First: int32(first),
	}, samples)
}

// table is the embedding's vectors of rows in order, whatever their tokens.
type rowEmbedding [][]float32

func (e rowEmbedding) Row(dst []float32, id int) { copy(dst, e[id]) }

// wanted are the scores by the CPU's reference.
func wanted(c *router.Checkpoint, rows []router.Row, vectors [][]float32) []float32 {
	list := slices.Clone(rows)
	for i := range list {
		list[i].Token = int32(i)
	}
	out := make([]float32, len(rows))
	c.Fold().NewScorer(rowEmbedding(vectors), nil, 8).Score(out, list)
	return out
}

// TestRouterNets compares all kinds of nets with the CPU's, alone, in batches, behind other samples, and among samples that
// do not want the net. The bits of a sample depend on nothing beside it.
func TestRouterNets(t *testing.T) {
	r := newNetRig(t)
	net := func(kind router.Kind, hidden, logits int, normal bool) router.Sidecar {
		return router.Sidecar{Format: 1, Kind: kind, Model: "m", HiddenSize: hidden, LogitsSize: logits, NormalizeInput: normal}
	}
	tests := []struct {
		name  string
		s     router.Sidecar
		shape router.Shape
		big   bool
	}{
		{"trio", net(router.R2R, 128, 100, false), router.Shape{Width: 64, Inner: 128, Blocks: 2}, false},
		{"odd", net(router.R2R, 24, 37, false), router.Shape{Width: 72, Inner: 88, Blocks: 1}, false},
		{"normalized", net(router.R2R, 40, 100, true), router.Shape{Width: 264, Inner: 56, Blocks: 1}, false},
		{"citer", net(router.CITER, 72, 0, false), router.Shape{Width: 100, Inner: 8}, false},
		{"co-llm", net(router.CoLLM, 136, 0, false), router.Shape{}, false},
		{"qwen3-0.6b", net(router.R2R, 1024, 100, false), router.Shape{Width: 1024, Inner: 4096, Blocks: 6}, true},
		{"qwen3-4b", net(router.R2R, 2560, 100, false), router.Shape{Width: 1024, Inner: 4096, Blocks: 2}, true},
		{"citer, qwen3-0.6b", net(router.CITER, 1024, 0, false), router.Shape{Width: 2048, Inner: 1024}, true},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			if tc.big && r.Simulated {
				t.Skip("skip: no CUDA driver, and the emulator is too slow for this")
			}
			c := router.Random("net", tc.s, tc.shape, model.BF16, 6)
			d := r.put(c.Fold())
			const rows = 11
			all, vectors, _ := r.rowsFor(d.net, rows, 0, 0, func(int) bool { return false })
			want := wanted(c, all, vectors)
			score := func(n, first, pad int, flags uint32, skip func(int) bool) []float32 {
				_, _, in := r.rowsFor(d.net, n, first, pad, skip)
				for i := range in.stat {
					in.stat[i].Score = -1
				}
				if err := r.Context.Write(in.stats, driver.Bytes(in.stat)); err != nil {
					t.Fatal(err)
				}
				if err := r.run(d, in, n+pad, first, flags); err != nil {
					t.Fatal(err)
				}
				var out []float32
				for _, s := range cudatest.Get[kernels.Stat](t, r.Device, in.stats, first+n)[first:] {
					out = append(out, s.Score)
				}
				return out
			}
			none := func(int) bool { return false }
			plain := &rig{Device: r.Device, tb: t}
			got := bothOrders(plain, func() []float32 { return score(rows, 0, 0, 0, none) })
			for i := range want {
				if !(math.Abs(float64(got[i]-want[i])) <= 2e-5) {
					t.Errorf("row %d: %v, want %v", i, got[i], want[i])
				}
			}
			same := func(name string, again []float32, skipped func(int) bool) {
				for i, s := range again {
					if skipped(i) && s != -1 || !skipped(i) && s != got[i] {
						t.Errorf("%s: row %d is %v, alone %v", name, i, s, got[i])
					}
				}
			}
			same("one row", score(1, 0, 0, 0, none), none)
			same("one row, early", bothOrders(plain, func() []float32 { return score(1, 0, 0, kernels.RouterAhead, none) }), none)
			same("padded, early, behind others", score(5, 3, 4, kernels.RouterAhead, none), none)
			third := func(i int) bool { return i%3 != 1 }
			same("among others", score(rows, 2, 2, 0, third), third)
			every := func(int) bool { return true }
			same("wanted by none", score(rows, 0, 0, kernels.RouterAhead, every), every)
		})
	}
}

func TestRouterDims(t *testing.T) {
	r := newNetRig(t)
	good := kernels.RouterLinearParams{W: 16, N: 8, K: 112, Hidden: 8, Logits: 90, Embed: 16}
	for name, change := range map[string]func(*kernels.RouterLinearParams){
		"few columns": func(p *kernels.RouterLinearParams) { p.K = 104 },
		"odd columns": func(p *kernels.RouterLinearParams) { p.K = 113 },
		"wide":        func(p *kernels.RouterLinearParams) { p.K = kernels.MaxRouterWidth + 4 },
		"alignment":   func(p *kernels.RouterLinearParams) { p.W = 8 },
		"logits":      func(p *kernels.RouterLinearParams) { p.Logits, p.K = 129, 400 },
		"no outputs":  func(p *kernels.RouterLinearParams) { p.N = 0 },
	} {
		p := good
		change(&p)
		if err := r.set.Linear(r.Stream, kernels.RouterFront, &p, 1); !errors.Is(err, kernels.ErrDims) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRouterLayout compiles the comparison of the structs.
func TestRouterLayout(t *testing.T) {
	var b strings.Builder
	b.WriteString("#include \"router.cuh\"\n")
	for name, v := range map[string]any{"RouterLinearParams": kernels.RouterLinearParams{}, "RouterEndParams": kernels.RouterEndParams{}} {
		typ := reflect.TypeOf(v)
		fmt.Fprintf(&b, "static_assert(sizeof(%s) == %d, \"size\");\n", name, typ.Size())
		_, body, _ := strings.Cut(kernels.Headers()["router.cuh"], "struct "+name+" {")
		body, _, _ = strings.Cut(body, "};")
		at := 0
		for line := range strings.Lines(body) {
			line, _, _ = strings.Cut(line, "//")
			for _, word := range strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" \t\n*;,", r) }) {
				if at < typ.NumField() && strings.EqualFold(word, typ.Field(at).Name) {
					fmt.Fprintf(&b, "static_assert(__builtin_offsetof(%s, %s) == %d, \"%s\");\n", name, word, typ.Field(at).Offset, word)
					at++
				}
			}
		}
		if at != typ.NumField() {
			t.Errorf("%s: %d of %d fields are in the header, in order", name, at, typ.NumField())
		}
	}
	b.WriteString("extern \"C\" __global__ void layout(const __grid_constant__ Patch p) {}\n")
	dev := cudatest.Open(t)
	if !dev.Simulated {
		t.Skip("skip: the emulator's compiler is asked")
	}
	if _, _, err := dev.Builder.Build(t.Context(), []nvrtc.Program{{Name: "layout.cu", Source: b.String(), Headers: kernels.Headers(), Arch: "sm_80"}}); err != nil {
		t.Error(err)
	}
}

// TestRouterNoSpills compiles every variant for both generations and bounds what each uses.
func TestRouterNoSpills(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles for some seconds")
	}
	c, err := nvrtc.Load(nvrtc.Options{LibraryPath: os.Getenv("TRCTL_NVRTC")})
	if errors.Is(err, nvrtc.ErrNoLibrary) {
		t.Skipf("skip: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	b, err := nvrtc.NewBuilder(nvrtc.BuilderConfig{Compiler: c})
	if err != nil {
		t.Fatal(err)
	}
	for _, arch := range []string{"sm_80", "sm_90a"} {
		programs, err := kernels.RouterPrograms(arch)
		if err != nil {
			t.Fatal(err)
		}
		images, _, err := b.Build(t.Context(), programs)
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range kernels.RouterVariants() {
			usage := images[i].Usage()
			if len(usage) != 1 || usage[0].Registers == 0 {
				t.Fatalf("%s for %s: the compiler's log does not tell what it uses: %q", v.Kernel, arch, images[i].Log)
			}
			u := usage[0]
			t.Logf("%s %v %s: %d registers, %d bytes of shared memory", v.Kernel, v.Defines, arch, u.Registers, u.SharedBytes)
			limit := 48 << 10
			if arch == "sm_90a" {
				limit += 1 << 10
			}
			if u.StackBytes+u.SpillLoadBytes+u.SpillStoreBytes > 0 || u.Registers > v.MaxRegisters || u.SharedBytes > limit {
				t.Errorf("%s %v %s: %+v", v.Kernel, v.Defines, arch, u)
			}
		}
	}
}

// BenchmarkRouterNets measures a net as it runs in the head's graph, at the size of published ones for Qwen3-0.6B.
func BenchmarkRouterNets(b *testing.B) {
	r := newNetRig(b)
	if r.Simulated {
		b.Skip("skip: no CUDA driver")
	}
	major, _, err := r.Context.Device().ComputeCapability()
	if err != nil {
		b.Fatal(err)
	}
	if major >= 9 {
		r.set = r.set.Overlapped()
	}
	for _, kind := range []router.Kind{router.R2R, router.CITER, router.CoLLM} {
		s := router.Sidecar{Format: 1, Kind: kind, Model: "m", HiddenSize: 1024}
		shape := router.Shape{Width: 1024, Inner: 4096, Blocks: 6}
		if kind == router.R2R {
			s.LogitsSize = 100
		} else {
			shape = router.Shape{Width: 2048, Inner: 1024}
		}
		d := r.put(router.Random("net", s, shape, model.BF16, 6).Fold())
		for _, rows := range []int{1, 2, 4, 8, 16, 64} {
			b.Run(fmt.Sprintf("%s/rows=%d", kind, rows), func(b *testing.B) {
				_, _, in := r.rowsFor(d.net, rows, 0, 0, func(int) bool { return false })
				graph, err := r.Stream.Capture(driver.CaptureRelaxed, func() error { return r.run(d, in, rows, 0, kernels.RouterAhead) })
				if err != nil {
					b.Fatal(err)
				}
				defer graph.Close()
				var times []time.Duration
				for b.Loop() {
					times = append(times, r.timed(b, graph))
				}
				slices.Sort(times)
				b.ReportMetric(float64(times[len(times)/2].Nanoseconds())/1e3, "us")
			})
		}
	}
}

// timed runs a graph between two events.
func (r *netRig) timed(b *testing.B, graph *driver.GraphExec) time.Duration {
	var marks [2]*driver.Event
	for i := range marks {
		var err error
		if marks[i], err = r.Context.NewEvent(driver.EventOptions{Timing: true}); err != nil {
			b.Fatal(err)
		}
		defer marks[i].Close()
	}
	if err := errors.Join(marks[0].Record(r.Stream), graph.Launch(r.Stream), marks[1].Record(r.Stream), marks[1].Wait()); err != nil {
		b.Fatal(err)
	}
	d, err := marks[1].Since(marks[0])
	if err != nil {
		b.Fatal(err)
	}
	return d
}
