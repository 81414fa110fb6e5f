package model

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/tokenrouter/tokenrouter/internal/jsonscan"
)

// fields is a JSON object with exact-case keys. The first error sticks, so that
// a caller reads all fields and checks once.
type fields struct {
	file string
	raw  map[string]json.RawMessage
	err  error
}

// maxFields bounds the keys of one object; the configurations in use have fewer than 100.
const maxFields = 1 << 12

// parseFields reads an object. The fields alias data. Of equal keys the last counts,
// as in the reference.
func parseFields(file string, data []byte) (*fields, error) {
	f := &fields{file: file, raw: map[string]json.RawMessage{}}
	s, err := jsonscan.New(data)
	if err == nil {
		err = s.Object(maxName, func(key []byte) error {
			if len(f.raw) == maxFields {
				return fmt.Errorf("expected at most %d keys, found more", maxFields)
			}
			f.raw[string(key)] = s.Raw()
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", file, ErrCorrupt, err)
	}
	return f, nil
}

// object reads a field that is present and must be an object.
func (f *fields) object(name string) (*fields, bool) {
	if f.raw[name][0] != '{' {
		f.fail(ErrCorrupt, name, "an object")
		return nil, false
	}
	sub, err := parseFields(f.file+": "+name, f.raw[name])
	if f.err == nil {
		f.err = err
	}
	return sub, err == nil
}

// has reports whether a field is present and not null.
func (f *fields) has(name string) bool {
	v, ok := f.raw[name]
	return ok && string(v) != "null"
}

func (f *fields) fail(kind error, name, expected string) {
	if f.err == nil {
		found := string(f.raw[name])
		if len(found) > 80 {
			found = found[:80] + "..."
		}
		if found == "" {
			found = "nothing"
		}
		f.err = fmt.Errorf("%s: %w: %s: expected %s, found %s", f.file, kind, name, expected, found)
	}
}

// get decodes a field that must be present, or reports false.
func (f *fields) get(name, expected string, v any) bool {
	if !f.has(name) || json.Unmarshal(f.raw[name], v) != nil {
		f.fail(ErrCorrupt, name, expected)
		return false
	}
	return true
}

// integer reads a required integer in [1, limit].
func (f *fields) integer(name string, limit int) int {
	expected := fmt.Sprintf("an integer from 1 to %d", limit)
	var n int
	if f.get(name, expected, &n) && (n < 1 || n > limit) {
		f.fail(ErrCorrupt, name, expected)
	}
	return n
}

// number reads a required number in (0, limit].
func (f *fields) number(name string, limit float64) float64 {
	expected := fmt.Sprintf("a number above 0, at most %g", limit)
	var x float64
	if f.get(name, expected, &x) && !(x > 0 && x <= limit) {
		f.fail(ErrCorrupt, name, expected)
	}
	return x
}

// flag reads an optional boolean.
func (f *fields) flag(name string) bool {
	var b bool
	if f.has(name) {
		f.get(name, "true or false", &b)
	}
	return b
}

// only refuses a field that is present with any value but the given ones.
func (f *fields) only(name string, values ...string) {
	if !f.has(name) {
		return
	}
	for _, v := range values {
		if string(f.raw[name]) == v {
			return
		}
	}
	expected := "nothing"
	if len(values) > 0 {
		expected = strings.Join(values, " or ")
	}
	f.fail(ErrUnsupported, name, expected)
}

// ids reads an optional id or list of at most 64 ids below vocab.
func (f *fields) ids(name string, vocab int) []int32 {
	if !f.has(name) {
		return nil
	}
	out, err := readIDs(f.raw[name], vocab)
	if err != nil {
		f.fail(ErrCorrupt, name, fmt.Sprintf("an id below %d or a list of at most %d", vocab, maxIDs))
		return nil
	}
	return out
}

// maxIDs bounds a list of ids.
const maxIDs = 64

// readIDs reads an id or a list of ids below vocab.
func readIDs(raw []byte, vocab int) ([]int32, error) {
	s, err := jsonscan.New(raw)
	if err != nil {
		return nil, err
	}
	out := []int32{}
	one := func(i int) error {
		id, err := s.Uint()
		if err == nil && (i == maxIDs || id >= uint64(vocab)) {
			err = ErrCorrupt
		}
		out = append(out, int32(id))
		return err
	}
	if s.Next() == '[' {
		err = s.Array(one)
	} else {
		err = one(0)
	}
	return out, err
}
