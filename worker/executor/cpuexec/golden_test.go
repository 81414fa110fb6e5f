package cpuexec

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/models"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/model"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

const goldenDir = "../../../models/testdata/golden/"

// trioVocab is the number of real ids of the tiny trio.
const trioVocab = 749

func newTrio(t testing.TB, name string, cfg Config) *Executor {
	t.Helper()
	fsys, ok := models.FS(name)
	if !ok {
		t.Fatalf("no model %s", name)
	}
	k, err := model.OpenFS(fsys, name)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	cfg.Vocab = trioVocab
	return started(t, cfg, k)
}

// run launches a batch and waits for it.
func run(t testing.TB, e *Executor, b *step.Batch, r *step.Result) {
	t.Helper()
	ticket, err := e.Launch(b)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Wait(context.Background(), ticket, r); err != nil {
		t.Fatal(err)
	}
}

// patches gives a slot the pages [first, first+n) in order.
func patches(s step.Slot, first, n int) []step.PagePatch {
	out := make([]step.PagePatch, n)
	for i := range out {
		out[i] = step.PagePatch{Slot: s, Index: int32(i), Page: int32(first + i)}
	}
	return out
}

func open(t testing.TB, e *Executor, p sampling.Params) step.Slot {
	t.Helper()
	s, err := e.Open(executor.SeqConfig{Sampling: p})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func readGolden(t *testing.T, name string) *model.Shard {
	t.Helper()
	b, err := os.ReadFile(goldenDir + name + ".golden.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	s, err := model.ParseShard(name, b)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func int32s(t model.Tensor) []int32 {
	out := make([]int32, t.Elems())
	for i := range out {
		out[i] = int32(binary.LittleEndian.Uint32(t.Bytes[4*i:]))
	}
	return out
}

// distance is ‖a−b‖/‖b‖.
func distance(a, b []float32) float64 {
	var d, n float64
	for i := range b {
		x, y := float64(a[i]), float64(b[i])
		d += (x - y) * (x - y)
		n += y * y
	}
	return math.Sqrt(d / n)
}

func TestGoldenLogitsAndHidden(t *testing.T) {
	for _, name := range models.Names() {
		t.Run(name, func(t *testing.T) {
			golden := readGolden(t, name)
			for i := range 2 {
				e := newTrio(t, name, Config{MaxSlots: 1, MaxContext: 512})
				hidden := map[int][]float32{}
				e.fwd.trace = func(layer int, x []float32) { hidden[layer] = append(hidden[layer], x...) }
				ids := int32s(golden.Tensors[fmt.Sprintf("ids%d", i)])
				want, err := floats(golden.Tensors[fmt.Sprintf("logits%d", i)])
				if err != nil {
					t.Fatal(err)
				}
				got, last := allLogits(t, e, ids)
				if d := distance(got, want); !(d < 1e-3) {
					t.Errorf("logits %d: distance %.2g", i, d)
				} else {
					t.Logf("logits %d: distance %.2g", i, d)
				}
				if i == 0 {
					hidden[e.info.Layers] = last // the reference has the final norm applied
					compareHidden(t, golden, hidden, e.info.Hidden)
				}
			}
		})
	}
}

func floats(t model.Tensor) ([]float32, error) { return t.Float32() }

// allLogits feeds ids in chunks and returns the logits and head inputs of all positions.
func allLogits(t *testing.T, e *Executor, ids []int32) (logits, hidden []float32) {
	s := open(t, e, sampling.Params{})
	var r step.Result
	for at := 0; at < len(ids); at += 50 {
		chunk := ids[at:min(at+50, len(ids))]
		b := &step.Batch{Rows: []step.Row{{Slot: s, Start: int32(at), Tokens: chunk, Sample: 1<<len(chunk) - 1,
			Want: step.FLogits | step.FHidden, Logprobs: -1}}}
		if at == 0 {
			b.Patches = patches(s, 0, 8)
		}
		run(t, e, b, &r)
		for i := range r.Out {
			logits = append(logits, r.Out[i].Logits...)
			hidden = append(hidden, r.Out[i].Hidden...)
		}
	}
	return logits, hidden
}

func compareHidden(t *testing.T, golden *model.Shard, hidden map[int][]float32, c int) {
	for layer, x := range hidden {
		want, err := floats(golden.Tensors[fmt.Sprintf("hidden0.%d", layer)])
		if err != nil {
			t.Fatal(err)
		}
		var got []float32
		for at := 0; at < len(x)/c; at += 8 {
			got = append(got, x[at*c:(at+1)*c]...)
		}
		if len(got) != len(want) {
			t.Fatalf("layer %d: %d values, want %d", layer, len(got), len(want))
		}
		if d := distance(got, want); !(d < 1e-4) {
			t.Errorf("hidden %d: distance %.2g", layer, d)
		}
	}
}

type greedyText struct {
	Prompt []int32 `json:"prompt_ids"`
	Output []int32 `json:"output_ids"`
}

func readGreedy(t testing.TB, name string) []greedyText {
	t.Helper()
	b, err := os.ReadFile(goldenDir + name + ".greedy.json")
	if err != nil {
		t.Fatal(err)
	}
	var texts []greedyText
	if err := json.Unmarshal(b, &texts); err != nil {
		t.Fatal(err)
	}
	return texts
}

// TestGoldenGreedy decodes all problems together, so that it covers batches too.
func TestGoldenGreedy(t *testing.T) {
	for _, name := range models.Names() {
		t.Run(name, func(t *testing.T) {
			texts := readGreedy(t, name)
			e := newTrio(t, name, Config{MaxSlots: len(texts), MaxContext: 512, PageSize: 16})
			got := greedy(t, e, texts)
			for i, text := range texts {
				if !slices.Equal(got[i], text.Output) {
					t.Errorf("text %d:\n got %v\nwant %v", i, got[i], text.Output)
				}
			}
		})
	}
}

// greedy continues every prompt until it is as long as its reference.
func greedy(t testing.TB, e *Executor, texts []greedyText) [][]int32 {
	out := make([][]int32, len(texts))
	slots := make([]step.Slot, len(texts))
	next := make([][]int32, len(texts))
	start := make([]int32, len(texts))
	var first []step.PagePatch
	for i, text := range texts {
		slots[i] = open(t, e, sampling.Params{})
		next[i] = text.Prompt
		first = append(first, patches(slots[i], i*32, 32)...)
	}
	var r step.Result
	for n := uint64(0); ; n++ {
		b := step.Batch{Step: n, Patches: first}
		first = nil
		var who []int
		for i := range texts {
			if len(out[i]) < len(texts[i].Output) {
				b.Rows = append(b.Rows, step.Row{Slot: slots[i], Start: start[i], Tokens: next[i], Sample: 1, Logprobs: -1})
				who = append(who, i)
			}
		}
		if len(b.Rows) == 0 {
			return out
		}
		run(t, e, &b, &r)
		for j, i := range who {
			start[i] += int32(len(next[i]))
			out[i] = append(out[i], r.Out[j].Token)
			next[i] = []int32{r.Out[j].Token}
		}
	}
}
