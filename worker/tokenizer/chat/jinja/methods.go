package jinja

import (
	"fmt"
	"math/big"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// method makes a bound method.
func method(name string, call func(r *run, a arguments) Value) Value { return &function{name, call} }

// textMethod returns a method of str, nil if it has none of that name here.
func textMethod(t Text, name string) Value {
	switch name {
	case "strip", "lstrip", "rstrip":
		return method(name, func(r *run, a arguments) Value {
			a.only(name, "chars")
			return stripped(t, a, name != "rstrip", name != "lstrip")
		})
	case "split", "rsplit":
		return method(name, func(r *run, a arguments) Value { return r.splitText(t, a, name) })
	case "splitlines":
		return method(name, func(r *run, a arguments) Value { a.only(name); return r.texts(t.lines()) })
	case "partition", "rpartition":
		return method(name, func(r *run, a arguments) Value {
			a.only(name, "sep")
			return partition(r, t, a.text(0, "sep", "").s, name == "rpartition")
		})
	case "startswith", "endswith":
		return method(name, func(r *run, a arguments) Value { return r.affix(t, a, name) })
	case "removeprefix":
		return method(name, func(r *run, a arguments) Value {
			return t.slice(len(t.s)-len(strings.TrimPrefix(t.s, a.text(0, "prefix", "").s)), len(t.s))
		})
	case "removesuffix":
		return method(name, func(r *run, a arguments) Value {
			return t.slice(0, len(strings.TrimSuffix(t.s, a.text(0, "suffix", "").s)))
		})
	case "replace":
		return method(name, func(r *run, a arguments) Value {
			a.only(name, "old", "new", "count")
			return r.replaced(t, a.text(0, "old", ""), a.text(1, "new", ""), a.int(2, "count", -1))
		})
	case "upper", "lower", "capitalize", "swapcase":
		return method(name, func(r *run, a arguments) Value { a.only(name); return r.text(recased(name, t)) })
	case "title":
		return method(name, func(r *run, a arguments) Value { a.only(name); return r.text(recased("titlecase", t)) })
	case "find", "rfind", "index", "rindex", "count":
		return method(name, func(r *run, a arguments) Value { a.only(name, "sub"); return search(t.s, a.text(0, "sub", "").s, name) })
	case "join":
		return method(name, func(r *run, a arguments) Value {
			a.only(name, "iterable")
			for _, v := range r.iterate(a.or(0, "iterable", nil)) {
				if _, ok := v.(Text); !ok {
					failf("join of a %s", typeName(v))
				}
			}
			return join(r, a.or(0, "iterable", nil), arguments{pos: []Value{t}})
		})
	case "format":
		return method(name, func(r *run, a arguments) Value { return r.text(r.format(t, a)) })
	case "ljust", "rjust", "center", "zfill":
		return method(name, func(r *run, a arguments) Value {
			return r.padded(t, a.int(0, "width", 0), a.text(1, "fillchar", " ").s, name)
		})
	}
	return textCheck(t.s, name)
}

// textCheck returns a method of str that answers yes or no.
func textCheck(s, name string) Value {
	var is func(rune) bool
	switch name {
	case "isdigit":
		is = func(r rune) bool {
			return unicode.Is(unicode.Nd, r) || strings.ContainsRune("²³¹⁰⁴⁵⁶⁷⁸⁹₀₁₂₃₄₅₆₇₈₉", r)
		}
	case "isdecimal":
		is = func(r rune) bool { return unicode.Is(unicode.Nd, r) }
	case "isnumeric":
		is = unicode.IsNumber
	case "isalpha":
		is = unicode.IsLetter
	case "isalnum":
		is = func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) }
	case "isspace":
		is = blank
	case "isupper":
		return method(name, func(*run, arguments) Value { return cased(s, unicode.IsUpper) })
	case "islower":
		return method(name, func(*run, arguments) Value { return cased(s, unicode.IsLower) })
	case "isascii":
		return method(name, func(*run, arguments) Value { return strings.IndexFunc(s, func(r rune) bool { return r > 127 }) < 0 })
	default:
		return nil
	}
	return method(name, func(*run, arguments) Value { return everyRune(s, is) })
}

func (r *run) texts(parts []Text) *List {
	out := make([]Value, len(parts))
	for i, p := range parts {
		r.use(len(p.s))
		out[i] = p
	}
	return r.list(out)
}

func (r *run) splitText(t Text, a arguments, name string) Value {
	a.only(name, "sep", "maxsplit")
	limit := a.int(1, "maxsplit", -1)
	sep, ok := a.or(0, "sep", nil).(Text)
	switch {
	case !ok && a.or(0, "sep", nil) != nil:
		failf("split at a %s", typeName(a.or(0, "sep", nil)))
	case !ok && name == "rsplit" && limit >= 0:
		failf("rsplit at white space with a limit")
	case !ok:
		return r.texts(t.fields(limit))
	case sep.s == "":
		failf("split at nothing")
	case name == "rsplit":
		return r.texts(t.rsplit(sep.s, limit))
	}
	return r.texts(t.split(sep.s, limit))
}

func partition(r *run, t Text, sep string, last bool) Value {
	if sep == "" {
		failf("partition at nothing")
	}
	k := strings.Index(t.s, sep)
	if last {
		k = strings.LastIndex(t.s, sep)
	}
	parts := []Value{t, Text{}, Text{}}
	switch {
	case k >= 0:
		parts = []Value{t.slice(0, k), t.slice(k, k+len(sep)), t.slice(k+len(sep), len(t.s))}
	case last:
		parts = []Value{Text{}, Text{}, t}
	}
	l := r.list(parts)
	l.tuple = true
	return l
}

// affix is startswith and endswith, with one text or several in a tuple.
func (r *run) affix(t Text, a arguments, name string) Value {
	a.only(name, "what")
	has := strings.HasPrefix
	if name == "endswith" {
		has = strings.HasSuffix
	}
	switch what := a.or(0, "what", nil).(type) {
	case Text:
		return has(t.s, what.s)
	case *List:
		if what.tuple {
			return slices.ContainsFunc(what.Items, func(v Value) bool { s, ok := v.(Text); return ok && has(t.s, s.s) })
		}
	}
	failf("%s needs a text", name)
	return nil
}

// search is find and its kin; places count characters.
func search(s, sub, name string) Value {
	if name == "count" {
		return int64(strings.Count(s, sub))
	}
	k := strings.Index(s, sub)
	if strings.HasPrefix(name, "r") {
		k = strings.LastIndex(s, sub)
	}
	if k < 0 {
		if strings.HasSuffix(name, "index") {
			failf("%q is not in the text", sub)
		}
		return int64(-1)
	}
	return int64(utf8.RuneCountInString(s[:k]))
}

// recased changes the case of letters.
func recased(how string, t Text) Text {
	s := t.s
	switch how {
	case "upper":
		s = cases.Upper(language.Und).String(s)
	case "lower":
		s = cases.Lower(language.Und).String(s)
	case "capitalize":
		_, n := utf8.DecodeRuneInString(s)
		s = cases.Title(language.Und, cases.NoLower).String(s[:n]) + cases.Lower(language.Und).String(s[n:])
	case "swapcase":
		s = strings.Map(func(r rune) rune {
			if unicode.IsUpper(r) {
				return unicode.ToLower(r)
			}
			return unicode.ToUpper(r)
		}, s)
	case "title": // the filter: words begin behind these signs
		begins := func(r rune) bool { return blank(r) || strings.ContainsRune("-({[<", r) }
		s = titled(s, begins)
	case "titlecase": // the method: words are runs of letters
		s = titled(s, func(r rune) bool { return !unicode.IsLetter(r) })
	}
	return Mark(s, t.class())
}

func titled(s string, begins func(rune) bool) string {
	first := true
	return strings.Map(func(r rune) rune {
		out := unicode.ToLower(r)
		if first {
			out = unicode.ToTitle(r)
		}
		first = begins(r)
		return out
	}, s)
}

func (r *run) padded(t Text, width int, fill, how string) Value {
	n := utf8.RuneCountInString(t.s)
	if width <= n {
		return t
	}
	if utf8.RuneCountInString(fill) != 1 {
		failf("%s with %q", how, fill)
	}
	r.use(len(t.s))
	r.times(big.NewInt(int64(width-n)), len(fill))
	pad := func(k int) Text { return own(strings.Repeat(fill, k)) }
	switch how {
	case "ljust":
		return concat(t, pad(width-n))
	case "rjust":
		return concat(pad(width-n), t)
	case "zfill":
		sign := 0
		if strings.HasPrefix(t.s, "-") || strings.HasPrefix(t.s, "+") {
			sign = 1
		}
		return concat(t.slice(0, sign), own(strings.Repeat("0", width-n)), t.slice(sign, len(t.s)))
	}
	left := (width-n)/2 + (width-n)&width&1
	return concat(pad(left), t, pad(width-n-left))
}

// format is str.format with plain fields: {}, {0} and {name}.
func (r *run) format(t Text, a arguments) Text {
	var b builder
	auto := 0
	for i := 0; i < len(t.s); {
		k := strings.IndexAny(t.s[i:], "{}")
		if k < 0 {
			b.add(t.slice(i, len(t.s)))
			break
		}
		b.add(t.slice(i, i+k))
		i += k
		if i+1 < len(t.s) && t.s[i+1] == t.s[i] {
			b.add(t.slice(i, i+1))
			i += 2
			continue
		}
		end := strings.IndexByte(t.s[i:], '}')
		if t.s[i] == '}' || end < 0 {
			failf("format with a single brace")
		}
		field := t.s[i+1 : i+end]
		i += end + 1
		at := -1
		if field == "" {
			at, auto = auto, auto+1
		} else if everyRune(field, unicode.IsDigit) && len(field) < 4 {
			fmt.Sscan(field, &at)
		}
		if strings.ContainsAny(field, "{:!.[") {
			failf("format with the field %q", field)
		}
		v, ok := Value(nil), false
		if at >= 0 && at < len(a.pos) {
			v, ok = a.pos[at], true
		} else if at < 0 {
			v, ok = (&arguments{names: a.names, named: a.named}).arg(0, field)
		}
		if !ok {
			failf("format has no value for {%s}", field)
		}
		b.add(r.str(v))
	}
	return b.text()
}

// sprintf formats one value by a specification that Python and Go share.
func sprintf(spec string, verb byte, v any) string {
	if strings.Count(spec, ".") > 1 {
		failf("a format that is not known here")
	}
	for _, part := range strings.Split(strings.TrimLeft(spec, "-+ 0"), ".") {
		if len(part) > 3 {
			failf("%w: a format of width %s", ErrBudget, part)
		}
	}
	return fmt.Sprintf("%"+spec+string(verb), v)
}

// dictMethod returns a method of dict, nil if it has none of that name here.
func dictMethod(d *Dict, name string) Value {
	switch name {
	case "get":
		return method(name, func(r *run, a arguments) Value {
			a.only(name, "key", "default")
			if v, ok := d.get(a.or(0, "key", nil)); ok {
				return v
			}
			return a.or(1, "default", nil)
		})
	case "items":
		return method(name, func(r *run, a arguments) Value { a.only(name); return r.pairs(d) })
	case "keys":
		return method(name, func(r *run, a arguments) Value { a.only(name); return r.list(slices.Clone(d.keys)) })
	case "values":
		return method(name, func(r *run, a arguments) Value { a.only(name); return r.list(slices.Clone(d.values)) })
	case "copy":
		return method(name, func(r *run, a arguments) Value { return dictOf(r, arguments{pos: []Value{d}}) })
	case "pop", "popitem", "clear", "update", "setdefault":
		return method(name, func(*run, arguments) Value { return immutable(name) })
	}
	return nil
}

// listMethod returns a method of list, nil if it has none of that name here.
func listMethod(l *List, name string) Value {
	switch name {
	case "index", "count":
		return method(name, func(r *run, a arguments) Value {
			a.only(name, "value")
			n, first := 0, -1
			for i, v := range l.Items {
				if r.equal(v, a.or(0, "value", nil), 0) {
					if n++; first < 0 {
						first = i
					}
				}
			}
			if name == "count" {
				return int64(n)
			}
			if first < 0 {
				failf("the value is not in the list")
			}
			return int64(first)
		})
	case "copy":
		return method(name, func(r *run, a arguments) Value { return r.list(slices.Clone(l.Items)) })
	case "append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse":
		if l.tuple {
			return nil
		}
		return method(name, func(*run, arguments) Value { return immutable(name) })
	}
	return nil
}

func immutable(name string) Value {
	failf("%s would change a value, which the sandbox forbids", name)
	return nil
}
