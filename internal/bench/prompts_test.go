package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/models"
)

// decoded is the field of request i as JSON.
func decoded(t *testing.T, p Prompts, i int) map[string]any {
	t.Helper()
	var out map[string]any
	if err := json.Unmarshal([]byte("{"+string(p.field(i))+"}"), &out); err != nil {
		t.Fatalf("field %q: %v", p.field(i), err)
	}
	return out
}

func TestParsePrompts(t *testing.T) {
	tests := []struct {
		line     string
		endpoint Endpoint
		want     string
	}{
		{`{"prompt":"say \"x\""}`, Chat, `map[messages:[map[content:say "x" role:user]]]`},
		{`{"prompt":"say \"x\""}`, Completions, `map[prompt:say "x"]`},
		{`{"prompt":""}`, Completions, `map[prompt:]`},
		{`{"question":"q","answer":4}`, Completions, `map[prompt:q]`},
		{`{"messages":[{"role":"system","content":"s"}]}`, Chat, `map[messages:[map[content:s role:system]]]`},
		{`{"prompt_ids":[1,20,4294967295]}`, Completions, `map[prompt:[1 20 4.294967295e+09]]`},
	}
	for _, test := range tests {
		p, err := ParsePrompts([]byte("\n"+test.line+"\n\n"), test.endpoint, "here")
		if err != nil {
			t.Errorf("%s: %v", test.line, err)
			continue
		}
		if got := fmt.Sprint(decoded(t, p, 5)); got != test.want || p.Source != "here" {
			t.Errorf("%s for %s: %s, want %s", test.line, test.endpoint, got, test.want)
		}
	}
}

func TestParsePromptsFaults(t *testing.T) {
	tests := []struct {
		text     string
		endpoint Endpoint
		want     string
	}{
		{"", Chat, "there are none"},
		{"\n \n", Chat, "there are none"},
		{`{"prompt":"x"}` + "\n{", Chat, "line 2"},
		{`{}`, Chat, "exactly one"},
		{`{"prompt":"x","messages":[]}`, Chat, "exactly one"},
		{`{"prompt":7}`, Chat, "line 1"},
		{`{"messages":"x"}`, Chat, "not a list"},
		{`{"messages":[]}`, Completions, "chat endpoint"},
		{`{"prompt_ids":[1]}`, Chat, "completions endpoint"},
		{`{"prompt_ids":[]}`, Completions, "empty"},
		{`{"prompt_ids":[-1]}`, Completions, "line 1"},
		{`{"prompt":"` + strings.Repeat("x", maxPromptLine) + `"}`, Chat, "too long"},
	}
	for _, test := range tests {
		_, err := ParsePrompts([]byte(test.text), test.endpoint, "")
		if !errors.Is(err, ErrPrompts) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%.40q for %s: %v, want %q", test.text, test.endpoint, err, test.want)
		}
	}
}

func FuzzParsePrompts(f *testing.F) {
	f.Add([]byte(`{"prompt":"x"}`), true)
	f.Add([]byte(`{"messages":[{"role":"user","content":"x"}]}`), true)
	f.Add([]byte(`{"prompt_ids":[1,2]}`+"\n"+`{"question":"\u0000"}`), false)
	f.Fuzz(func(t *testing.T, text []byte, chat bool) {
		endpoint := Completions
		if chat {
			endpoint = Chat
		}
		p, err := ParsePrompts(text, endpoint, "")
		if err == nil {
			decoded(t, p, 0)
		}
	})
}

func TestEmbeddedProblems(t *testing.T) {
	p, err := ParsePrompts(models.Problems(), Chat, "")
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(decoded(t, p, 0)) != fmt.Sprint(decoded(t, p, 500)) || fmt.Sprint(decoded(t, p, 0)) == fmt.Sprint(decoded(t, p, 1)) {
		t.Error("requests do not take the problems in turn")
	}
}

func TestGenerate(t *testing.T) {
	ids, err := Generate(Synthetic{InputTokens: 50, IDs: true, Vocab: 30, Seed: 4}, Completions)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Generate(Synthetic{InputTokens: 50, IDs: true, Vocab: 30, Seed: 4}, Completions)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for i := range 100 {
		list := decoded(t, ids, i)["prompt"].([]any)
		for _, id := range list {
			if n := id.(float64); n < 0 || n >= 30 {
				t.Fatalf("id %v", n)
			}
		}
		if len(list) != 50 || string(ids.field(i)) != string(again.field(i)) {
			t.Fatalf("prompt %d has %d ids, or the same seed gives another", i, len(list))
		}
		seen[string(ids.field(i))] = true
	}
	if len(seen) != 100 {
		t.Errorf("%d different prompts of 100", len(seen))
	}
	for _, endpoint := range []Endpoint{Chat, Completions} {
		text, err := Generate(Synthetic{InputTokens: 7}, endpoint)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(fmt.Sprint(decoded(t, text, 3)), " "); endpoint == Completions && got != 6 {
			t.Errorf("%d spaces in seven words", got)
		}
	}
	for _, bad := range []Synthetic{{}, {InputTokens: MaxInputTokens + 1}, {InputTokens: 1, IDs: true}} {
		if _, err := Generate(bad, Completions); !errors.Is(err, ErrPrompts) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	if _, err := Generate(Synthetic{InputTokens: 1, IDs: true, Vocab: 2}, Chat); !errors.Is(err, ErrPrompts) {
		t.Errorf("ids for chat: %v", err)
	}
}
