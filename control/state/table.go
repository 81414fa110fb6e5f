package state

import (
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"
)

// entry is an object with the index of the command that changed it last.
type entry[T any] struct {
	Index uint64 `json:"index"`
	Value T      `json:"value"`
}

// table is the objects of one kind by name. It is immutable: with and without
// return changed copies. The zero value is empty.
type table[T any] map[string]entry[T]

func (t table[T]) get(name string) (T, bool) {
	e, ok := t[name]
	return e.Value, ok
}

func (t table[T]) with(name string, value T, index uint64) table[T] {
	next := maps.Clone(t)
	if next == nil {
		next = table[T]{}
	}
	next[name] = entry[T]{index, value}
	return next
}

func (t table[T]) without(name string) table[T] {
	next := maps.Clone(t)
	delete(next, name)
	return next
}

// all yields the objects in the order of their names.
func (t table[T]) all() iter.Seq2[string, T] {
	return func(yield func(string, T) bool) {
		for _, name := range slices.Sorted(maps.Keys(t)) {
			if !yield(name, t[name].Value) {
				return
			}
		}
	}
}

// Object is one object as it travels to watchers. A null Value means that it is gone.
type Object struct {
	Kind  ObjectKind      `json:"kind"`
	Name  string          `json:"name"`
	Index uint64          `json:"index"`
	Value json.RawMessage `json:"value,omitempty"`
}

// erased is what State does with a table whatever its type.
type erased interface {
	// since lists the objects changed after an index, by name.
	since(kind ObjectKind, index uint64) ([]Object, error)
	// follow returns the table with a change that another State has made.
	follow(o Object) (erased, error)
}

func (t table[T]) since(kind ObjectKind, index uint64) ([]Object, error) {
	var out []Object
	for _, name := range slices.Sorted(maps.Keys(t)) {
		e := t[name]
		if e.Index <= index {
			continue
		}
		value, err := json.Marshal(e.Value)
		if err != nil {
			return nil, fmt.Errorf("encode %s %s: %w", kind, name, err)
		}
		out = append(out, Object{kind, name, e.Index, value})
	}
	return out, nil
}

func (t table[T]) follow(o Object) (erased, error) {
	if o.Value == nil {
		return t.without(o.Name), nil
	}
	var value T
	if err := json.Unmarshal(o.Value, &value); err != nil {
		return nil, fmt.Errorf("decode %s %s: %w", o.Kind, o.Name, err)
	}
	return t.with(o.Name, value, o.Index), nil
}
