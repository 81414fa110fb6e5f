package jinja

import (
	"math"
	"math/big"
	"strings"
)

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
