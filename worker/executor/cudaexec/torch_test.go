package cudaexec

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/worker/model"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// torchSeed is the seed of the reference's weights, torchRatio how much further from float32 than PyTorch in bfloat16 ours
// may be.
const (
	torchSeed  = 11
	torchRatio = 1.5
)

// torchCase is one entry of cuda/torchref/cases.json.
type torchCase struct {
	Model  string `json:"model"`
	Layers int    `json:"layers"`
	At     []int  `json:"at"`
	// Context is how many ids stand before those that are compared.
	Context int `json:"context"`
	// Config and Vocab are those of a model that the catalogue does not have.
	Config json.RawMessage `json:"config"`
	Vocab  int             `json:"vocab"`
}

// shape is the whole model's.
func (c *torchCase) shape(t *testing.T) (model.Config, int) {
	t.Helper()
	if c.Config == nil {
		return catalogued(t, c.Model)
	}
	m, err := model.ParseConfig(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	return m, c.Vocab
}

// reference is a file that cuda/torchref/reference.py wrote.
type reference struct {
	t     *testing.T
	shard *model.Shard
}

// rows reads a tensor as rows of width values.
func (r *reference) rows(name string, width int) [][]float32 {
	r.t.Helper()
	tensor, ok := r.shard.Tensors[name]
	if !ok {
		r.t.Fatalf("the reference has no %s", name)
	}
	flat, err := tensor.Float32()
	if err != nil {
		r.t.Fatal(err)
	}
	var out [][]float32
	for at := 0; at+width <= len(flat); at += width {
		out = append(out, flat[at:at+width])
	}
	return out
}

// Against transformers on the same hash weights: the state after each of some layers, logits and entropy. The directory of
// references is in TRCTL_TORCH_REF.
func TestTransformers(t *testing.T) {
	dir := os.Getenv("TRCTL_TORCH_REF")
	if dir == "" {
		t.Skip("skip: TRCTL_TORCH_REF names no references; cuda/torchref/reference.py writes them")
	}
	text, err := os.ReadFile("../../../cuda/torchref/cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []torchCase
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		t.Run(c.Model, func(t *testing.T) {
			raw, err := os.ReadFile(filepath.Join(dir, c.Model+".safetensors"))
			if err != nil {
				t.Fatal(err)
			}
			shard, err := model.ParseShard(c.Model, raw)
			if err != nil {
				t.Fatal(err)
			}
			compareWithTorch(t, c, &reference{t, shard})
		})
	}
}

func compareWithTorch(t *testing.T, c torchCase, ref *reference) {
	d, _ := openTest(t)
	m, vocab := c.shape(t)
	idsTensor := ref.shard.Tensors["ids"]
	ids := make([]int32, idsTensor.Elems())
	for i := range ids {
		ids[i] = int32(binary.LittleEndian.Uint32(idsTensor.Bytes[4*i:]))
	}
	positions := len(ids) - c.Context
	for _, n := range c.At {
		// A dummy model's weights depend on their names alone, so a model that is cut after n layers is the same up to there.
		cut := m
		cut.Layers = n
		e := build(t, d, Config{Vocab: vocab, MaxSlots: 1, MaxContext: roundUp(len(ids), 64), MaxTokens: 512}, Dummy(c.Model, cut, torchSeed))
		chunks := []int{positions}
		if n == c.Layers {
			chunks = []int{positions, 7, 1}
		}
		for _, chunk := range chunks {
			logits, hidden, entropy := allOutputs(t, e, ids, c.Context, chunk)
			at := fmt.Sprintf("%s after %d layers in chunks of %d", c.Model, n, chunk)
			within(t, at+", hidden", distance(hidden, ref.rows(fmt.Sprintf("hidden.%d", n), m.Hidden)),
				distance(ref.rows(fmt.Sprintf("bf16.hidden.%d", n), m.Hidden), ref.rows(fmt.Sprintf("hidden.%d", n), m.Hidden)))
			if n < c.Layers {
				continue
			}
			want := ref.rows("logits", vocab)
			d := distance(logits, want)
			within(t, at+", logits", d, distance(ref.rows("bf16.logits", vocab), want))
			truth := ref.rows("entropy", positions)
			within(t, at+", entropy", deviation(entropy, truth[0]), deviation(ref.rows("bf16.entropy", positions)[0], truth[0]))
			sameWords(t, logits, want, roundingMargin(d, want))
		}
		if err := e.Shutdown(); err != nil {
			t.Fatal(err)
		}
	}
}

// within reports our error beside PyTorch's, and fails when it is too large.
func within(t *testing.T, what string, ours, torch float64) {
	t.Helper()
	t.Logf("%s: our error %.3g, PyTorch's in bfloat16 %.3g, ratio %.2f", what, ours, torch, ours/torch)
	if !(ours <= torchRatio*torch) {
		t.Errorf("%s: our error %.3g is more than %.1f times PyTorch's %.3g", what, ours, torchRatio, torch)
	}
}

// deviation is the root of the mean squared difference.
func deviation(a, b []float32) float64 {
	sum := 0.0
	for i := range b {
		d := float64(a[i]) - float64(b[i])
		sum += d * d
	}
	return math.Sqrt(sum / float64(len(b)))
}

// allOutputs is allLogits with entropies, for the positions behind a context.
func allOutputs(t *testing.T, e *Executor, ids []int32, context, chunk int) (logits, hidden [][]float32, entropy []float32) {
	t.Helper()
	s := newSequence(t, e, sampling.Params{}, 0)
	defer e.Close(s.slot)
	var r step.Result
	for at := 0; at < len(ids); {
		row := step.Row{Logprobs: -1}
		if at < context {
			row.Tokens = ids[at:min(at+e.cfg.MaxTokens, context)]
		} else {
			row.Tokens = ids[at:min(at+chunk, len(ids))]
			row.Sample, row.Want = 1<<len(row.Tokens)-1, step.FLogits|step.FHidden|step.FEntropy
		}
		at += len(row.Tokens)
		for _, o := range s.feed(row, &r) {
			logits = append(logits, append([]float32(nil), o.Logits...))
			hidden = append(hidden, append([]float32(nil), o.Hidden...))
			entropy = append(entropy, o.Entropy)
		}
	}
	return logits, hidden, entropy
}
