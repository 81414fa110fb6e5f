package cpuexec

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/tokenrouter/tokenrouter/worker/model"
)

// TestFamiliesAgainstReferenceImplementation compares hidden states and logits with
// those that testdata/families.py stored: one family each, with bfloat16, float16
// and float32 weights, tied and own heads, plain and scaled rotation.
func TestFamiliesAgainstReferenceImplementation(t *testing.T) {
	for _, name := range []string{"qwen3", "qwen2", "llama2", "llama3"} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join("testdata/families", name)
			k, err := model.OpenDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer k.Close()
			b, err := os.ReadFile(filepath.Join(dir, "golden.safetensors"))
			if err != nil {
				t.Fatal(err)
			}
			golden, err := model.ParseShard(name, b)
			if err != nil {
				t.Fatal(err)
			}
			vocab, hidden := k.Config.VocabSize, k.Config.Hidden
			e := started(t, Config{Vocab: vocab, PageSize: 16, MaxSlots: 1}, k)
			states := map[int][]float32{}
			e.fwd.trace = func(layer int, x []float32) { states[layer] = append(states[layer], x...) }
			logits, last := allLogits(t, e, int32s(golden.Tensors["ids"]))
			states[k.Config.Layers] = last // the reference has the final norm applied
			compareRows(t, "logits", logits, vocab, 6, golden.Tensors["logits"])
			for layer, x := range states {
				label := fmt.Sprintf("hidden.%d", layer)
				compareRows(t, label, x, hidden, 15, golden.Tensors[label])
			}
		})
	}
}

// compareRows compares every n-th row of width c with the stored ones.
func compareRows(t *testing.T, label string, x []float32, c, n int, stored model.Tensor) {
	t.Helper()
	want, err := stored.Float32()
	if err != nil {
		t.Fatal(err)
	}
	var got []float32
	for at := 0; at < len(x)/c; at += n {
		got = append(got, x[at*c:(at+1)*c]...)
	}
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, want %d", label, len(got), len(want))
	}
	if d := distance(got, want); !(d < 1e-5) {
		t.Errorf("%s: distance %.2g", label, d)
	} else {
		t.Logf("%s: distance %.2g", label, d)
	}
}
