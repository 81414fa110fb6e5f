package chat

import (
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tokenrouter/tokenrouter/worker/tokenizer"
)

func TestPythonFloat(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"1.0", "1.0"}, {"1e5", "100000.0"}, {"1e15", "1000000000000000.0"}, {"1e16", "1e+16"}, {"123456789012345678.0", "1.2345678901234568e+17"},
		{"0.0001", "0.0001"}, {"0.00001", "1e-05"}, {"-0.0", "-0.0"}, {"1.5e300", "1.5e+300"}, {"0.1", "0.1"}, {"1e400", "Infinity"}, {"-1e400", "-Infinity"},
		{"100", "100"}, {"-0", "0"}, {"12345678901234567890123", "12345678901234567890123"},
	} {
		tpl, err := Parse(`{{ tools | tojson }}|{{ tools[0] }}`, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := tpl.Render(Conversation{Tools: []byte("[" + c.in + "]")})
		if err != nil || !strings.HasPrefix(got, "["+c.want+"]|") {
			t.Errorf("%s: got %q, %v", c.in, got, err)
		}
	}
}

func TestToJSONKeywords(t *testing.T) {
	const tools = `[{"b":[],"a":{"x":"é\u0001\u2028👍\"\\\n","y":[1,null,true]},"c":{}}]`
	for _, c := range []struct{ call, want string }{
		{`tojson`, `[{"b": [], "a": {"x": "é\u0001` + "\u2028" + `👍\"\\\n", "y": [1, null, true]}, "c": {}}]`},
		{`tojson(ensure_ascii=true)`, `[{"b": [], "a": {"x": "\u00e9\u0001\u2028\ud83d\udc4d\"\\\n", "y": [1, null, true]}, "c": {}}]`},
		{`tojson(separators=(',', ':'), sort_keys=True)`, `[{"a":{"x":"é\u0001` + "\u2028" + `👍\"\\\n","y":[1,null,true]},"b":[],"c":{}}]`},
		{`tojson(indent=1)`, "[\n {\n  \"b\": [],\n  \"a\": {\n   \"x\": \"é\\u0001\u2028👍\\\"\\\\\\n\",\n   \"y\": [\n    1,\n    null,\n    true\n   ]\n  },\n  \"c\": {}\n }\n]"},
	} {
		tpl, err := Parse(`{{ tools | `+c.call+` }}`, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := tpl.Render(Conversation{Tools: []byte(tools)}); err != nil || got != c.want {
			t.Errorf("%s: %v\n got %s\nwant %s", c.call, err, got, c.want)
		}
	}
}

func TestRewrite(t *testing.T) {
	loop, macro := "{% set tokenrouter_count = tokenrouter_loop() ", "{% set tokenrouter_count = tokenrouter_macro() "
	for _, c := range []struct{ in, want string }{
		{"", ""}, {"a { b", "a { b"}, {"{{ x", "{{ x"}, {"{# {% for %} #}{{ '| tojson' }}", "{# {% for %} #}{{ '| tojson' }}"},
		{"x | tojson {{ x|tojson }}", "x | tojson {{ x|tokenrouter_tojson }}"}, {"{{ x | tojson_2 }}", "{{ x | tojson_2 }}"},
		{"{%- for a in b -%} x", "{%- for a in b -%}" + loop + "-%} x"}, {"{% for a in '%}' %}\n", "{% for a in '%}' %}" + loop + "%}\n"},
		{"{% macro f(a) +%}", "{% macro f(a) +%}" + macro + "+%}"}, {"{{ {'a': {'b': 1}} | tojson}}", "{{ {'a': {'b': 1}} | tokenrouter_tojson}}"},
		{"{% raw %}{% for %}{{ x|tojson }}{% endraw %}", "{% raw %}{% for %}{{ x|tojson }}{% endraw %}"}, {"{% raw %}", "{% raw %}"}, {"{%%}", "{%%}"},
		{`{{ "\"|tojson" |tojson }}`, `{{ "\"|tojson" |tokenrouter_tojson }}`},
	} {
		if got := rewrite(c.in); got != c.want {
			t.Errorf("%q:\n got %q\nwant %q", c.in, got, c.want)
		}
	}
}

func FuzzGuard(f *testing.F) {
	for _, s := range hostile() {
		f.Add(s, true)
		f.Add(s, false)
	}
	tok, err := tokenizer.Load(os.DirFS(tinyDir))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string, specialOnly bool) {
		marked := guard(tok, specialOnly)(text)
		if got, want := clean(marked), tokenizer.RepairUTF8(text); got != want {
			t.Errorf("%q: comes back as %q", text, got)
		}
		for i := range len(marked) {
			if tok.AddedAt(marked[i:], specialOnly) > 0 {
				t.Errorf("%q: marked text %q holds an added token", text, marked)
			}
		}
		if !utf8.ValidString(marked) {
			t.Errorf("%q: marked text is not UTF-8", text)
		}
	})
}

func FuzzEncodeChat(f *testing.F) {
	for _, s := range hostile() {
		f.Add(s, s, s)
	}
	tok, err := tokenizer.Load(os.DirFS(tinyDir))
	if err != nil {
		f.Fatal(err)
	}
	tpl, err := Load(os.DirFS(tinyDir))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, system, user, answer string) {
		messages := []Message{{Role: "system", Content: system}, {Role: "user", Content: user}, {Role: "assistant", Content: strings.ReplaceAll(answer, "</think>", "")}, {Role: "user", Content: user}}
		got, err := EncodeChat(tok, tpl, Conversation{Messages: messages, AddGenerationPrompt: true})
		if err != nil {
			t.Fatal(err)
		}
		want := dumbPrompt(tok, messages)
		if len(got) != len(want) {
			t.Fatalf("got %v\nwant %v", got, want)
		}
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("at %d: got %v\nwant %v", i, got, want)
			}
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"{% for m in messages %}{{ m.content|tojson }}{% endfor %}", "{{ messages[0]['content'][1:] }}", "{% set ns = namespace(a=1) %}{{ ns.a }}", "{% raw %}x", "{{"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, source string) {
		if len(source) > 300 || strings.ContainsAny(source, "*") {
			t.Skip("long products of texts are the template author's own fault")
		}
		if tpl, err := Parse(source, nil); err == nil {
			_, _ = tpl.Render(Conversation{Messages: []Message{{Role: "user", Content: "hi"}}})
		}
	})
}

func BenchmarkEncodeChat(b *testing.B) {
	tok, tpl := load(b, tinyDir)
	c := Conversation{Messages: []Message{{Role: "user", Content: "Eve has 40 eggs. Eve buys 28 boxes with 70 eggs each. How many eggs does Eve have now?"}}, AddGenerationPrompt: true}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := EncodeChat(tok, tpl, c); err != nil {
			b.Fatal(err)
		}
	}
}
