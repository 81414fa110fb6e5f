package openai

import (
	"encoding/json"
	"fmt"
)

// tools takes the functions that a model may call, as they came, and the choice
// among them. The template shows them to the model. They, and their names, are nil for
// an empty list, and if the model is to call none.
func (o *object) tools() (list json.RawMessage, names []string) {
	raw, ok := o.take("tools")
	hidden := o.toolChoice("tool_choice")
	if !ok {
		return nil, nil
	}
	if kind(raw) != '[' {
		o.fail(wrongType("tools", "an array"))
		return nil, nil
	}
	n := 0
	elements(raw, func(i int, e []byte) bool {
		if n++; n > MaxTools {
			o.fail(invalid("tools", "'tools' holds more than %d tools", MaxTools))
			return false
		}
		names = append(names, o.tool(fmt.Sprintf("tools[%d]", i), e))
		return o.err == nil
	})
	if n == 0 || hidden {
		return nil, nil
	}
	return raw, names
}

// tool checks one definition and returns its name.
func (o *object) tool(where string, raw []byte) (name string) {
	t := newObject(where+".", raw)
	if t == nil {
		o.fail(wrongType(where, "an object"))
		return ""
	}
	if typ, ok := t.str("type"); !ok {
		t.fail(missing(where + ".type"))
	} else if typ != "function" {
		t.fail(badRequest(CodeUnsupported, where+".type", "'%s.type' is %q; only functions are supported", where, Excerpt(typ)))
	}
	body, ok := t.take("function")
	if !ok {
		t.fail(missing(where + ".function"))
	}
	if t.err != nil {
		o.fail(t.err)
		return ""
	}
	f := newObject(where+".function.", body)
	if f == nil {
		o.fail(wrongType(where+".function", "an object"))
		return ""
	}
	if name, ok = f.str("name"); !ok {
		f.fail(missing(where + ".function.name"))
	} else if name == "" || len(name) > MaxToolName {
		f.fail(invalid(where+".function.name", "'%s.function.name' must have 1 to %d bytes", where, MaxToolName))
	}
	f.str("description")
	f.bool("strict")
	if schema, ok := f.take("parameters"); ok && kind(schema) != '{' {
		f.fail(wrongType(where+".function.parameters", "an object"))
	}
	if f.err != nil {
		o.fail(f.err)
	}
	return name
}

// toolChoice takes a choice among tools, and reports whether it is none of them. A
// choice that would have to be enforced is refused.
func (o *object) toolChoice(name string) (none bool) {
	raw, ok := o.take(name)
	if !ok {
		return false
	}
	switch kind(raw) {
	case '"':
		switch s, _ := text(raw); s {
		case "none":
			return true
		case "auto":
		case "required":
			o.fail(unsupported(name))
		default:
			o.fail(invalid(name, "'%s' is %q; it must be none or auto", name, Excerpt(s)))
		}
	case '{':
		o.fail(unsupported(name))
	default:
		o.fail(wrongType(name, "a string or an object"))
	}
	return false
}
