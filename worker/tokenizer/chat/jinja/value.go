package jinja

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Value is what a variable may hold: nil (Python's None), bool, int64, *big.Int for
// integers beyond, float64, Text, *List, *Dict, and what the package makes itself.
type Value = any

// List is a list or a tuple.
type List struct {
	Items []Value
	tuple bool
}

// Dict keeps the order of its keys.
type Dict struct {
	keys   []Value
	values []Value
	index  map[any]int
}

// undefined is the value of a name that nothing is bound to.
type undefined struct{ what string }

// namespace is a dict whose fields may be assigned to.
type namespace struct{ fields *Dict }

// arguments of a call.
type arguments struct {
	pos   []Value
	names []string
	named []Value
}

// function is a value that can be called.
type function struct {
	name string
	call func(r *run, a arguments) Value
}

// maxBits bounds integers.
const maxBits = 4096

// integer is n as int64 if it fits.
func integer(n *big.Int) Value {
	if n.IsInt64() {
		return n.Int64()
	}
	if n.BitLen() > maxBits {
		failf("%w: an integer of %d bits", ErrBudget, n.BitLen())
	}
	return n
}

// NewDict returns an empty dict.
func NewDict() *Dict { return &Dict{index: map[any]int{}} }

// hashed is what a key is found by: equal for values that are equal in Python.
func hashed(key Value) any {
	switch k := key.(type) {
	case nil:
		return struct{}{}
	case bool:
		if k {
			return int64(1)
		}
		return int64(0)
	case int64:
		return k
	case *big.Int:
		return "\x00int " + k.String()
	case float64:
		if k == math.Trunc(k) && math.Abs(k) < 1<<62 {
			return int64(k)
		}
		return k
	case Text:
		return k.s
	case *List:
		if k.tuple && len(k.Items) <= 8 {
			h := "\x00tuple"
			for _, x := range k.Items {
				if _, deep := x.(*List); deep {
					failf("a tuple of tuples cannot be a key")
				}
				h += fmt.Sprintf(" %T %q", x, fmt.Sprint(hashed(x)))
			}
			return h
		}
	case *undefined:
		return "\x00undefined"
	}
	failf("a %s cannot be a key", typeName(key))
	return nil
}

// Set adds or replaces; a replaced key keeps its place.
func (d *Dict) Set(key, value Value) {
	h := hashed(key)
	if i, ok := d.index[h]; ok {
		d.values[i] = value
		return
	}
	d.index[h] = len(d.keys)
	d.keys = append(d.keys, key)
	d.values = append(d.values, value)
}

func (d *Dict) get(key Value) (Value, bool) {
	i, ok := d.index[hashed(key)]
	if !ok {
		return nil, false
	}
	return d.values[i], true
}

// Get finds a value by a text; nil and false if there is none.
func (d *Dict) Get(key string) (Value, bool) { return d.get(own(key)) }

// Len is the number of keys.
func (d *Dict) Len() int { return len(d.keys) }

// All goes over keys and values in order.
func (d *Dict) All() iter.Seq2[Value, Value] {
	return func(yield func(Value, Value) bool) {
		for i, k := range d.keys {
			if !yield(k, d.values[i]) {
				return
			}
		}
	}
}

func typeName(v Value) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case bool:
		return "bool"
	case int64, *big.Int:
		return "int"
	case float64:
		return "float"
	case Text:
		return "str"
	case *List:
		if v.tuple {
			return "tuple"
		}
		return "list"
	case *Dict:
		return "dict"
	case *undefined:
		return "undefined value (" + v.what + ")"
	case *namespace:
		return "namespace"
	}
	return "function"
}

func truth(v Value) bool {
	switch v := v.(type) {
	case nil, *undefined:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case *big.Int:
		return true
	case float64:
		return v != 0
	case Text:
		return v.s != ""
	case *List:
		return len(v.Items) > 0
	case *Dict:
		return len(v.keys) > 0
	}
	return true
}

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

// number is a numeric value of v: an integer or, when that is nil, a float.
func number(v Value) (n *big.Int, f float64, ok bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return big.NewInt(1), 1, true
		}
		return new(big.Int), 0, true
	case int64:
		return big.NewInt(v), float64(v), true
	case *big.Int:
		f, _ := new(big.Float).SetInt(v).Float64()
		return v, f, true
	case float64:
		return nil, v, true
	}
	return nil, 0, false
}

// equal is a == b.
func (r *run) equal(a, b Value, depth int) bool {
	r.step()
	if depth > maxNesting {
		failf("%w: a value nested deeper than %d", ErrBudget, maxNesting)
	}
	an, af, aok := number(a)
	bn, bf, bok := number(b)
	if aok && bok {
		if an != nil && bn != nil {
			return an.Cmp(bn) == 0
		}
		return af == bf
	}
	switch a := a.(type) {
	case nil:
		return b == nil
	case Text:
		t, ok := b.(Text)
		return ok && a.s == t.s
	case *undefined:
		_, ok := b.(*undefined)
		return ok
	case *List:
		l, ok := b.(*List)
		if !ok || len(l.Items) != len(a.Items) || l.tuple != a.tuple {
			return false
		}
		for i := range a.Items {
			if !r.equal(a.Items[i], l.Items[i], depth+1) {
				return false
			}
		}
		return true
	case *Dict:
		d, ok := b.(*Dict)
		if !ok || len(d.keys) != len(a.keys) {
			return false
		}
		for i, k := range a.keys {
			if v, ok := d.get(k); !ok || !r.equal(a.values[i], v, depth+1) {
				return false
			}
		}
		return true
	}
	return a == b
}

// order is negative, zero or positive as a is below, equal to or above b.
func (r *run) order(a, b Value) int {
	r.step()
	an, af, aok := number(a)
	bn, bf, bok := number(b)
	switch {
	case aok && bok && an != nil && bn != nil:
		return an.Cmp(bn)
	case aok && bok && af < bf:
		return -1
	case aok && bok && af > bf:
		return 1
	case aok && bok:
		return 0
	}
	if s, ok := a.(Text); ok {
		if t, ok := b.(Text); ok {
			return strings.Compare(s.s, t.s)
		}
	}
	if l, ok := a.(*List); ok {
		if m, ok := b.(*List); ok && l.tuple == m.tuple {
			for i := range min(len(l.Items), len(m.Items)) {
				if !r.equal(l.Items[i], m.Items[i], 0) {
					return r.order(l.Items[i], m.Items[i])
				}
			}
			return len(l.Items) - len(m.Items)
		}
	}
	failf("%s and %s have no order", typeName(a), typeName(b))
	return 0
}

func isRange(err error) bool { return errors.Is(err, strconv.ErrRange) }

// arg returns the argument at a position or with a name.
func (a *arguments) arg(i int, name string) (Value, bool) {
	if i < len(a.pos) {
		return a.pos[i], true
	}
	for k, n := range a.names {
		if n == name {
			return a.named[k], true
		}
	}
	return nil, false
}

// only refuses arguments beyond those named, in the order of their positions.
func (a *arguments) only(what string, names ...string) {
	if len(a.pos) > len(names) {
		failf("%s takes at most %d arguments, found %d", what, len(names), len(a.pos))
	}
next:
	for _, n := range a.names {
		for i, known := range names {
			if n == known {
				if i < len(a.pos) {
					failf("%s: argument %s twice", what, n)
				}
				continue next
			}
		}
		failf("%s has no argument %s", what, n)
	}
}

// or returns an argument or a default.
func (a *arguments) or(i int, name string, otherwise Value) Value {
	if v, ok := a.arg(i, name); ok {
		return v
	}
	return otherwise
}

// int returns an integer argument or a default.
func (a *arguments) int(i int, name string, otherwise int) int {
	v, ok := a.arg(i, name)
	if !ok {
		return otherwise
	}
	return smallInt(v, name)
}

// text returns a text argument or a default.
func (a *arguments) text(i int, name, otherwise string) Text {
	v, ok := a.arg(i, name)
	if !ok {
		return own(otherwise)
	}
	t, ok := v.(Text)
	if !ok {
		failf("%s: expected a text, found %s", name, typeName(v))
	}
	return t
}

func smallInt(v Value, what string) int {
	if n, _, ok := number(v); ok && n != nil && n.IsInt64() && n.Int64() == int64(int(n.Int64())) {
		return int(n.Int64())
	}
	failf("%s: expected an integer, found %s", what, typeName(v))
	return 0
}
