package cudaexec

import (
	"encoding/json"
	"math"
	"runtime"
	"testing"

	"github.com/sourcegraph/conc/iter"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/models/dummy"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/executor/cpuexec"
	"github.com/tokenrouter/tokenrouter/worker/model"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// sequence feeds one slot of any executor; it takes pages [first, ...) in order.
type sequence struct {
	tb     testing.TB
	e      executor.Executor
	slot   step.Slot
	length int
	pages  int
	first  int
}

func newSequence(tb testing.TB, e executor.Executor, p sampling.Params, first int) *sequence {
	tb.Helper()
	s, err := e.Open(executor.SeqConfig{Sampling: p})
	if err != nil {
		tb.Fatal(err)
	}
	return &sequence{tb: tb, e: e, slot: s, first: first}
}

// grow adds the row and its patches to a batch.
func (s *sequence) grow(b *step.Batch, r step.Row) {
	r.Slot, r.Start = s.slot, int32(s.length)
	s.length += len(r.Tokens)
	for ; s.pages*s.e.Info().PageSize < s.length; s.pages++ {
		b.Patches = append(b.Patches, step.PagePatch{Slot: s.slot, Index: int32(s.pages), Page: int32(s.first + s.pages)})
	}
	b.Rows = append(b.Rows, r)
}

// runBatch launches and waits.
func runBatch(tb testing.TB, e executor.Executor, b *step.Batch, r *step.Result) {
	tb.Helper()
	ticket, err := e.Launch(b)
	if err != nil {
		tb.Fatal(err)
	}
	if err := e.Wait(tb.Context(), ticket, r); err != nil {
		tb.Fatal(err)
	}
}

// feed runs one row alone and returns its outputs, valid until the next call.
func (s *sequence) feed(r step.Row, res *step.Result) []step.Out {
	s.tb.Helper()
	var b step.Batch
	s.grow(&b, r)
	runBatch(s.tb, s.e, &b, res)
	return res.Out
}

// allLogits feeds ids in chunks and returns logits and hidden vectors of every position.
func allLogits(tb testing.TB, e executor.Executor, ids []int32, chunk int) (logits, hidden [][]float32) {
	tb.Helper()
	s := newSequence(tb, e, sampling.Params{}, 0)
	defer e.Close(s.slot)
	var r step.Result
	for at := 0; at < len(ids); at += chunk {
		part := ids[at:min(at+chunk, len(ids))]
		row := step.Row{Tokens: part, Sample: 1<<len(part) - 1, Want: step.FLogits | step.FHidden, Logprobs: -1}
		for _, o := range s.feed(row, &r) {
			logits = append(logits, append([]float32(nil), o.Logits...))
			hidden = append(hidden, append([]float32(nil), o.Hidden...))
		}
	}
	return logits, hidden
}

// distance is ‖a−b‖/‖b‖ over all rows.
func distance(a, b [][]float32) float64 {
	var d, n float64
	for i := range b {
		if len(a[i]) != len(b[i]) {
			return math.Inf(1)
		}
		for j := range b[i] {
			x, y := float64(a[i][j]), float64(b[i][j])
			d += (x - y) * (x - y)
			n += y * y
		}
	}
	return math.Sqrt(d / n)
}

// bestTwo returns the arg max of a row and its margin.
func bestTwo(z []float32) (best int, margin float32) {
	second := float32(math.Inf(-1))
	for i, v := range z {
		if v > z[best] {
			best, second = i, z[best]
		} else if i != best && v > second {
			second = v
		}
	}
	return best, z[best] - second
}

// configJSON is a config.json that gives the config again.
func configJSON(tb testing.TB, c model.Config) []byte {
	tb.Helper()
	b, err := json.Marshal(map[string]any{
		"architectures": []string{string(c.Architecture)}, "vocab_size": c.VocabSize, "hidden_size": c.Hidden, "num_hidden_layers": c.Layers,
		"num_attention_heads": c.Heads, "num_key_value_heads": c.KVHeads, "head_dim": c.HeadDim, "intermediate_size": c.FFN,
		"max_position_embeddings": c.MaxContext, "rms_norm_eps": c.NormEps, "rope_theta": c.RopeTheta, "hidden_act": "silu",
		"tie_word_embeddings": c.TieEmbeddings,
	})
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// dummyTensors makes parameters with Go's side of the recipe.
func dummyTensors(c *model.Config, params []model.Param, seed uint64) []model.Tensor {
	out := make([]model.Tensor, len(params))
	for i, p := range params {
		n := 1
		for _, d := range p.Shape {
			n *= d
		}
		values, recipe := make([]uint16, n), dummy.Of(seed, p.Name, p.Shape)
		const block = 1 << 20
		starts := make([]int, (n+block-1)/block)
		iter.ForEachIdx(starts, func(j int, _ *int) {
			at := j * block
			recipe.Fill(values[at:min(at+block, n)], uint64(at))
		})
		out[i] = model.Tensor{Name: p.Name, DType: model.BF16, Shape: p.Shape, Bytes: driver.Bytes(values)}
	}
	return out
}

// dummyCheckpoint is a dummy model as a checkpoint in memory.
func dummyCheckpoint(tb testing.TB, c model.Config, seed uint64) *model.Checkpoint {
	tb.Helper()
	k := model.FromTensors("dummy", c, dummyTensors(&c, c.Params(), seed))
	if err := k.Check(); err != nil {
		tb.Fatal(err)
	}
	return k
}

// newCPU is the truth for a checkpoint.
func newCPU(tb testing.TB, c cpuexec.Config, k *model.Checkpoint) *cpuexec.Executor {
	tb.Helper()
	c.Workers = runtime.GOMAXPROCS(0)
	e, err := cpuexec.New(c, k)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := e.Shutdown(); err != nil {
			tb.Error(err)
		}
	})
	return e
}
