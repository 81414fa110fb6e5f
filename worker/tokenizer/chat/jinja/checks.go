package jinja

import (
	"math/big"
	"strings"
	"unicode"
)

// tester is a test, as in "x is defined".
type tester func(r *run, v Value, a arguments) bool

// testNamed returns a test, nil if it is not known.
func testNamed(name string) tester {
	if op, ok := comparing(name); ok {
		return func(r *run, v Value, a arguments) bool {
			a.only(name, "other")
			return r.compare(op, v, a.or(0, "other", nil))
		}
	}
	if t := typeTest(name); t != nil {
		return func(r *run, v Value, a arguments) bool { a.only(name); return t(v) }
	}
	switch name {
	case "divisibleby":
		return func(r *run, v Value, a arguments) bool {
			n, _, ok := number(v)
			by, _, also := number(a.or(0, "num", nil))
			if !ok || !also || n == nil || by == nil || by.Sign() == 0 {
				failf("divisibleby needs integers")
			}
			return new(big.Int).Mod(n, by).Sign() == 0
		}
	case "sameas":
		return func(r *run, v Value, a arguments) bool {
			other := a.or(0, "other", nil)
			return typeName(v) == typeName(other) && r.equal(v, other, 0)
		}
	case "lower":
		return func(r *run, v Value, _ arguments) bool { return cased(r.str(v).s, unicode.IsLower) }
	case "upper":
		return func(r *run, v Value, _ arguments) bool { return cased(r.str(v).s, unicode.IsUpper) }
	case "filter":
		return func(r *run, v Value, a arguments) bool { return filterNamed(r.str(v).s) != nil }
	case "test":
		return func(r *run, v Value, a arguments) bool { return testNamed(r.str(v).s) != nil }
	}
	return nil
}

// comparing maps the tests that compare to operators.
func comparing(name string) (op string, ok bool) {
	switch name {
	case "eq", "equalto", "==":
		return "==", true
	case "ne", "!=":
		return "!=", true
	case "lt", "lessthan", "<":
		return "<", true
	case "le", "<=":
		return "<=", true
	case "gt", "greaterthan", ">":
		return ">", true
	case "ge", ">=":
		return ">=", true
	case "in":
		return "in", true
	}
	return "", false
}

// typeTest returns a test that looks at the value alone.
func typeTest(name string) func(Value) bool {
	switch name {
	case "defined":
		return func(v Value) bool { _, missing := v.(*undefined); return !missing }
	case "undefined":
		return func(v Value) bool { _, missing := v.(*undefined); return missing }
	case "none":
		return func(v Value) bool { return v == nil }
	case "true":
		return func(v Value) bool { return v == true }
	case "false":
		return func(v Value) bool { return v == false }
	case "boolean":
		return func(v Value) bool { _, ok := v.(bool); return ok }
	case "string":
		return func(v Value) bool { _, ok := v.(Text); return ok }
	case "number":
		return func(v Value) bool { _, _, ok := number(v); return ok }
	case "integer":
		return func(v Value) bool { n, _, ok := number(v); _, b := v.(bool); return ok && n != nil && !b }
	case "float":
		return func(v Value) bool { _, ok := v.(float64); return ok }
	case "mapping":
		return func(v Value) bool { _, ok := v.(*Dict); return ok }
	case "sequence", "iterable":
		return func(v Value) bool {
			switch v.(type) {
			case Text, *List, *Dict, *undefined:
				return true
			}
			return false
		}
	case "callable":
		return func(v Value) bool {
			switch v.(type) {
			case *function, *macro, *joiner, *loop:
				return true
			}
			return false
		}
	case "escaped":
		return func(Value) bool { return false }
	case "odd", "even":
		return func(v Value) bool {
			n, _, ok := number(v)
			if !ok || n == nil {
				failf("%s of a %s", name, typeName(v))
			}
			return n.Bit(0) == 1 == (name == "odd")
		}
	}
	return nil
}

// cased reports whether s has letters with a case, all of this one.
func cased(s string, is func(rune) bool) bool {
	some := false
	for _, r := range s {
		if unicode.IsUpper(r) || unicode.IsLower(r) || unicode.IsTitle(r) {
			if !is(r) {
				return false
			}
			some = true
		}
	}
	return some
}

// everyRune reports whether s is not empty and all its characters hold.
func everyRune(s string, is func(rune) bool) bool {
	return s != "" && strings.IndexFunc(s, func(r rune) bool { return !is(r) }) < 0
}
