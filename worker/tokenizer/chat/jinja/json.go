package jinja

import (
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// jsonWriter writes JSON byte for byte as Python's json.dumps does.
type jsonWriter struct {
	r *run
	b strings.Builder
	// item and key are the separators; indent is the text of one level, used
	// when lines is set.
	item, key, indent string
	lines             bool
	ascii, sorted     bool
	class             Class
}

// toJSON is the filter tojson with the arguments that the reference gives it.
func toJSON(r *run, v Value, a arguments) Value {
	a.only("tojson", "ensure_ascii", "indent", "separators", "sort_keys")
	w := &jsonWriter{r: r, item: ", ", key: ": "}
	w.ascii = truth(a.or(0, "ensure_ascii", false))
	w.sorted = truth(a.or(3, "sort_keys", false))
	switch indent := a.or(1, "indent", nil).(type) {
	case nil:
	case Text:
		w.lines, w.indent, w.item = true, indent.s, ","
	default:
		n := max(0, smallInt(indent, "indent"))
		if n > 64 {
			failf("%w: an indent of %d", ErrBudget, n)
		}
		w.lines, w.indent, w.item = true, strings.Repeat(" ", n), ","
	}
	if pair, ok := a.or(2, "separators", nil).(*List); ok && len(pair.Items) == 2 {
		w.item, w.key = r.str(pair.Items[0]).s, r.str(pair.Items[1]).s
	}
	w.value(v, 0)
	return Mark(w.b.String(), w.class)
}

// put writes s and counts it.
func (w *jsonWriter) put(s string) {
	w.r.use(len(s))
	w.b.WriteString(s)
}

func (w *jsonWriter) value(v Value, depth int) {
	if depth > maxNesting {
		failf("%w: JSON nested deeper than %d", ErrBudget, maxNesting)
	}
	w.r.step()
	switch v := v.(type) {
	case nil:
		w.put("null")
	case bool:
		w.put(strconv.FormatBool(v))
	case int64:
		w.put(strconv.FormatInt(v, 10))
	case *big.Int:
		w.put(v.String())
	case float64:
		w.put(jsonFloat(v))
	case Text:
		w.class = max(w.class, v.class())
		w.text(v.s)
	case *List:
		w.put("[")
		for i, x := range v.Items {
			w.between(i, depth+1)
			w.value(x, depth+1)
		}
		w.last(len(v.Items), depth)
		w.put("]")
	case *Dict:
		w.dict(v, depth)
	default:
		failf("tojson of a %s", typeName(v))
	}
}

func (w *jsonWriter) dict(d *Dict, depth int) {
	at := make([]int, len(d.keys))
	for i := range at {
		at[i] = i
	}
	if w.sorted {
		slices.SortStableFunc(at, func(i, j int) int { return w.r.order(d.keys[i], d.keys[j]) })
	}
	w.put("{")
	for n, i := range at {
		w.between(n, depth+1)
		switch k := d.keys[i].(type) {
		case Text:
			w.class = max(w.class, k.class())
			w.text(k.s)
		case float64:
			w.text(jsonFloat(k))
		case nil:
			w.text("null")
		case bool:
			w.text(strconv.FormatBool(k))
		case int64, *big.Int:
			w.text(fmt.Sprint(k))
		default:
			failf("tojson: a %s as a key", typeName(k))
		}
		w.put(w.key)
		w.value(d.values[i], depth+1)
	}
	w.last(len(at), depth)
	w.put("}")
}

// between writes what stands before element i.
func (w *jsonWriter) between(i, depth int) {
	if i > 0 {
		w.put(w.item)
	}
	w.line(depth)
}

// last writes what stands behind n elements.
func (w *jsonWriter) last(n, depth int) {
	if n > 0 {
		w.line(depth)
	}
}

func (w *jsonWriter) line(depth int) {
	if w.lines {
		w.put("\n")
		w.put(strings.Repeat(w.indent, depth))
	}
}

func jsonFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	return floatText(f)
}

func (w *jsonWriter) text(s string) {
	w.r.use(len(s) + 2)
	w.b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			w.b.WriteByte('\\')
			w.b.WriteRune(r)
		case r == '\n':
			w.b.WriteString(`\n`)
		case r == '\r':
			w.b.WriteString(`\r`)
		case r == '\t':
			w.b.WriteString(`\t`)
		case r == '\b':
			w.b.WriteString(`\b`)
		case r == '\f':
			w.b.WriteString(`\f`)
		case r < ' ':
			w.put(fmt.Sprintf(`\u%04x`, r))
		case w.ascii && r >= 0x7F:
			if hi, lo := utf16.EncodeRune(r); hi != utf8.RuneError {
				w.put(fmt.Sprintf(`\u%04x\u%04x`, hi, lo))
			} else {
				w.put(fmt.Sprintf(`\u%04x`, r))
			}
		default:
			w.b.WriteRune(r)
		}
	}
	w.b.WriteByte('"')
}
