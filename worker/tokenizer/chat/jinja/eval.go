package jinja

import (
	"strings"
)

func (e *literal) eval(f *frame) Value { f.step(); return e.v }

func (e *nameExpr) eval(f *frame) Value { f.step(); return f.lookup(e.name) }

func (e *listExpr) eval(f *frame) Value {
	f.step()
	items := make([]Value, len(e.items))
	for i, x := range e.items {
		items[i] = x.eval(f)
	}
	l := f.list(items)
	l.tuple = e.tuple
	return l
}

func (e *dictExpr) eval(f *frame) Value {
	f.step()
	d := NewDict()
	f.use(32 * len(e.keys))
	for i, k := range e.keys {
		d.Set(k.eval(f), e.values[i].eval(f))
	}
	return d
}

func (e *condExpr) eval(f *frame) Value {
	f.step()
	switch {
	case truth(e.test.eval(f)):
		return e.then.eval(f)
	case e.other != nil:
		return e.other.eval(f)
	}
	return &undefined{"the else of an if without one"}
}

func (e *notExpr) eval(f *frame) Value { f.step(); return !truth(e.of.eval(f)) }

func (e *logic) eval(f *frame) Value {
	f.step()
	if v := e.left.eval(f); truth(v) == e.or {
		return v
	}
	return e.right.eval(f)
}

func (e *concatExpr) eval(f *frame) Value {
	f.step()
	parts := make([]Text, len(e.parts))
	for i, p := range e.parts {
		parts[i] = f.str(p.eval(f))
		f.use(len(parts[i].s))
	}
	return concat(parts...)
}

func (e *compare) eval(f *frame) Value {
	f.step()
	left := e.first.eval(f)
	for i, op := range e.ops {
		right := e.rest[i].eval(f)
		if !f.compare(op, left, right) {
			return false
		}
		left = right
	}
	return true
}

func (r *run) compare(op string, a, b Value) bool {
	switch op {
	case "==":
		return r.equal(a, b, 0)
	case "!=":
		return !r.equal(a, b, 0)
	case "in":
		return r.contains(b, a)
	case "not in":
		return !r.contains(b, a)
	case "<":
		return r.order(a, b) < 0
	case "<=":
		return r.order(a, b) <= 0
	case ">":
		return r.order(a, b) > 0
	}
	return r.order(a, b) >= 0
}

// contains is item in of.
func (r *run) contains(of, item Value) bool {
	switch of := of.(type) {
	case Text:
		t, ok := item.(Text)
		if !ok {
			failf("a %s cannot be in a text", typeName(item))
		}
		return strings.Contains(of.s, t.s)
	case *Dict:
		_, ok := of.get(item)
		return ok
	}
	for _, v := range r.iterate(of) {
		if r.equal(v, item, 0) {
			return true
		}
	}
	return false
}
