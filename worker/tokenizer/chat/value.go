package chat

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"strconv"
	"strings"
)

// Template variables are nil, bool, int64, float64, string, []any and *object.

// object is a JSON object that keeps the order of its keys, since templates
// print tools and the order changes the prompt.
type object struct {
	keys   []string
	values map[string]any
}

func newObject() *object { return &object{values: map[string]any{}} }

// set adds or replaces; a replaced key keeps its place, as in Python.
func (o *object) set(key string, v any) {
	if _, ok := o.values[key]; !ok {
		o.keys = append(o.keys, key)
	}
	o.values[key] = v
}

// decodeJSON reads one value; numbers stay json.Number. What names the text in errors.
func decodeJSON(text []byte, what string) (any, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	v, err := decodeValue(d, 0)
	if err != nil {
		return nil, malformed("%s: %v", what, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, malformed("%s: text after the value", what)
	}
	return v, nil
}

func decodeValue(d *json.Decoder, depth int) (any, error) {
	if depth > maxDepth {
		return nil, malformed("nested deeper than %d", maxDepth)
	}
	tok, err := d.Token()
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	switch tok {
	case json.Delim('['):
		list := []any{}
		for d.More() {
			v, err := decodeValue(d, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err := d.Token()
		return list, err
	case json.Delim('{'):
		o := newObject()
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return nil, err
			}
			v, err := decodeValue(d, depth+1)
			if err != nil {
				return nil, err
			}
			o.set(key.(string), v)
		}
		_, err := d.Token()
		return o, err
	}
	return tok, nil
}

// marked copies v with every text and key marked and every number made
// concrete. With exact a number whose digits the engine would change becomes a
// text behind numberMark, right for what is only printed; without it all are
// numbers, for what a template may compare.
func marked(v any, mark marking, exact bool) any {
	switch v := v.(type) {
	case string:
		return mark(v)
	case json.Number:
		return number(v.String(), exact)
	case []any:
		list := make([]any, len(v))
		for i := range v {
			list[i] = marked(v[i], mark, exact)
		}
		return list
	case *object:
		o := newObject()
		for _, k := range v.keys {
			o.set(mark(k), marked(v.values[k], mark, exact))
		}
		return o
	}
	return v
}

func number(text string, exact bool) any {
	if i, err := strconv.ParseInt(text, 10, 64); err == nil {
		return i
	}
	f, _ := strconv.ParseFloat(text, 64) // out of range is an infinity, as in Python
	if !exact {
		return f
	}
	if !strings.ContainsAny(text, ".eE") {
		return string(numberMark) + text
	}
	if s := pythonFloat(f); s != strconv.FormatFloat(f, 'g', -1, 64) {
		return string(numberMark) + s
	}
	return f
}

// pythonFloat writes f as Python's repr and json.dumps do: shortest digits, a
// point always, an exponent below 1e-4 and from 1e16 on.
func pythonFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	s := strconv.FormatFloat(f, 'e', -1, 64)
	at := strings.IndexByte(s, 'e')
	if exp, err := strconv.Atoi(s[at+1:]); err == nil && (exp < -4 || exp >= 16) {
		return s
	}
	s = strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// callList parses the tool calls of a message. The arguments, a text of JSON on
// the wire, become an object when they are one: templates print them as JSON.
func callList(text []byte, what string) (any, error) {
	v, err := decodeJSON(text, what)
	if err != nil {
		return nil, err
	}
	list, ok := v.([]any)
	if !ok && v != nil {
		return nil, malformed("%s is not an array", what)
	}
	for _, c := range list {
		call, ok := c.(*object)
		if !ok {
			return nil, malformed("%s holds something that is not an object", what)
		}
		function, ok := call.values["function"].(*object)
		if !ok {
			continue
		}
		args, ok := function.values["arguments"].(string)
		if !ok {
			continue
		}
		if args == "" {
			function.set("arguments", newObject())
		} else if o, err := decodeJSON([]byte(args), what); err == nil {
			if o, ok := o.(*object); ok {
				function.set("arguments", o)
			}
		}
	}
	return v, nil
}
