package jinja

import (
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// filter is a filter: a value, and the arguments behind its name.
type filter func(r *run, v Value, a arguments) Value

// filterNamed returns a filter, nil if it is not known.
func filterNamed(name string) filter {
	switch name {
	case "tojson":
		return toJSON
	case "trim":
		return func(r *run, v Value, a arguments) Value {
			a.only(name, "chars")
			return stripped(r.str(v), a, true, true)
		}
	case "default", "d":
		return defaulted
	case "length", "count":
		return func(r *run, v Value, a arguments) Value { a.only(name); return int64(r.length(v)) }
	case "string":
		return func(r *run, v Value, a arguments) Value { a.only(name); return r.str(v) }
	case "safe":
		return func(r *run, v Value, a arguments) Value { a.only(name); return v }
	case "escape", "e", "forceescape":
		return escape
	case "upper", "lower", "title", "capitalize":
		return func(r *run, v Value, a arguments) Value { a.only(name); return r.text(recased(name, r.str(v))) }
	case "replace":
		return func(r *run, v Value, a arguments) Value {
			a.only(name, "old", "new", "count")
			return r.replaced(r.str(v), r.str(a.or(0, "old", nil)), r.str(a.or(1, "new", nil)), a.int(2, "count", -1))
		}
	case "indent":
		return indent
	case "int":
		return toInt
	case "float":
		return toFloat
	case "abs":
		return absolute
	case "round":
		return round
	case "format":
		return func(r *run, v Value, a arguments) Value {
			return r.text(r.percent(r.str(v), &List{Items: a.pos, tuple: true}))
		}
	case "attr":
		return func(r *run, v Value, a arguments) Value { return r.attribute(v, a.text(0, "name", "").s) }
	case "wordcount":
		return func(r *run, v Value, a arguments) Value { a.only(name); return int64(len(r.str(v).fields(-1))) }
	case "truncate":
		return truncate
	case "center":
		return func(r *run, v Value, a arguments) Value {
			a.only(name, "width")
			return r.padded(r.str(v), a.int(0, "width", 80), " ", "center")
		}
	}
	return listFilterNamed(name)
}

func (r *run) length(v Value) int {
	switch v := v.(type) {
	case Text:
		return utf8.RuneCountInString(v.s)
	case *List:
		return len(v.Items)
	case *Dict:
		return len(v.keys)
	case *undefined:
		return 0
	}
	failf("a %s has no length", typeName(v))
	return 0
}

func defaulted(_ *run, v Value, a arguments) Value {
	a.only("default", "default_value", "boolean")
	_, missing := v.(*undefined)
	if missing || truth(a.or(1, "boolean", false)) && !truth(v) {
		return a.or(0, "default_value", Text{})
	}
	return v
}

// escape is for HTML.
func escape(r *run, v Value, a arguments) Value {
	a.only("escape")
	t := r.str(v)
	s := strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "'", "&#39;", `"`, "&#34;").Replace(t.s)
	return r.text(Mark(s, t.class()))
}

// replaced is str.replace.
func (r *run) replaced(t, old, by Text, count int) Value {
	n := strings.Count(t.s, old.s)
	if count >= 0 {
		n = min(n, count)
	}
	r.use(len(t.s) + n*max(0, len(by.s)-len(old.s)))
	if n == 0 {
		return t
	}
	return Mark(strings.Replace(t.s, old.s, by.s, n), max(t.class(), by.class()))
}

func indent(r *run, v Value, a arguments) Value {
	a.only("indent", "width", "first", "blank")
	width := own("    ")
	switch w := a.or(0, "width", int64(4)).(type) {
	case Text:
		width = w
	default:
		n := smallInt(w, "width")
		r.use(max(0, n))
		width = own(strings.Repeat(" ", max(0, n)))
	}
	t := r.str(v)
	lines := concat(t, own("\n")).lines()
	r.use(len(t.s) + len(lines)*(len(width.s)+1))
	var b builder
	for i, line := range lines {
		switch {
		case i > 0:
			b.add(own("\n"))
			if line.s != "" || truth(a.or(2, "blank", false)) {
				b.add(width)
			}
		case truth(a.or(1, "first", false)):
			b.add(width)
		}
		b.add(line)
	}
	return b.text()
}

func toInt(_ *run, v Value, a arguments) Value {
	a.only("int", "default", "base")
	otherwise := a.or(0, "default", int64(0))
	switch v := v.(type) {
	case Text:
		s := strings.TrimFunc(v.s, blank)
		if n, ok := new(big.Int).SetString(strings.ReplaceAll(s, "_", ""), a.int(1, "base", 10)); ok && len(s) < 1000 {
			return integer(n)
		}
		if f, err := strconv.ParseFloat(s, 64); err == nil && !math.IsInf(f, 0) && !math.IsNaN(f) {
			n, _ := big.NewFloat(f).Int(nil)
			return integer(n)
		}
		return otherwise
	case float64:
		if math.IsInf(v, 0) || math.IsNaN(v) {
			return otherwise
		}
		n, _ := big.NewFloat(v).Int(nil)
		return integer(n)
	}
	if n, _, ok := number(v); ok {
		return integer(n)
	}
	return otherwise
}

func toFloat(_ *run, v Value, a arguments) Value {
	a.only("float", "default")
	if _, f, ok := number(v); ok {
		return f
	}
	if t, ok := v.(Text); ok {
		s := strings.TrimFunc(t.s, blank)
		if f, err := strconv.ParseFloat(s, 64); (err == nil || isRange(err)) && !strings.ContainsAny(s, "xX_") {
			return f
		}
	}
	return a.or(0, "default", 0.0)
}

func absolute(_ *run, v Value, a arguments) Value {
	a.only("abs")
	n, f, ok := number(v)
	switch {
	case !ok:
		failf("abs of a %s", typeName(v))
	case n == nil:
		return math.Abs(f)
	}
	return integer(new(big.Int).Abs(n))
}

func round(_ *run, v Value, a arguments) Value {
	a.only("round", "precision", "method")
	n, f, ok := number(v)
	if !ok {
		failf("round of a %s", typeName(v))
	}
	digits := a.int(0, "precision", 0)
	if digits < -300 || digits > 300 {
		failf("round to %d digits", digits)
	}
	power := math.Pow(10, float64(digits))
	switch method := a.text(1, "method", "common").s; method {
	case "common":
		if n != nil && digits >= 0 {
			return integer(n)
		}
		if digits >= 0 { // to even, by the exact decimal value
			x, err := strconv.ParseFloat(strconv.FormatFloat(f, 'f', digits, 64), 64)
			if err == nil {
				return x
			}
		}
		x := math.RoundToEven(f*power) / power
		if n != nil {
			return int64(x)
		}
		return x
	case "ceil":
		return math.Ceil(f*power) / power
	case "floor":
		return math.Floor(f*power) / power
	default:
		failf("round: the method %q", method)
	}
	return nil
}

func truncate(r *run, v Value, a arguments) Value {
	a.only("truncate", "length", "killwords", "end", "leeway")
	t, end := r.str(v), a.text(2, "end", "...")
	length, leeway := a.int(0, "length", 255), a.int(3, "leeway", 5)
	room := length - utf8.RuneCountInString(end.s)
	if room < 0 || leeway < 0 {
		failf("truncate to %d characters", length)
	}
	if utf8.RuneCountInString(t.s) <= length+leeway {
		return t
	}
	cut := t.slice(0, offset(t.s, room))
	if !truth(a.or(1, "killwords", false)) {
		if k := strings.LastIndexByte(cut.s, ' '); k >= 0 {
			cut = cut.slice(0, k)
		}
	}
	return r.text(concat(cut, end))
}

// percent is the operator % of a text.
func (r *run) percent(t Text, v Value) Text {
	items := []Value{v}
	if l, ok := v.(*List); ok && l.tuple {
		items = l.Items
	}
	var b strings.Builder
	class, at := t.class(), 0
	next := func() Value {
		if at == len(items) {
			failf("a format with too few values")
		}
		at++
		return items[at-1]
	}
	s := t.s
	for {
		k := strings.IndexByte(s, '%')
		if k < 0 {
			break
		}
		b.WriteString(s[:k])
		s = s[k+1:]
		flags := len(s) - len(strings.TrimLeft(s, "-+ 0123456789."))
		if flags == len(s) || flags > 8 {
			failf("a format that is not known here")
		}
		spec := s[:flags]
		switch c := s[flags]; c {
		case '%':
			b.WriteByte('%')
		case 's', 'r':
			x := next()
			out := r.str(x)
			if c == 'r' {
				out = r.repr(x, 0)
			}
			class = max(class, out.class())
			b.WriteString(sprintf(spec, 's', out.s))
		case 'd', 'i', 'x':
			n, f, ok := number(next())
			if !ok {
				failf("a format of a number with another value")
			}
			if n == nil {
				n, _ = big.NewFloat(f).Int(nil)
			}
			verb := c
			if c == 'i' {
				verb = 'd'
			}
			b.WriteString(sprintf(spec, verb, n))
		case 'f', 'e', 'g':
			_, f, ok := number(next())
			if !ok {
				failf("a format of a number with another value")
			}
			b.WriteString(sprintf(spec, c, f))
		default:
			failf("a format that is not known here")
		}
		s = s[flags+1:]
	}
	b.WriteString(s)
	if _, isDict := v.(*Dict); at < len(items) && !isDict {
		failf("a format with too many values")
	}
	return Mark(b.String(), class)
}

// stripped is strip, lstrip or rstrip with or without the characters to take off.
func stripped(t Text, a arguments, left, right bool) Text {
	set, ok := a.arg(0, "chars")
	if !ok || set == nil {
		return t.strip(left, right, blank)
	}
	chars, ok := set.(Text)
	if !ok {
		failf("strip of a %s", typeName(set))
	}
	return t.strip(left, right, func(r rune) bool { return strings.ContainsRune(chars.s, r) })
}

// sorted returns the items in order of what key gives.
func (r *run) sorted(items []Value, key func(Value) Value, reverse bool) []Value {
	type pair struct{ key, v Value }
	pairs := make([]pair, len(items))
	for i, v := range items {
		pairs[i] = pair{key(v), v}
	}
	r.use(16 * len(items))
	slices.SortStableFunc(pairs, func(a, b pair) int {
		r.step()
		if reverse {
			return r.order(b.key, a.key)
		}
		return r.order(a.key, b.key)
	})
	out := make([]Value, len(items))
	for i, p := range pairs {
		out[i] = p.v
	}
	return out
}
