package jinja

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math/big"
	"os"
	"strings"
	"testing"
	"time"
)

// decode reads JSON with the order of its keys, as values of a template.
func decode(t testing.TB, text []byte) Value {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	v, err := decodeNext(d)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func decodeNext(d *json.Decoder) (Value, error) {
	tok, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch tok := tok.(type) {
	case string:
		return own(tok), nil
	case json.Number:
		if n, ok := new(big.Int).SetString(tok.String(), 10); ok {
			return integer(n), nil
		}
		return tok.Float64()
	case json.Delim:
		if tok == '[' {
			l := &List{}
			for d.More() {
				v, err := decodeNext(d)
				if err != nil {
					return nil, err
				}
				l.Items = append(l.Items, v)
			}
			_, err := d.Token()
			return l, err
		}
		o := NewDict()
		for d.More() {
			k, err := d.Token()
			if err != nil {
				return nil, err
			}
			v, err := decodeNext(d)
			if err != nil {
				return nil, err
			}
			o.Set(own(k.(string)), v)
		}
		_, err := d.Token()
		if err == io.EOF {
			err = nil
		}
		return o, err
	}
	return tok, nil
}

func plenty() Limits { return Limits{Steps: 1 << 20, Depth: 200, Output: 1 << 20, Made: 1 << 24} }

// TestReference compares with the reference renderer, over what testdata/reference.py
// lists: expressions, filters, tests, methods, statements, white space and faults.
func TestReference(t *testing.T) {
	file, err := os.ReadFile("testdata/cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var all struct {
		Vars  json.RawMessage
		Cases []struct {
			T      string
			Out    *string
			Error  string
			Raised bool
		}
	}
	if err := json.Unmarshal(file, &all); err != nil {
		t.Fatal(err)
	}
	for _, c := range all.Cases {
		if c.Out != nil && strings.Contains(*c.Out, " at 0x") {
			continue // the address of an object
		}
		env := Env{Vars: decode(t, all.Vars).(*Dict)}
		got, err := "", error(nil)
		tpl, err := Parse(c.T)
		if err == nil {
			var out Text
			out, err = tpl.Render(env, plenty())
			got = out.String()
		}
		var raised *Raised
		switch {
		case c.Out == nil && err == nil:
			t.Errorf("%q: got %q, the reference fails: %s", c.T, got, c.Error)
		case c.Raised && (!errors.As(err, &raised) || raised.Message != c.Error):
			t.Errorf("%q: error %v, want %q raised", c.T, err, c.Error)
		case c.Out == nil && !c.Raised && !errors.Is(err, ErrSyntax) && !errors.Is(err, ErrRender):
			t.Errorf("%q: error %v is of no kind", c.T, err)
		case c.Out != nil && (err != nil || got != *c.Out):
			t.Errorf("%q: %v\n got %q\nwant %q", c.T, err, got, *c.Out)
		}
	}
	t.Logf("%d cases", len(all.Cases))
}

func TestBudgets(t *testing.T) {
	for _, c := range []struct{ name, source string }{
		{"steps", "{% for a in range(2000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}"},
		{"steps in filters", "{% for a in range(1000) %}{{ range(2000) | sort | first }}{% endfor %}"},
		{"output", "{% for a in range(1000) %}{% for b in range(100) %}0123456789abcdef{% endfor %}{% endfor %}"},
		{"product", "{{ 'a' * 10 ** 9 }}"}, {"product of lists", "{{ [1] * 10 ** 9 }}"}, {"huge product", "{{ 'a' * 10 ** 30 }}"},
		{"doubling", "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"},
		{"doubling by plus", "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}"},
		{"doubling lists", "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}"},
		{"doubling by replace", "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x | replace('a', 'aa') %}{% endfor %}"},
		{"doubling by join", "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] | join %}{% endfor %}"},
		{"doubling by capture", "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}"},
		{"doubling by format", "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = '%s%s' % (ns.x, ns.x) %}{% endfor %}"},
		{"nested lists", "{% set ns = namespace(x=[1]) %}{% for i in range(500) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}"},
		{"nested JSON", "{% set ns = namespace(x=[1]) %}{% for i in range(500) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson }}"},
		{"shared lists", "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | tojson }}"},
		{"shared lists printed", "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}"},
		{"shared lists compared", "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}"},
		{"range", "{{ range(10 ** 9) | list }}"}, {"power", "{{ 10 ** 100000 }}"}, {"squares", "{% set ns = namespace(x=10) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}"},
		{"recursion", "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}"}, {"two macros", "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}"},
		{"width", "{{ 'a' | center(10 ** 9) }}"}, {"zeros", "{{ '%099999d' % 1 }}"}, {"indent", "{{ 'a' | indent(10 ** 9) }}"}, {"JSON indent", "{{ [1] | tojson(indent=10 ** 6) }}"},
		{"fill", "{{ [1] | batch(10 ** 9, 0) }}"}, {"slices", "{{ [1] | slice(10 ** 9) }}"},
	} {
		tpl, err := Parse(c.source)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if _, err := tpl.Render(Env{Vars: NewDict()}, plenty()); !errors.Is(err, ErrBudget) {
			t.Errorf("%s: error %v", c.name, err)
		}
	}
	tpl, err := Parse("{% for a in range(1000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}")
	if err != nil {
		t.Fatal(err)
	}
	lim := plenty()
	lim.Deadline = time.Now().Add(-time.Second)
	if _, err := tpl.Render(Env{Vars: NewDict()}, lim); !errors.Is(err, ErrBudget) || !strings.Contains(err.Error(), "too long") {
		t.Errorf("past the deadline: %v", err)
	}
}

func TestDeepSyntax(t *testing.T) {
	for _, s := range []string{
		"{{ " + strings.Repeat("(", 1e5) + " }}", "{{ " + strings.Repeat("[", 1e5) + " }}", "{{ " + strings.Repeat("not ", 1e5) + "x }}", "{{ " + strings.Repeat("-", 1e5) + "x }}",
		strings.Repeat("{% if x %}", 1e4), strings.Repeat("{% for x in y %}", 1e4), "{{ x" + strings.Repeat("[0", 1e4), "{{ " + strings.Repeat("a if b else ", 1e4) + "c }}",
		"{% set " + strings.Repeat("(", 1e5) + " %}", strings.Repeat("x", maxSource+1), "{{ x" + strings.Repeat(" ** 2", 1e5),
	} {
		if _, err := Parse(s); !errors.Is(err, ErrSyntax) {
			t.Errorf("%.40q: %v", s, err)
		}
	}
	long := "{{ 0" + strings.Repeat(" + 1", 5e4) + " }}" // wide is not deep
	if _, err := Parse(long); err == nil {
		t.Log("a long sum parses")
	}
}

func TestClasses(t *testing.T) {
	vars := NewDict()
	vars.Set(own("u"), Mark("<user>", Foreign))
	vars.Set(own("a"), Mark("<think>x</think> yes ", Answer))
	show := func(x Text) string {
		var b strings.Builder
		at := 0
		for _, p := range x.Spans() {
			b.WriteString([]string{"T", "A", "U"}[p.Class] + "[" + x.String()[at:p.End] + "]")
			at = p.End
		}
		if x.Spans() == nil {
			return "T[" + x.String() + "]"
		}
		return b.String()
	}
	for _, c := range []struct{ source, want string }{
		{"a{{ u }}b", "T[a]U[<user>]T[b]"}, {"{{ '<' + u + '>' }}", "T[<]U[<user>]T[>]"}, {"{{ u ~ 1 ~ u }}", "U[<user>]T[1]U[<user>]"}, {"{{ u[1:5] }}", "U[user]"},
		{"{{ ('x' + u)[:2] }}", "T[x]U[<]"}, {"{{ u.upper() }}", "U[<USER>]"}, {"{{ a.split('</think>')[-1].strip() }}", "A[yes]"}, {"{{ [u, 'x'] | join('-') }}", "U[<user>]T[-x]"},
		{"{{ u | tojson }}", "U[\"<user>\"]"}, {"{{ [1, 'x'] | tojson }}", `T[[1, "x"]]`}, {"{{ ['y', u] | tojson }}", `U[["y", "<user>"]]`}, {"{{ {u: 1} | tojson }}", `U[{"<user>": 1}]`},
		{"{{ [u] }}", "T[[]U['<user>']T[]]"}, {"{{ '%s!' % u }}", "U[<user>!]"}, {"{{ '{}!'.format(u) }}", "U[<user>]T[!]"}, {"{{ a.replace('yes', u) }}", "U[<think>x</think> <user> ]"},
		{"{{ a.replace('yes', 'no') }}", "A[<think>x</think> no ]"}, {"{% set x %}a{{ u }}{% endset %}{{ x }}", "T[a]U[<user>]"}, {"{% macro m(q) %}({{ q }}){% endmacro %}{{ m(u) }}", "T[(]U[<user>]T[)]"},
		{"{% for c in u %}{{ c }}{% endfor %}", "U[<user>]"}, {"{{ u[::-1] }}", "U[>resu<]"}, {"{{ u * 2 }}", "U[<user><user>]"}, {"{{ u | indent(2, true) }}", "T[  ]U[<user>]"}, {"{{ u | e }}", "U[&lt;user&gt;]"},
		{"{{ u | length }}{{ u == '<user>' }}", "T[6True]"}, {"{{ (u + a) | trim }}", "U[<user>]A[<think>x</think> yes]"}, {"{{ u.splitlines()[0] }}{{ u.partition('s') | join }}", "U[<user><user>]"},
	} {
		tpl, err := Parse(c.source)
		if err != nil {
			t.Fatal(err)
		}
		out, err := tpl.Render(Env{Vars: vars}, plenty())
		if got := show(out); err != nil || got != c.want {
			t.Errorf("%s: got %s, %v, want %s", c.source, got, err, c.want)
		}
	}
}

func TestDates(t *testing.T) {
	env := Env{Vars: NewDict(), Now: func() time.Time { return time.Date(2026, 3, 5, 14, 7, 9, 0, time.UTC) }}
	tpl, err := Parse(`{{ strftime_now("%d %b %Y|%A %B %-d|%H:%M:%S %p|%Y-%m-%d %j %%") }}`)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := tpl.Render(env, plenty()); err != nil || got.String() != "05 Mar 2026|Thursday March 5|14:07:09 PM|2026-03-05 064 %" {
		t.Errorf("got %q, %v", got, err)
	}
	if tpl, err = Parse("{{ strftime_now is defined }}"); err != nil {
		t.Fatal(err)
	}
	if got, err := tpl.Render(Env{Vars: NewDict()}, plenty()); err != nil || got.String() != "False" {
		t.Errorf("got %q, %v", got, err)
	}
}

func FuzzRender(f *testing.F) {
	file, err := os.ReadFile("testdata/cases.json")
	if err != nil {
		f.Fatal(err)
	}
	var all struct {
		Vars  json.RawMessage
		Cases []struct{ T string }
	}
	if err := json.Unmarshal(file, &all); err != nil {
		f.Fatal(err)
	}
	for _, c := range all.Cases {
		f.Add(c.T)
	}
	f.Fuzz(func(t *testing.T, source string) {
		tpl, err := Parse(source)
		if err != nil {
			if !errors.Is(err, ErrSyntax) && !errors.Is(err, ErrBudget) {
				t.Fatalf("parse: %v", err)
			}
			return
		}
		lim := Limits{Steps: 1 << 14, Depth: 50, Output: 1 << 16, Made: 1 << 20}
		out, err := tpl.Render(Env{Vars: decode(t, all.Vars).(*Dict)}, lim)
		var raised *Raised
		if err != nil && !errors.Is(err, ErrRender) && !errors.Is(err, ErrBudget) && !errors.As(err, &raised) {
			t.Fatalf("render: %v", err)
		}
		if spans := out.Spans(); err == nil && spans != nil && spans[len(spans)-1].End != len(out.String()) {
			t.Fatal("spans do not cover the text")
		}
	})
}
