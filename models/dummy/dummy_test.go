package dummy

import (
	"fmt"
	"math"
	"os/exec"
	"strings"
	"testing"
)

var shapes = []struct {
	name  string
	shape []int
}{
	{"model.embed_tokens.weight", []int{1024, 128}},
	{"lm_head.weight", []int{300, 5120}},
	{"model.layers.3.self_attn.q_proj.weight", []int{256, 1536}},
	{"model.layers.0.mlp.down_proj.weight", []int{7, 25600}},
	{"model.layers.11.self_attn.q_norm.weight", []int{128}},
	{"model.norm.weight", []int{64}},
	{"model.layers.0.self_attn.k_proj.bias", []int{128}},
}

// The numbers are part of every stored reference, so they are pinned.
func TestPinned(t *testing.T) {
	got := make([]uint16, 4)
	Of(7, "model.embed_tokens.weight", []int{1024, 128}).Fill(got, 0)
	if s := fmt.Sprintf("%04x", got); s != pinned {
		t.Errorf("first elements are %s, want %s", s, pinned)
	}
}

func TestPython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("skip: no python3")
	}
	for i, c := range shapes {
		seed, first := uint64(i*1_000_003), uint64(i*i*100_000_007)
		dims := strings.Trim(strings.ReplaceAll(fmt.Sprint(c.shape), " ", "x"), "[]")
		out, err := exec.Command(python, "reference.py", fmt.Sprint(seed), c.name, dims, fmt.Sprint(first), "500").Output()
		if err != nil {
			t.Fatal(err)
		}
		got := make([]uint16, 500)
		Of(seed, c.name, c.shape).Fill(got, first)
		for j, line := range strings.Fields(string(out)) {
			if w := fmt.Sprintf("%04x", got[j]); w != line {
				t.Fatalf("%s element %d: Go has %s, Python %s", c.name, first+uint64(j), w, line)
			}
		}
	}
}

func TestMoments(t *testing.T) {
	for _, c := range shapes {
		r := Of(1, c.name, c.shape)
		var sum, squares float64
		const n = 20000
		for i := range uint64(n) {
			v := float64(r.At(i)) - float64(r.Offset)
			sum += v
			squares += v * v
		}
		std := float64(r.Scale) / math.Sqrt(3)
		if math.Abs(sum/n) > 0.03*std || math.Abs(math.Sqrt(squares/n)/std-1) > 0.02 {
			t.Errorf("%s: mean %v and deviation %v, want 0 and %v", c.name, sum/n, math.Sqrt(squares/n), std)
		}
	}
}

func TestFillIsPositional(t *testing.T) {
	r := Of(9, "model.layers.0.mlp.up_proj.weight", []int{8, 64})
	whole, part := make([]uint16, 512), make([]uint16, 100)
	r.Fill(whole, 0)
	r.Fill(part, 300)
	for i, v := range part {
		if whole[300+i] != v {
			t.Fatalf("element %d differs", 300+i)
		}
	}
}

const pinned = "[3e32 bd2b 3cc7 3ed4]"
