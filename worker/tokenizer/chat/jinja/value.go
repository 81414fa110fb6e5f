package jinja

import (
	"math/big"
)

// Value is what a variable may hold: nil (Python's None), bool, int64, *big.Int for
// integers beyond, float64, Text, *List, *Dict, and what the package makes itself.
type Value = any

// List is a list or a tuple.
type List struct {
	Items []Value
	tuple bool
}

// undefined is the value of a name that nothing is bound to.
type undefined struct{ what string }

// namespace is a dict whose fields may be assigned to.
type namespace struct{ fields *Dict }

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
