package idmap

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/tokenrouter/tokenrouter/api/handoff"
	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/worker/tokenizer"
)

// words is a tokenizer with the given added tokens behind a vocabulary of 520.
func words(t testing.TB, added ...string) *tokenizer.Tokenizer {
	t.Helper()
	text, err := os.ReadFile("../testdata/small/deepseek/tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	var file map[string]any
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	entries := []any{}
	for i, name := range added {
		if name == "" {
			continue
		}
		entries = append(entries, map[string]any{"id": 520 + i, "content": name, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": name[0] == '<'})
	}
	file["added_tokens"] = entries
	delete(file, "post_processor") // it names an id that begins a text
	if text, err = json.Marshal(file); err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// reasoners are two models whose added tokens differ as those of two families do.
func reasoners(t testing.TB) (small, large Model) {
	small = Model{words(t, "<end>", "<user>", "<assistant>", "<begin>", "<think>", "</think>", "<pad>"), []int32{520}}
	large = Model{words(t, "<endoftext>", "<im_start>", "<im_end>", "<box>", "</box>", "<tool>", "<pad>", "<think>", "</think>"), []int32{522, 520}}
	return small, large
}

func reasonerMap(t testing.TB) *Map {
	small, large := reasoners(t)
	pairs, err := Parse(small.Words, large.Words, []string{"<think>=<think>", "</think>=</think>", "520=<im_end>", "<user>=521", "<begin>=<endoftext>"})
	if err != nil {
		t.Fatal(err)
	}
	m, err := New(small, large, pairs)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestNew(t *testing.T) {
	m := reasonerMap(t)
	if got := m.OnlyEntry(); !slices.Equal(got, []int32{522}) {
		t.Errorf("only the entry has %v", got)
	}
	if got := m.OnlyOwn(); !slices.Equal(got, []int32{523, 524, 525}) {
		t.Errorf("only the collaborator has %v", got)
	}
	for id, want := range map[int32]int32{0: 0, 519: 519, 520: 522, 521: 521, 522: -1, 523: 520, 524: 527, 525: 528, 526: 526} {
		got, ok := m.Own(id)
		if ok != (want >= 0) || ok && got != want {
			t.Errorf("%d becomes %d, %t; want %d", id, got, ok, want)
		}
		if back, backOK := m.Entry(want); ok && (back != id || !backOK) {
			t.Errorf("%d comes back as %d, %t", id, back, backOK)
		}
	}
	for _, id := range m.OnlyOwn() {
		if got, ok := m.Entry(id); ok {
			t.Errorf("%d of the collaborator alone becomes %d", id, got)
		}
	}
}

// TestSameText has every token that has a counterpart mean the same text or be declared.
func TestSameText(t *testing.T) {
	small, large := reasoners(t)
	m := reasonerMap(t)
	declared := map[int32]bool{520: true, 521: true, 523: true}
	for id := range int32(small.Words.Size()) {
		own, ok := m.Own(id)
		a, b := string(small.Words.TokenBytes(id)), string(large.Words.TokenBytes(own))
		if ok && a != b && !declared[id] {
			t.Errorf("%d %q becomes %d %q", id, a, own, b)
		}
	}
}

func TestNothingToTranslate(t *testing.T) {
	small, _ := reasoners(t)
	m, err := New(small, small, nil)
	if m != nil || err != nil {
		t.Fatalf("%v, %v", m, err)
	}
	f := handoff.Frame{Tokens: []handoff.Token{{ID: 7}}}
	if err := errors.Join(m.Receive(&f), m.Send(&f)); err != nil || f.Tokens[0].ID != 7 {
		t.Errorf("%v, %v", f, err)
	}
	if id, ok := m.Own(5); id != 5 || !ok || m.OnlyEntry() != nil || m.OnlyOwn() != nil {
		t.Error("the nil map translates")
	}
	if id, ok := m.Entry(5); id != 5 || !ok {
		t.Error("the nil map translates")
	}
	// Other ends need a map, though all ids are the same.
	if m, err := New(small, Model{small.Words, []int32{520, 526}}, nil); m == nil || err != nil {
		t.Errorf("other ends: %v, %v", m, err)
	}
}

func TestRefuses(t *testing.T) {
	small, large := reasoners(t)
	for name, c := range map[string]struct {
		pairs map[int32]int32
		own   Model
		want  error
	}{
		"unused":        {map[int32]int32{527: 520}, large, ErrPair},
		"unused there":  {map[int32]int32{520: 999}, large, ErrPair},
		"negative":      {map[int32]int32{-1: 520}, large, ErrPair},
		"two to one":    {map[int32]int32{520: 521, 521: 521}, large, ErrPair},
		"a word moved":  {map[int32]int32{100: 521}, large, ErrVocabulary},
		"a word taken":  {map[int32]int32{521: 100}, large, ErrVocabulary},
		"another model": {nil, other(t), ErrVocabulary},
	} {
		if m, err := New(small, c.own, c.pairs); !errors.Is(err, c.want) || m != nil {
			t.Errorf("%s: error %v, want %v", name, err, c.want)
		}
	}
	for _, p := range []string{"", "=", "a=", "=b", "x", "<nope>=<think>", "<think>=<nope>", "520=99999", "-1=520", "<think>=<think>,"} {
		if _, err := Parse(small.Words, large.Words, []string{p}); !errors.Is(err, ErrPair) {
			t.Errorf("%q: error %v", p, err)
		}
	}
	if _, err := Parse(small.Words, large.Words, []string{"520=521", "520=522"}); !errors.Is(err, ErrPair) {
		t.Errorf("one id twice: error %v", err)
	}
	if got, err := Parse(small.Words, large.Words, []string{"520=521", "<end>=521"}); err != nil || !maps.Equal(got, map[int32]int32{520: 521}) {
		t.Errorf("%v, %v", got, err)
	}
}

func other(t *testing.T) Model {
	tok, err := tokenizer.Load(os.DirFS("../testdata/small/llama2"))
	if err != nil {
		t.Fatal(err)
	}
	return Model{Words: tok}
}

// ids draws ids that the entry's model has in common with the collaborator.
func ids(m *Map) *rapid.Generator[int32] {
	return rapid.Custom(func(t *rapid.T) int32 {
		return rapid.OneOf(rapid.Int32Range(0, 526), rapid.Int32Range(515, 526)).Filter(func(id int32) bool { _, ok := m.Own(id); return ok }).Draw(t, "id")
	})
}

// TestFramesComeBack sends a frame to a collaborator and back.
func TestFramesComeBack(t *testing.T) {
	m := reasonerMap(t)
	rapid.Check(t, func(t *rapid.T) {
		var f handoff.Frame
		for _, id := range rapid.SliceOfN(ids(m), 0, 20).Draw(t, "tokens") {
			f.Tokens = append(f.Tokens, handoff.Token{ID: id, Model: uint8(id % 2)})
			var top []handoff.TopEntry
			for _, id := range rapid.SliceOfNDistinct(ids(m), 0, 4, rapid.ID).Draw(t, "top") {
				top = append(top, handoff.TopEntry{ID: id, Logprob: -float32(id)})
			}
			f.Logprobs = append(f.Logprobs, handoff.Logprob{Top: top})
		}
		want := clone(&f)
		if err := m.Receive(&f); err != nil {
			t.Fatal(err)
		}
		for i, x := range f.Tokens {
			if own, _ := m.Own(want.Tokens[i].ID); x.ID != own {
				t.Fatalf("%d became %d", want.Tokens[i].ID, x.ID)
			}
		}
		kept, inside := f, clone(&f)
		if err := m.Send(&f); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(f.Tokens, want.Tokens) || !reflect.DeepEqual(f.Logprobs, want.Logprobs) {
			t.Fatalf("got %+v, want %+v", f, want)
		}
		if !reflect.DeepEqual(kept, inside) {
			t.Fatal("Send changed what the frame points to")
		}
	})
}

func clone(f *handoff.Frame) handoff.Frame {
	c := *f
	c.Tokens, c.Logprobs = slices.Clone(f.Tokens), slices.Clone(f.Logprobs)
	for i := range c.Logprobs {
		c.Logprobs[i].Top = slices.Clone(c.Logprobs[i].Top)
	}
	return c
}

func TestNoCounterpart(t *testing.T) {
	m := reasonerMap(t)
	f := handoff.Frame{Base: 40, Tokens: []handoff.Token{{ID: 1}, {ID: 522}}}
	if err := m.Receive(&f); !errors.Is(err, ErrNoCounterpart) || !strings.Contains(err.Error(), "position 41") {
		t.Error(err)
	}
	f = handoff.Frame{Tokens: []handoff.Token{{ID: 523}}}
	if err := m.Send(&f); !errors.Is(err, ErrNoCounterpart) {
		t.Error(err)
	}
	// An alternative that the other side lacks is left out.
	f = handoff.Frame{Tokens: []handoff.Token{{ID: 1}}, Logprobs: []handoff.Logprob{{Top: []handoff.TopEntry{{ID: 1}, {ID: 525}, {ID: 527}}}}}
	if err := m.Send(&f); err != nil || !slices.Equal(f.Logprobs[0].Top, []handoff.TopEntry{{ID: 1}, {ID: 524}}) {
		t.Errorf("%v, %v", f.Logprobs, err)
	}
}

func TestFirstVisit(t *testing.T) {
	m := reasonerMap(t)
	for _, c := range []struct {
		name        string
		stops, want []int32
	}{
		{"the entry's ends", []int32{9, 520}, []int32{9, 520, 522}},
		{"ends are ignored", []int32{9, 521}, []int32{9, 521}},
		{"a stop that is not here", []int32{522}, nil},
		{"none", nil, nil},
	} {
		f := handoff.Frame{First: &handoff.First{Sampling: sampling.Params{TopP: 1, MaxTokens: 1, StopIDs: c.stops, LogitBias: []sampling.Bias{{ID: 3, Value: 2}, {ID: 522, Value: 5}, {ID: 524, Value: 1}}}}}
		if err := m.Receive(&f); err != nil {
			t.Fatal(err)
		}
		p := &f.First.Sampling
		bias := []sampling.Bias{{ID: 3, Value: 2}, {ID: 523, Value: -100}, {ID: 524, Value: -100}, {ID: 525, Value: -100}, {ID: 527, Value: 1}}
		if !slices.Equal(p.StopIDs, c.want) || !slices.Equal(p.LogitBias, bias) {
			t.Errorf("%s: stops %v, bias %v", c.name, p.StopIDs, p.LogitBias)
		}
		if err := p.Check(529); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
