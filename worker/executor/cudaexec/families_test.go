package cudaexec

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/worker/model"
)

// familyDir has small models of every family with what transformers computes; make.py there says how.
const (
	familyDir   = "../../../models/testdata/families/"
	familyEvery = 6 // every so many positions are stored
)

// Against transformers in float32, after every layer and at the logits: biases of Qwen2, tied and own heads, one key head for
// each query head, scaled rotation. PyTorch in bfloat16 is .006 to .011 away; ours may be torchRatio times as far.
func TestFamilies(t *testing.T) {
	text, err := os.ReadFile(familyDir + "cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases map[string]json.RawMessage
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		t.Run(name, func(t *testing.T) {
			d, dev := openTest(t)
			if dev.Simulated && testing.Short() {
				t.Skip("skip: no CUDA driver")
			}
			c, err := model.ParseConfig(cases[name])
			if err != nil {
				t.Fatal(err)
			}
			raw, err := os.ReadFile(familyDir + name + ".golden.safetensors")
			if err != nil {
				t.Fatal(err)
			}
			golden, err := model.ParseShard(name, raw)
			if err != nil {
				t.Fatal(err)
			}
			for n := 1; n <= c.Layers; n++ {
				cut := c
				cut.Layers = n
				for _, reproducible := range []bool{false, true} {
					if dev.Simulated && (reproducible || n < c.Layers) {
						continue // the emulator is slow
					}
					chunks := []int{51}
					if n == c.Layers && !dev.Simulated {
						chunks = []int{51, 5}
					}
					compareFamily(t, d, name, &cut, reproducible, n == c.Layers, chunks, &reference{t, golden})
				}
			}
		})
	}
}

// compareFamily compares a model of some layers; last says that they are all.
func compareFamily(t *testing.T, d *Device, name string, c *model.Config, reproducible, last bool, chunks []int, golden *reference) {
	t.Helper()
	e := build(t, d, Config{Vocab: c.VocabSize, MaxSlots: 1, MaxContext: 128, MaxTokens: 64, Partials: 8, PageSize: 16, Poison: true, Reproducible: reproducible},
		Checkpoint(loudBiases(name, c)))
	var ids []int32
	for b := golden.shard.Tensors["ids"].Bytes; len(b) >= 4; b = b[4:] {
		ids = append(ids, int32(binary.LittleEndian.Uint32(b)))
	}
	torch := golden.rows("bf16", 1)
	for _, chunk := range chunks {
		logits, hidden := allLogits(t, e, ids, chunk)
		at := fmt.Sprintf("after %d layers in chunks of %d, reproducible %v", c.Layers, chunk, reproducible)
		want := golden.rows(fmt.Sprintf("hidden.%d", c.Layers), c.Hidden)
		within(t, at+", hidden", distance(every(hidden), want), float64(torch[c.Layers-1][0]))
		if last {
			want := golden.rows("logits", c.VocabSize)
			dist := distance(every(logits), want)
			within(t, at+", logits", dist, float64(torch[c.Layers][0]))
			sameWords(t, every(logits), want, roundingMargin(dist, want))
		}
	}
	if err := e.Shutdown(); err != nil {
		t.Fatal(err)
	}
}

// every keeps the positions that are stored.
func every(rows [][]float32) (out [][]float32) {
	for i := 0; i < len(rows); i += familyEvery {
		out = append(out, rows[i])
	}
	return out
}

// loudBiases is the dummy model of torchSeed with biases 32 times as large, so that leaving them out shows.
func loudBiases(name string, c *model.Config) *model.Checkpoint {
	tensors := dummyTensors(c, c.Params(), torchSeed)
	for i := range tensors {
		if !strings.HasSuffix(tensors[i].Name, ".bias") {
			continue
		}
		values := make([]uint16, tensors[i].Elems())
		for j := range values {
			if values[j] = binary.LittleEndian.Uint16(tensors[i].Bytes[2*j:]); values[j]&0x7f80 != 0 {
				values[j] += 5 << 7 // the exponent
			}
		}
		tensors[i].Bytes = driver.Bytes(values)
	}
	return model.FromTensors(name, *c, tensors)
}
