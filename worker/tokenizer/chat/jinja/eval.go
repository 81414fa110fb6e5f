package jinja

import (
	"math"
	"math/big"
	"strings"
	"unicode/utf8"
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

func (e *unary) eval(f *frame) Value {
	f.step()
	v := e.of.eval(f)
	n, x, ok := number(v)
	if !ok {
		failf("the sign of a %s", typeName(v))
	}
	switch {
	case n == nil && e.op == "-":
		return -x
	case n == nil:
		return x
	case e.op == "-":
		return integer(new(big.Int).Neg(n))
	}
	return integer(n)
}

func (e *binary) eval(f *frame) Value {
	f.step()
	a, b := e.left.eval(f), e.right.eval(f)
	an, af, aok := number(a)
	bn, bf, bok := number(b)
	switch {
	case aok && bok && an != nil && bn != nil:
		return integers(e.op, an, bn)
	case aok && bok:
		return floats(e.op, af, bf)
	}
	switch x := a.(type) {
	case Text:
		switch y := b.(type) {
		case Text:
			if e.op == "+" {
				f.use(len(x.s) + len(y.s))
				return concat(x, y)
			}
		default:
			if bn != nil && e.op == "*" {
				return f.repeat(x, bn)
			}
		}
		if e.op == "%" {
			return f.text(f.percent(x, b))
		}
	case *List:
		if y, ok := b.(*List); ok && e.op == "+" && x.tuple == y.tuple {
			f.use(16 * (len(x.Items) + len(y.Items)))
			return &List{Items: append(append([]Value{}, x.Items...), y.Items...), tuple: x.tuple}
		}
		if bn != nil && e.op == "*" {
			return f.repeatList(x, bn)
		}
	}
	if an != nil && e.op == "*" {
		switch y := b.(type) {
		case Text:
			return f.repeat(y, an)
		case *List:
			return f.repeatList(y, an)
		}
	}
	failf("%s %s %s", typeName(a), e.op, typeName(b))
	return nil
}

// times bounds how often something of a size is repeated.
func (r *run) times(n *big.Int, size int) int {
	if n.Sign() <= 0 || size == 0 {
		return 0
	}
	if !n.IsInt64() || n.Int64() > int64(math.MaxInt32) {
		failf("%w: repeated %s times", ErrBudget, n)
	}
	r.use(int(min(n.Int64()*int64(size), math.MaxInt32)))
	return int(n.Int64())
}

func (r *run) repeat(t Text, n *big.Int) Value {
	k := r.times(n, len(t.s))
	return Mark(strings.Repeat(t.s, k), t.class())
}

func (r *run) repeatList(l *List, n *big.Int) Value {
	k := r.times(n, 16*len(l.Items))
	out := &List{tuple: l.tuple}
	for range k {
		out.Items = append(out.Items, l.Items...)
	}
	return out
}

func integers(op string, a, b *big.Int) Value {
	z := new(big.Int)
	switch op {
	case "+":
		return integer(z.Add(a, b))
	case "-":
		return integer(z.Sub(a, b))
	case "*":
		return integer(z.Mul(a, b))
	}
	if op == "**" {
		switch {
		case b.Sign() < 0:
			_, x, _ := number(a)
			_, y, _ := number(b)
			return math.Pow(x, y)
		case !b.IsInt64() || b.Int64() > maxBits || int64(a.BitLen())*b.Int64() > 2*maxBits:
			failf("%w: the power %s", ErrBudget, b)
		}
		return integer(z.Exp(a, b, nil))
	}
	if b.Sign() == 0 {
		failf("division by zero")
	}
	switch op {
	case "/":
		x, _ := new(big.Rat).SetFrac(a, b).Float64()
		return x
	case "//":
		m := new(big.Int)
		z.DivMod(a, b, m)
		if b.Sign() < 0 && m.Sign() != 0 {
			z.Sub(z, big.NewInt(1)) // Go rounds to where the rest is positive, Python down
		}
		return integer(z)
	}
	z.Mod(a, b)
	if b.Sign() < 0 && z.Sign() != 0 {
		z.Add(z, b)
	}
	return integer(z)
}

func floats(op string, a, b float64) Value {
	switch op {
	case "+":
		return a + b
	case "-":
		return a - b
	case "*":
		return a * b
	case "**":
		return math.Pow(a, b)
	}
	if b == 0 {
		failf("division by zero")
	}
	switch op {
	case "/":
		return a / b
	case "//":
		return math.Floor(a / b)
	}
	m := math.Mod(a, b)
	if m != 0 && (m < 0) != (b < 0) {
		m += b
	}
	return m
}

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

func (a *argList) eval(f *frame) arguments {
	var out arguments
	for _, x := range a.pos {
		out.pos = append(out.pos, x.eval(f))
	}
	if a.spread != nil {
		out.pos = append(out.pos, f.iterate(a.spread.eval(f))...)
	}
	out.names = append(out.names, a.names...)
	for _, x := range a.named {
		out.named = append(out.named, x.eval(f))
	}
	if a.dict != nil {
		d, ok := a.dict.eval(f).(*Dict)
		if !ok {
			failf("** needs a dict")
		}
		for i, k := range d.keys {
			name, ok := k.(Text)
			if !ok {
				failf("** needs names")
			}
			out.names = append(out.names, name.s)
			out.named = append(out.named, d.values[i])
		}
	}
	f.use(16 * (len(out.pos) + len(out.named)))
	return out
}

func (e *callExpr) eval(f *frame) Value {
	f.step()
	fn := e.of.eval(f)
	return f.callValue(fn, e.args.eval(f))
}

func (r *run) callValue(fn Value, a arguments) Value {
	switch fn := fn.(type) {
	case *function:
		return fn.call(r, a)
	case *macro:
		return fn.call(r, a)
	case *loop:
		return fn.call(r, a)
	case *joiner:
		return fn.call()
	case *undefined:
		failf("%s is undefined, so it cannot be called", fn.what)
	}
	failf("a %s cannot be called", typeName(fn))
	return nil
}

func (e *filterExpr) eval(f *frame) Value { return e.apply(f, e.of.eval(f)) }

func (e *filterExpr) apply(f *frame, v Value) Value {
	f.step()
	return e.call(f.run, v, e.args.eval(f))
}

func (e *testExpr) eval(f *frame) Value {
	f.step()
	v := e.of.eval(f)
	return e.call(f.run, v, e.args.eval(f)) != e.not
}
