package chat

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/ardanlabs/jinja"
)

// jsonWriter writes JSON byte for byte as Python's json.dumps does.
type jsonWriter struct {
	b strings.Builder
	// item and key are the separators; indent is the text of one level, used
	// when lines is set.
	item, key, indent string
	lines             bool
	ascii, sorted     bool
}

// filterJSON is the filter tojson with the keywords that transformers knows.
func filterJSON(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
	if len(args) != 1 {
		return jinja.None(), errors.New("tojson takes keywords only")
	}
	w := jsonWriter{item: ", ", key: ": "}
	for name, v := range kwargs {
		switch {
		case name == "ensure_ascii":
			w.ascii = v.IsTruthy()
		case name == "sort_keys":
			w.sorted = v.IsTruthy()
		case v.IsNone():
		case name == "indent" && v.IsInt() && v.AsInt() >= 0 && v.AsInt() <= 16:
			w.lines, w.indent = true, strings.Repeat(" ", int(v.AsInt()))
			w.item = ","
		case name == "indent" && v.IsString() && len(v.AsString()) <= 16:
			w.lines, w.indent = true, v.AsString()
			w.item = ","
		case name == "separators" && v.IsList() && v.AsList().Len() == 2:
		default:
			return jinja.None(), fmt.Errorf("tojson: keyword %s", name)
		}
	}
	if v, ok := kwargs["separators"]; ok && v.IsList() {
		if pair := v.AsList(); pair.Get(0).IsString() && pair.Get(1).IsString() {
			w.item, w.key = pair.Get(0).AsString(), pair.Get(1).AsString()
		}
	}
	if err := w.value(args[0], 0); err != nil {
		return jinja.None(), err
	}
	return jinja.NewString(w.b.String()), nil
}

func (w *jsonWriter) value(v jinja.Value, depth int) error {
	switch {
	case depth > 2*maxDepth:
		return fmt.Errorf("tojson: nested deeper than %d", 2*maxDepth)
	case v.IsNone():
		w.b.WriteString("null")
	case v.IsBool():
		w.b.WriteString(strconv.FormatBool(v.AsBool()))
	case v.IsInt():
		w.b.WriteString(strconv.FormatInt(v.AsInt(), 10))
	case v.IsFloat():
		w.b.WriteString(pythonFloat(v.AsFloat()))
	case v.IsString():
		if text, ok := strings.CutPrefix(v.AsString(), string(numberMark)); ok {
			w.b.WriteString(text)
			return nil
		}
		w.text(v.AsString())
	case v.IsList():
		return w.list(v.AsList(), depth)
	case v.IsDict():
		return w.dict(v.AsDict(), depth)
	default:
		return errors.New("tojson: the value is not defined")
	}
	return nil
}

func (w *jsonWriter) list(l *jinja.List, depth int) error {
	w.b.WriteByte('[')
	for i, v := range l.Items {
		if i > 0 {
			w.b.WriteString(w.item)
		}
		w.line(depth + 1)
		if err := w.value(v, depth+1); err != nil {
			return err
		}
	}
	if l.Len() > 0 {
		w.line(depth)
	}
	w.b.WriteByte(']')
	return nil
}

func (w *jsonWriter) dict(d *jinja.Dict, depth int) error {
	keys := d.Keys
	if w.sorted {
		keys = slices.Sorted(slices.Values(keys))
	}
	w.b.WriteByte('{')
	for i, k := range keys {
		if i > 0 {
			w.b.WriteString(w.item)
		}
		w.line(depth + 1)
		w.text(k)
		w.b.WriteString(w.key)
		if err := w.value(d.Data[k], depth+1); err != nil {
			return err
		}
	}
	if d.Len() > 0 {
		w.line(depth)
	}
	w.b.WriteByte('}')
	return nil
}

func (w *jsonWriter) line(depth int) {
	if w.lines {
		w.b.WriteByte('\n')
		w.b.WriteString(strings.Repeat(w.indent, depth))
	}
}

// text writes a quoted text. Marks are written as they are, so that clean still
// finds them.
func (w *jsonWriter) text(s string) {
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
			fmt.Fprintf(&w.b, `\u%04x`, r)
		case w.ascii && r >= utf8.RuneSelf && !isMark(r):
			if hi, lo := utf16.EncodeRune(r); hi != utf8.RuneError {
				fmt.Fprintf(&w.b, `\u%04x\u%04x`, hi, lo)
			} else {
				fmt.Fprintf(&w.b, `\u%04x`, r)
			}
		default:
			w.b.WriteRune(r)
		}
	}
	w.b.WriteByte('"')
}

func isMark(r rune) bool {
	return firstMark <= r && r <= lastMark || escapeBase <= r && r <= escapeBase+(lastMark-firstMark)
}
