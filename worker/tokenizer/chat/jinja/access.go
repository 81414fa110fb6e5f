package jinja

import (
	"math/big"
	"strings"
	"unicode/utf8"
)

func (e *fieldExpr) eval(f *frame) Value {
	f.step()
	return f.attribute(e.of.eval(f), e.name)
}

// attribute is of.name: an attribute, else an element.
func (r *run) attribute(of Value, name string) Value {
	if missing, ok := of.(*undefined); ok {
		failf("%s is undefined, so it has no %s", missing.what, name)
	}
	if strings.HasPrefix(name, "_") {
		return &undefined{"the unsafe attribute " + name}
	}
	switch of := of.(type) {
	case *namespace:
		if v, ok := of.fields.Get(name); ok {
			return v
		}
	case *loop:
		return of.field(name)
	case *cycler:
		return of.field(name)
	case *Dict:
		if m := dictMethod(of, name); m != nil {
			return m
		}
		if v, ok := of.Get(name); ok {
			return v
		}
	case Text:
		if m := textMethod(of, name); m != nil {
			return m
		}
	case *List:
		if v := of.named(name); v != nil {
			return v
		}
		if m := listMethod(of, name); m != nil {
			return m
		}
	}
	return &undefined{typeName(of) + " has no " + name}
}

// named is a field of the pairs that groupby makes.
func (l *List) named(name string) Value {
	if l.tuple && len(l.Items) == 2 {
		switch name {
		case "grouper":
			return l.Items[0]
		case "list":
			return l.Items[1]
		}
	}
	return nil
}

func (e *attrExpr) eval(f *frame) Value {
	f.step()
	return f.element(e.of.eval(f), e.name.eval(f))
}

// element is of[key]: an element, else an attribute.
func (r *run) element(of, key Value) Value {
	switch x := of.(type) {
	case *undefined:
		failf("%s is undefined, so it has no element", x.what)
	case *Dict:
		if v, ok := x.get(key); ok {
			return v
		}
	case *List:
		if n, _, ok := number(key); ok && n != nil {
			if i, ok := place(n, len(x.Items)); ok {
				return x.Items[i]
			}
			return &undefined{"an element outside of a list"}
		}
	case Text:
		if n, _, ok := number(key); ok && n != nil {
			if i, ok := place(n, utf8.RuneCountInString(x.s)); ok {
				from := offset(x.s, i)
				return x.slice(from, offset(x.s, i+1))
			}
			return &undefined{"a character outside of a text"}
		}
	}
	if t, ok := key.(Text); ok {
		return r.attribute(of, t.s)
	}
	return &undefined{typeName(of) + " has no such element"}
}

// place is an index from either end.
func place(n *big.Int, length int) (int, bool) {
	if !n.IsInt64() {
		return 0, false
	}
	i := n.Int64()
	if i < 0 {
		i += int64(length)
	}
	return int(i), 0 <= i && i < int64(length)
}

func (e *sliceExpr) eval(f *frame) Value {
	f.step()
	of := e.of.eval(f)
	part := func(x expr) *int {
		if x == nil {
			return nil
		}
		v := x.eval(f)
		if v == nil {
			return nil
		}
		n := smallInt(v, "a slice")
		return &n
	}
	from, to, step := part(e.from), part(e.to), part(e.step)
	switch of := of.(type) {
	case *undefined:
		failf("%s is undefined, so it has no slice", of.what)
	case *List:
		var out []Value
		for _, i := range indexes(from, to, step, len(of.Items)) {
			out = append(out, of.Items[i])
		}
		l := f.list(out)
		l.tuple = of.tuple
		return l
	case Text:
		n := utf8.RuneCountInString(of.s)
		if step == nil || *step == 1 {
			at := indexes(from, to, nil, n)
			if len(at) == 0 {
				return Text{}
			}
			first := offset(of.s, at[0])
			return of.slice(first, first+offset(of.s[first:], len(at)))
		}
		runes := []rune(of.s)
		var out []rune
		for _, i := range indexes(from, to, step, n) {
			out = append(out, runes[i])
		}
		return f.text(Mark(string(out), of.class()))
	}
	return &undefined{"a slice of " + typeName(of)}
}

// indexes lists what a slice takes of n elements, as in Python.
func indexes(from, to, step *int, n int) []int {
	by := 1
	if step != nil {
		by = *step
	}
	if by == 0 {
		failf("a slice with steps of zero")
	}
	bound := func(v *int, def, low, high int) int {
		if v == nil {
			return def
		}
		i := *v
		if i < 0 {
			i = max(i+n, low)
		}
		return min(max(i, low), high)
	}
	var out []int
	if by > 0 {
		for i, end := bound(from, 0, 0, n), bound(to, n, 0, n); i < end; {
			out = append(out, i)
			if by > n {
				break
			}
			i += by
		}
		return out
	}
	for i, end := bound(from, n-1, -1, n-1), bound(to, -1, -1, n-1); i > end; {
		out = append(out, i)
		if by < -n {
			break
		}
		i += by
	}
	return out
}
