package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"strconv"

	"github.com/tokenrouter/tokenrouter/worker/tokenizer"
	"github.com/tokenrouter/tokenrouter/worker/tokenizer/chat/jinja"
)

// maxDigits bounds an integer in JSON.
const maxDigits = 1000

// foreign is a text that a caller wrote, whose control tokens are no tokens.
func foreign(s string) jinja.Text { return jinja.Mark(tokenizer.RepairUTF8(s), jinja.Foreign) }

// decodeJSON reads one value, objects with the order of their keys, since templates
// print tools and the order changes the prompt. what names the text in errors, field
// the part of the request that it is in.
func decodeJSON(text []byte, field, what string) (jinja.Value, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	v, err := decodeValue(d, 0)
	if err != nil {
		return nil, malformed(field, "%s: %v", what, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, malformed(field, "%s: text after the value", what)
	}
	return v, nil
}

func decodeValue(d *json.Decoder, depth int) (jinja.Value, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested deeper than %d", maxDepth)
	}
	tok, err := d.Token()
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	switch tok := tok.(type) {
	case string:
		return foreign(tok), nil
	case json.Number:
		return number(tok.String())
	case json.Delim:
		if tok == '[' {
			list := &jinja.List{}
			for d.More() {
				v, err := decodeValue(d, depth+1)
				if err != nil {
					return nil, err
				}
				list.Items = append(list.Items, v)
			}
			_, err := d.Token()
			return list, err
		}
		o := jinja.NewDict()
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return nil, err
			}
			v, err := decodeValue(d, depth+1)
			if err != nil {
				return nil, err
			}
			o.Set(foreign(key.(string)), v)
		}
		_, err := d.Token()
		return o, err
	}
	return tok, nil // true, false or null
}

// number is a number as Python reads it from JSON: an integer of any size, or a
// float, which is infinite when it is out of range.
func number(text string) (jinja.Value, error) {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n, nil
	}
	if n, ok := new(big.Int).SetString(text, 10); ok && len(text) <= maxDigits {
		return n, nil
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) || len(text) > maxDigits {
		return nil, fmt.Errorf("a number of %d characters", len(text))
	}
	return f, nil
}

// callList parses the tool calls of a message. The arguments, a text of JSON on the
// wire, become an object when they are one, as most templates print them as JSON;
// with raw they stay text, for those that print them as they are.
func callList(text []byte, what string, raw bool) (jinja.Value, error) {
	v, err := decodeJSON(text, FieldMessages, what)
	if err != nil {
		return nil, err
	}
	list, ok := v.(*jinja.List)
	if !ok {
		if v != nil {
			return nil, malformed(FieldMessages, "%s is not an array", what)
		}
		return nil, nil
	}
	for _, c := range list.Items {
		call, ok := c.(*jinja.Dict)
		if !ok {
			return nil, malformed(FieldMessages, "%s holds something that is not an object", what)
		}
		f, _ := call.Get("function")
		function, ok := f.(*jinja.Dict)
		if !ok {
			continue
		}
		a, _ := function.Get("arguments")
		args, ok := a.(jinja.Text)
		if !ok || raw {
			continue
		}
		if args.String() == "" {
			function.Set(jinja.Mark("arguments", jinja.Own), jinja.NewDict())
		} else if o, err := decodeJSON([]byte(args.String()), FieldMessages, what); err == nil {
			if o, ok := o.(*jinja.Dict); ok {
				function.Set(jinja.Mark("arguments", jinja.Own), o)
			}
		}
	}
	return list, nil
}
