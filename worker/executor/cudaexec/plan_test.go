package cudaexec

import (
	"errors"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/worker/router"
)

func TestMakePlan(t *testing.T) {
	m, vocab := catalogued(t, "qwen3-32b")
	const gb = 1 << 30
	p, err := MakePlan(Config{Name: "large", Vocab: vocab}, &m, 120*gb)
	if err != nil {
		t.Fatal(err)
	}
	// 32,762,123,264 parameters of two bytes, a rotary table, and alignment.
	if rest := p.Weights - 2*32_762_123_264; rest < 40960*64*8 || rest > 64<<20 {
		t.Errorf("weights of %d bytes are %d off", p.Weights, rest)
	}
	if p.TokenBytes != 256<<10 || p.PageBytes != 64*256<<10 || p.PageSize != 64 {
		t.Errorf("a token takes %d bytes, a page %d", p.TokenBytes, p.PageBytes)
	}
	if p.Free < 0 || p.Free >= p.PageBytes || p.Weights+p.Activations+p.KV()+p.Free != p.Budget || p.Tokens() < 200_000 {
		t.Errorf("plan %+v does not add up or wastes", p)
	}
	for _, want := range []string{"memory plan of large", "61.", "256.0 KiB a token", "of a budget of 120.00 GiB"} {
		if !strings.Contains(p.String(), want) {
			t.Errorf("%q lacks %q", p.String(), want)
		}
	}
	if _, err := MakePlan(Config{Vocab: vocab}, &m, 60*gb); !errors.Is(err, ErrMemory) {
		t.Errorf("60 GiB: error %v, want ErrMemory", err)
	}
	if _, err := MakePlan(Config{Vocab: vocab, Pages: 10_000}, &m, 120*gb); !errors.Is(err, ErrMemory) || !strings.Contains(err.Error(), "10000 pages") {
		t.Errorf("too many pages: error %v, want ErrMemory with the number", err)
	}
	small, err := MakePlan(Config{Vocab: vocab, MaxSlots: 2, MaxContext: 128}, &m, 120*gb)
	if err != nil || small.Pages != 4 {
		t.Errorf("two slots of 128 positions: %d pages (%v), want 4", small.Pages, err)
	}
}

func TestJoint(t *testing.T) {
	large, vocab := catalogued(t, "qwen3-32b")
	small, _ := catalogued(t, "qwen3-0.6b")
	memory := int64(143_771) << 20
	a, err := MakePlan(Config{Vocab: vocab}, &large, memory)
	if err != nil {
		t.Fatal(err)
	}
	b, err := MakePlan(Config{Vocab: vocab}, &small, memory)
	if err != nil {
		t.Fatal(err)
	}
	tokens, pages, err := Joint(memory, 0.95, a, b)
	if err != nil {
		t.Fatal(err)
	}
	each := int64(256+112) << 10
	left := int64(0.95*float64(memory)) - a.Weights - b.Weights - a.Activations - b.Activations
	if tokens > left/each || tokens < left/each-64 || pages[0] != pages[1] || int64(pages[0])*64 != tokens {
		t.Errorf("%d tokens, pages %v; %d bytes are left at %d a token", tokens, pages, left, each)
	}
	if _, _, err := Joint(62<<30, 1, a, b); !errors.Is(err, ErrMemory) {
		t.Errorf("62 GiB: error %v, want ErrMemory", err)
	}
	for _, share := range []float64{0, -1, 1.5} {
		if _, _, err := Joint(memory, share, a); !errors.Is(err, ErrConfig) {
			t.Errorf("share %v: error %v", share, err)
		}
	}
}

func TestConfigBounds(t *testing.T) {
	m := oddConfig()
	for field, c := range map[string]Config{
		"Vocab": {}, "PageSize": {Vocab: 99, PageSize: -1}, "page size": {Vocab: 99, PageSize: 4}, "MaxSlots": {Vocab: 99, MaxSlots: 1 << 30},
		"MaxTokens": {Vocab: 99, MaxTokens: 1 << 20}, "MaxContext": {Vocab: 99, MaxContext: 513}, "Pages": {Vocab: 99, Pages: 1 << 40},
		"Nets": {Vocab: 99, Nets: fold(randomNets(80, 60, router.Shape{Width: 64, Inner: 64, Blocks: 1}, "F32"))}, "MemoryBytes": {Vocab: 99, MemoryBytes: -1},
		"Partials": {Vocab: 99, Partials: -1},
	} {
		if _, err := MakePlan(c, &m, 1<<30); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: error %v", field, err)
		}
	}
}
