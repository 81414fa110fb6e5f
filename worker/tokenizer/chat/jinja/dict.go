package jinja

import (
	"fmt"
	"iter"
	"math"
	"math/big"
)

// Dict keeps the order of its keys.
type Dict struct {
	keys   []Value
	values []Value
	index  map[any]int
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
