package openai

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strconv"
)

// object is a JSON object whose fields are taken one by one, each by the code
// that knows it. The first error is kept. What is left at the end is unknown.
type object struct {
	// prefix is put before field names in errors, such as "messages[3].".
	prefix string
	fields map[string]json.RawMessage
	err    *Error
}

// newObject opens a value that checkJSON has passed. It returns nil if the
// value is not an object.
func newObject(prefix string, raw []byte) *object {
	o := &object{prefix: prefix}
	if kind(raw) != '{' || json.Unmarshal(raw, &o.fields) != nil {
		return nil
	}
	return o
}

// kind returns the first byte of a value, with 0 standing for every digit and
// the minus sign.
func kind(raw []byte) byte {
	for _, c := range raw {
		switch {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
		case c == '-' || c >= '0' && c <= '9':
			return '0'
		default:
			return c
		}
	}
	return 0
}

func (o *object) fail(err *Error) {
	if o.err == nil {
		o.err = err
	}
}

// take removes a field. Null equals absence.
func (o *object) take(name string) (raw json.RawMessage, ok bool) {
	raw, ok = o.fields[name]
	delete(o.fields, name)
	return raw, ok && kind(raw) != 'n'
}

// unknown lists the fields that are left, in order, at most maxIgnored of them.
func (o *object) unknown() []string {
	names := make([]string, 0, len(o.fields))
	for name := range o.fields {
		names = append(names, name)
	}
	slices.Sort(names)
	names = names[:min(len(names), maxIgnored)]
	for i, name := range names {
		names[i] = Excerpt(name)
	}
	return names
}

func (o *object) bool(name string) (v, ok bool) {
	raw, ok := o.take(name)
	if !ok {
		return false, false
	}
	if k := kind(raw); k != 't' && k != 'f' {
		o.fail(wrongType(o.prefix+name, "a boolean"))
		return false, false
	}
	return kind(raw) == 't', true
}

func (o *object) str(name string) (v string, ok bool) {
	raw, ok := o.take(name)
	if !ok {
		return "", false
	}
	if v, ok = text(raw); !ok {
		o.fail(wrongType(o.prefix+name, "a string"))
	}
	return v, ok
}

// text decodes a JSON string.
func text(raw []byte) (v string, ok bool) {
	return v, kind(raw) == '"' && json.Unmarshal(raw, &v) == nil
}

// number reads a finite number within [lo, hi].
func (o *object) number(name string, lo, hi float64) (v float64, ok bool) {
	raw, ok := o.take(name)
	if !ok {
		return 0, false
	}
	if kind(raw) != '0' {
		o.fail(wrongType(o.prefix+name, "a number"))
		return 0, false
	}
	v, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || !(v >= lo && v <= hi) {
		o.fail(invalid(o.prefix+name, "'%s' must be between %g and %g", o.prefix+name, lo, hi))
		return 0, false
	}
	return v + 0, true // -0 becomes 0
}

// integer reads a whole number within [lo, hi].
func (o *object) integer(name string, lo, hi int64) (v int64, ok bool) {
	raw, ok := o.take(name)
	if !ok {
		return 0, false
	}
	v, err := integer(raw)
	switch {
	case kind(raw) != '0' || err == errNotWhole:
		o.fail(wrongType(o.prefix+name, "an integer"))
	case err != nil || v < lo || v > hi:
		switch {
		case hi < math.MaxInt64:
			o.fail(invalid(o.prefix+name, "'%s' must be between %d and %d", o.prefix+name, lo, hi))
		case err != nil && raw[0] != '-':
			o.fail(invalid(o.prefix+name, "'%s' must be at most %d", o.prefix+name, hi))
		default:
			o.fail(invalid(o.prefix+name, "'%s' must be at least %d", o.prefix+name, lo))
		}
	default:
		return v, true
	}
	return 0, false
}

// errNotWhole says that a number has a fraction.
const errNotWhole = parseError("not a whole number")

type parseError string

func (e parseError) Error() string { return string(e) }

// maxExact is the largest integer up to which all are exact in a float64.
const maxExact = 1 << 53

// integer parses a JSON number as an int64. Clients that know one kind of number
// write 1.0 or 6e2, so a fraction of zeros and an exponent pass, up to maxExact.
// The error is errNotWhole, or strconv's for a number out of range.
func integer(raw []byte) (int64, error) {
	if !bytes.ContainsAny(raw, ".eE") {
		return strconv.ParseInt(string(raw), 10, 64)
	}
	v, err := strconv.ParseFloat(string(raw), 64)
	switch {
	case err != nil:
		return 0, err
	case v != math.Trunc(v):
		return 0, errNotWhole
	case math.Abs(v) > maxExact:
		return 0, strconv.ErrRange
	}
	return int64(v), nil
}
