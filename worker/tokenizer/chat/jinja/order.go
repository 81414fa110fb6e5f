package jinja

import (
	"errors"
	"math/big"
	"strconv"
	"strings"
)

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
