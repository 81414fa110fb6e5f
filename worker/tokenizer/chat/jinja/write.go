package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// str is str(v).
func (r *run) str(v Value) Text {
	switch v := v.(type) {
	case Text:
		return v
	case *undefined:
		return Text{}
	}
	return r.repr(v, 0)
}

// repr is r.repr(v). A value may hold another one many times, so that steps are counted.
func (r *run) repr(v Value, depth int) Text {
	r.step()
	if depth > maxNesting {
		failf("%w: a value nested deeper than %d", ErrBudget, maxNesting)
	}
	switch v := v.(type) {
	case nil:
		return own("None")
	case bool:
		if v {
			return own("True")
		}
		return own("False")
	case int64:
		return own(strconv.FormatInt(v, 10))
	case *big.Int:
		return own(v.String())
	case float64:
		return own(floatText(v))
	case Text:
		return Mark(quote(v.s), v.class())
	case *List:
		return r.reprList(v, depth)
	case *Dict:
		var b builder
		b.add(own("{"))
		for i, k := range v.keys {
			if i > 0 {
				b.add(own(", "))
			}
			b.add(r.repr(k, depth+1))
			b.add(own(": "))
			b.add(r.repr(v.values[i], depth+1))
		}
		b.add(own("}"))
		return b.text()
	case *undefined:
		return own("Undefined")
	case *namespace:
		return concat(own("<Namespace "), r.repr(v.fields, depth+1), own(">"))
	}
	return own("<" + typeName(v) + ">")
}

func (r *run) reprList(l *List, depth int) Text {
	open, end := "[", "]"
	if l.tuple {
		open, end = "(", ")"
		if len(l.Items) == 1 {
			end = ",)"
		}
	}
	var b builder
	b.add(own(open))
	for i, v := range l.Items {
		if i > 0 {
			b.add(own(", "))
		}
		b.add(r.repr(v, depth+1))
	}
	b.add(own(end))
	return b.text()
}

// quote is repr of a text.
func quote(s string) string {
	mark := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		mark = '"'
	}
	const hex = "0123456789abcdef"
	b := []byte{mark}
	for _, r := range s {
		switch {
		case r == rune(mark) || r == '\\':
			b = append(b, '\\', byte(r))
		case r == '\n':
			b = append(b, `\n`...)
		case r == '\r':
			b = append(b, `\r`...)
		case r == '\t':
			b = append(b, `\t`...)
		case r == ' ' || unicode.IsPrint(r):
			b = utf8.AppendRune(b, r)
		case r < 0x100:
			b = append(b, '\\', 'x', hex[r>>4], hex[r&15])
		case r < 0x10000:
			b = append(b, '\\', 'u', hex[r>>12], hex[r>>8&15], hex[r>>4&15], hex[r&15])
		default:
			b = append(b, '\\', 'U')
			for shift := 28; shift >= 0; shift -= 4 {
				b = append(b, hex[r>>shift&15])
			}
		}
	}
	return string(append(b, mark))
}

// floatText writes f as Python does: shortest digits, always a point or an exponent.
func floatText(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	s := strconv.FormatFloat(f, 'e', -1, 64)
	at := strings.IndexByte(s, 'e')
	if exp, err := strconv.Atoi(s[at+1:]); err == nil && (exp < -4 || exp >= 16) {
		return s
	}
	s = strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}
