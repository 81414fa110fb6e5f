package router

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/worker/model"
)

// close is how far scores may be apart that are computed in another order.
const closeScore = 1e-5

// table is an embedding in memory.
type table struct {
	width  int
	values []float32
}

func (t table) Row(dst []float32, id int) { copy(dst, t.values[id*t.width:(id+1)*t.width]) }

func (t table) of(id int32) []float32 { return t.values[int(id)*t.width : (int(id)+1)*t.width] }

// golden is what PyTorch computed.
type golden struct {
	rows  []Row
	shard *model.Shard
}

func readGolden(tb testing.TB) *golden {
	tb.Helper()
	raw, err := os.ReadFile("testdata/golden.safetensors")
	if err != nil {
		tb.Fatal(err)
	}
	shard, err := model.ParseShard("golden", raw)
	if err != nil {
		tb.Fatal(err)
	}
	g := &golden{shard: shard}
	hidden, logits, token := g.floats(tb, "hidden"), g.floats(tb, "logits"), shard.Tensors["token"]
	n := token.Elems()
	h, k := len(hidden)/n, len(logits)/n
	for i := range n {
		g.rows = append(g.rows, Row{Hidden: hidden[i*h : (i+1)*h], Top: logits[i*k : (i+1)*k],
			Token: int32(binary.LittleEndian.Uint32(token.Bytes[4*i:]))})
	}
	return g
}

func (g *golden) floats(tb testing.TB, name string) []float32 {
	tb.Helper()
	t, ok := g.shard.Tensors[name]
	if !ok {
		return nil
	}
	v, err := t.Float32()
	if err != nil {
		tb.Fatal(err)
	}
	return v
}

func names() []string { return []string{"r2r", "r2r-normalized", "r2r-bf16", "citer", "co-llm"} }

func read(tb testing.TB, name string) *Checkpoint {
	tb.Helper()
	c, err := Read("testdata/" + name + ".json")
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// TestPyTorch: the folded net and the unfolded reference give what PyTorch gives, with
// batch norms by their running statistics and dropout off.
func TestPyTorch(t *testing.T) {
	g := readGolden(t)
	for _, name := range names() {
		t.Run(name, func(t *testing.T) {
			c := read(t, name)
			embed := table{c.HiddenSize, g.floats(t, name+".embedding")}
			want, got := g.floats(t, name), make([]float32, len(g.rows))
			if slices.Max(want)-slices.Min(want) < 0.2 {
				t.Errorf("scores from %v to %v show little", slices.Min(want), slices.Max(want))
			}
			c.Fold().NewScorer(embed, nil, 4).Score(got, g.rows)
			for i := range g.rows {
				var vector []float32
				if c.Kind == R2R {
					vector = embed.of(g.rows[i].Token)
				}
				slow := c.Reference(&g.rows[i], vector)
				if d := math.Abs(float64(got[i]) - float64(want[i])); !(d <= closeScore) {
					t.Errorf("row %d: %v, PyTorch %v", i, got[i], want[i])
				}
				if d := math.Abs(slow - float64(want[i])); !(d <= closeScore) {
					t.Errorf("row %d: unfolded %v, PyTorch %v", i, slow, want[i])
				}
			}
		})
	}
}

// random makes a checkpoint of a kind, with embedding and rows for it.
func random(tb testing.TB, s Sidecar, width, inner, blocks, vocab, rows int, dtype model.DType) (*Checkpoint, table, []Row) {
	tb.Helper()
	c := Random("random", s, Shape{width, inner, blocks}, dtype, 7)
	r := rand.New(rand.NewPCG(3, uint64(width)))
	normals := func(n int, scale float64) []float32 {
		out := make([]float32, n)
		for i := range out {
			out[i] = float32(r.NormFloat64() * scale)
		}
		return out
	}
	embed := table{s.HiddenSize, normals(vocab*s.HiddenSize, 0.05)}
	list := make([]Row, rows)
	for i := range list {
		top := normals(s.LogitsSize, 5)
		slices.SortFunc(top, func(a, b float32) int { return int(math.Copysign(1, float64(b-a))) })
		list[i] = Row{Hidden: normals(s.HiddenSize, 2), Top: top, Token: int32(r.IntN(vocab))}
	}
	return c, embed, list
}

func sidecar(kind Kind, hidden int) Sidecar {
	s := Sidecar{Format: 1, Kind: kind, Model: "random", HiddenSize: hidden}
	if kind == R2R {
		s.LogitsSize = 100
	}
	return s
}

// TestFolded: folding changes scores by rounding alone.
func TestFolded(t *testing.T) {
	normal := sidecar(R2R, 40)
	normal.NormalizeInput = true
	for _, s := range []Sidecar{sidecar(R2R, 128), normal, sidecar(CITER, 72), sidecar(CoLLM, 33)} {
		for _, dtype := range []model.DType{model.F32, model.BF16} {
			c, embed, rows := random(t, s, 48, 100, 2, 200, 6, dtype)
			got := make([]float32, len(rows))
			c.Fold().NewScorer(embed, nil, 8).Score(got, rows)
			for i := range rows {
				if want := c.Reference(&rows[i], embed.of(rows[i].Token)); !(math.Abs(float64(got[i])-want) <= closeScore) {
					t.Errorf("%s %s, normalized %v, row %d: %v, unfolded %v", s.Kind, dtype, s.NormalizeInput, i, got[i], want)
				}
			}
		}
	}
}

// TestSmallVariances: what keeps a norm from dividing by zero counts where variances are
// as small as it, folded or not.
func TestSmallVariances(t *testing.T) {
	normal := sidecar(R2R, 40)
	normal.NormalizeInput = true
	for _, s := range []Sidecar{normal, sidecar(CITER, 72)} {
		c, embed, rows := random(t, s, 48, 100, 2, 200, 6, model.F32)
		if variance, ok := c.tensors["mlp.1.running_var"]; ok {
			for at := 0; at < len(variance.Bytes); at += 4 {
				binary.LittleEndian.PutUint32(variance.Bytes[at:], math.Float32bits(NormEps/2))
			}
		}
		for i := range rows {
			for j := range rows[i].Hidden {
				rows[i].Hidden[j] *= 1e-3
			}
		}
		got := make([]float32, len(rows))
		c.Fold().NewScorer(embed, nil, 8).Score(got, rows)
		for i := range rows {
			if want := c.Reference(&rows[i], embed.of(rows[i].Token)); !(math.Abs(float64(got[i])-want) <= closeScore) {
				t.Errorf("%s, row %d: %v, unfolded %v", s.Kind, i, got[i], want)
			}
		}
	}
}

// TestTrap22RowsOnTheirOwn: the score of a row is the same alone, in any batch, and at
// any place in it, to the last bit; and scores stay when the scorer goes on.
func TestTrap22RowsOnTheirOwn(t *testing.T) {
	for _, kind := range Kinds() {
		c, embed, rows := random(t, sidecar(kind, 48), 32, 64, 2, 120, 13, model.F32)
		n := c.Fold()
		alone := make([]float32, len(rows))
		one := n.NewScorer(embed, nil, 1)
		for i := range rows {
			one.Score(alone[i:i+1], rows[i:i+1])
		}
		for _, batch := range []int{2, 5, 8, 13} {
			got := make([]float32, len(rows))
			n.NewScorer(embed, nil, batch).Score(got, rows)
			if !slices.Equal(got, alone) {
				t.Errorf("%s in batches of %d: %v, alone %v", kind, batch, got, alone)
			}
		}
		slices.Reverse(rows)
		got := make([]float32, len(rows))
		n.NewScorer(embed, nil, 8).Score(got, rows)
		slices.Reverse(got)
		if !slices.Equal(got, alone) {
			t.Errorf("%s in reverse: %v, alone %v", kind, got, alone)
		}
	}
}

// TestTrap7CandidateCounts: r2r looks at the candidate, the others do not.
func TestTrap7CandidateCounts(t *testing.T) {
	for _, kind := range Kinds() {
		c, embed, rows := random(t, sidecar(kind, 48), 32, 64, 1, 120, 1, model.F32)
		s := c.Fold().NewScorer(embed, nil, 2)
		other := rows[0]
		other.Token = (other.Token + 1) % 120
		got := make([]float32, 2)
		s.Score(got, []Row{rows[0], other})
		if (got[0] != got[1]) != (kind == R2R) {
			t.Errorf("%s: %v for two candidates", kind, got)
		}
	}
}

func TestRefused(t *testing.T) {
	good := read(t, "r2r")
	change := func(f func(map[string]model.Tensor)) error {
		all := map[string]model.Tensor{}
		for _, x := range good.Tensors() {
			all[x.Name] = x
		}
		f(all)
		var list []model.Tensor
		for _, x := range all {
			list = append(list, x)
		}
		_, err := FromTensors("changed", good.Sidecar, list)
		return err
	}
	put := func(name string, like string) func(map[string]model.Tensor) {
		return func(m map[string]model.Tensor) { x := m[like]; x.Name = name; m[name] = x }
	}
	const up = "backbone.blocks.1.mlp.0.weight"
	tests := []struct {
		name   string
		change func(map[string]model.Tensor)
		is     error
		says   string
	}{
		{"a tensor too few", func(m map[string]model.Tensor) { delete(m, up) }, ErrBad, "backbone.blocks.1"},
		{"no blocks", func(m map[string]model.Tensor) { delete(m, "backbone.blocks.0.mlp.0.weight") }, ErrBad, "missing"},
		{"a tensor too many", put("extra", up), ErrBad, "extra"},
		{"its own embeddings", put("token_embeddings.weight", up), ErrBad, "token_embeddings.weight"},
		{"other widths", put("backbone.blocks.1.dim_change.weight", up), ErrUnsupported, "different widths"},
		{"positions", put("backbone.position_embedding", up), ErrUnsupported, "position"},
		{"another type", func(m map[string]model.Tensor) { x := m[up]; x.DType = model.I32; m[up] = x }, ErrUnsupported, "I32"},
		{"another shape", func(m map[string]model.Tensor) { x := m[up]; x.Shape = []int{16, 64}; m[up] = x }, ErrBad, "[64 16]"},
		{"a vector for a matrix", func(m map[string]model.Tensor) {
			x := m["backbone.input_projection.weight"]
			x.Shape = []int{256}
			m[x.Name] = x
		}, ErrBad, "input_projection"},
		{"not finite", func(m map[string]model.Tensor) {
			x := m[up]
			x.Bytes = slices.Clone(x.Bytes)
			binary.LittleEndian.PutUint32(x.Bytes[8:], math.Float32bits(float32(math.NaN())))
			m[up] = x
		}, ErrBad, "finite"},
	}
	for _, tc := range tests {
		if err := change(tc.change); !errors.Is(err, tc.is) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	if err := change(func(map[string]model.Tensor) {}); err != nil {
		t.Errorf("unchanged: %v", err)
	}
}

// TestTrap21DeferIsOneRow: co-llm's extra row is a vector of its own, under either shape.
func TestTrap21DeferIsOneRow(t *testing.T) {
	c := read(t, "co-llm")
	x := c.Tensors()[0]
	for _, shape := range [][]int{{24}, {1, 24}} {
		x.Shape = shape
		if _, err := FromTensors("c", c.Sidecar, []model.Tensor{x}); err != nil {
			t.Error(err)
		}
	}
	x.Shape = []int{24, 1}
	if _, err := FromTensors("c", c.Sidecar, []model.Tensor{x}); !errors.Is(err, ErrBad) {
		t.Error(err)
	}
}

func TestCheck(t *testing.T) {
	s := sidecar(R2R, 64)
	for _, tc := range []struct {
		hidden, vocab int
		ok            bool
	}{{64, 749, true}, {64, 100, true}, {64, 99, false}, {128, 749, false}} {
		if err := s.Check(tc.hidden, tc.vocab); (err == nil) != tc.ok {
			t.Errorf("%+v: %v", tc, err)
		}
	}
}

func TestSidecar(t *testing.T) {
	const rest = `"model":"m","hidden_size":8`
	tests := []struct{ text, says string }{
		{`{"format":1,"kind":"co-llm",` + rest + `}`, ""},
		{`{"format":1,"kind":"r2r","logits_size":100,"normalize_input":true,"threshold":0.4,"source":"x",` + rest + `}`, ""},
		{`{"format":1,"kind":"citer","threshold":null,` + rest + `}`, ""},
		{`{"format":1,"kind":"citer","treshold":0.5,` + rest + `}`, `did you mean "threshold"?`},
		{`{"format":1,"kind":"citer","Format":1,` + rest + `}`, `did you mean "format"?`},
		{`{"format":1,"kind":"citer","colour":0.5,` + rest + `}`, `unknown key "colour"`},
		{`{"format":1,"kind":"citer","kind":"r2r",` + rest + `}`, "duplicate"},
		{`{"kind":"citer",` + rest + `}`, "format is missing"},
		{`{"format":2,"kind":"citer",` + rest + `}`, "expected 1"},
		{`{"format":1,"kind":"mlp",` + rest + `}`, `found "mlp"`},
		{`{"format":1,"kind":"r2r",` + rest + `}`, "logits_size"},
		{`{"format":1,"kind":"r2r","logits_size":129,` + rest + `}`, "logits_size"},
		{`{"format":1,"kind":"citer","normalize_input":true,` + rest + `}`, "r2r alone"},
		{`{"format":1,"kind":"citer","normalize_input":1,` + rest + `}`, "true or false"},
		{`{"format":1,"kind":"citer","threshold":1.5,` + rest + `}`, "0 to 1"},
		{`{"format":1,"kind":"citer","threshold":"1",` + rest + `}`, "a number"},
		{`{"format":1,"kind":"citer","model":"","hidden_size":8}`, "model"},
		{`{"format":1,"kind":"citer","model":"m","hidden_size":0}`, "hidden_size"},
		{`{"format":1,"kind":"citer","model":"m","hidden_size":99999999999}`, "too large"},
		{`[1]`, "object"},
		{`{`, "JSON"},
	}
	for _, tc := range tests {
		s, err := ParseSidecar([]byte(tc.text))
		if (err == nil) != (tc.says == "") || err != nil && (!errors.Is(err, ErrBad) || !strings.Contains(err.Error(), tc.says)) {
			t.Errorf("%s: %v, want %q", tc.text, err, tc.says)
		}
		if err != nil {
			continue
		}
		text, err := s.Encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseSidecar(text)
		if err != nil || fmt.Sprint(again.Kind, again.HiddenSize, again.LogitsSize) != fmt.Sprint(s.Kind, s.HiddenSize, s.LogitsSize) {
			t.Errorf("%s: read back as %+v, %v", text, again, err)
		}
	}
}

func FuzzSidecar(f *testing.F) {
	f.Add([]byte(`{"format":1,"kind":"r2r","logits_size":100,"normalize_input":false,"threshold":0.5,"source":"x","model":"m","hidden_size":8}`))
	f.Add([]byte(`{"format":1}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := ParseSidecar(text)
		if err != nil {
			return
		}
		text, err = s.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseSidecar(text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	})
}

func TestEncode(t *testing.T) {
	c := read(t, "r2r")
	sidecar, weights, err := c.Encode()
	if err != nil {
		t.Fatal(err)
	}
	again, err := Parse("r2r", sidecar, weights)
	if err != nil {
		t.Fatal(err)
	}
	if *again.Threshold != 0.35 || len(again.Tensors()) != len(c.Tensors()) {
		t.Errorf("read back %+v", again.Sidecar)
	}
}

// BenchmarkScore: a published net's size at Qwen3-0.6B, and one for the trio, with plain loops.
func BenchmarkScore(b *testing.B) {
	for _, size := range []struct {
		name                                string
		hidden, width, inner, blocks, batch int
	}{{"trio", 128, 256, 1024, 2, 1}, {"trio", 128, 256, 1024, 2, 8}, {"qwen3-0.6b", 1024, 1024, 4096, 6, 1}} {
		b.Run(fmt.Sprintf("%s/%d", size.name, size.batch), func(b *testing.B) {
			c, embed, rows := random(b, sidecar(R2R, size.hidden), size.width, size.inner, size.blocks, 200, size.batch, model.F32)
			s := c.Fold().NewScorer(embed, nil, size.batch)
			got := make([]float32, len(rows))
			b.ReportAllocs()
			for b.Loop() {
				s.Score(got, rows)
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*size.batch), "us/row")
		})
	}
}
