package openai

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// messages takes the turns of a chat.
func (o *object) messages() []Message {
	raw, ok := o.take("messages")
	if !ok {
		o.fail(missing("messages"))
		return nil
	}
	if kind(raw) != '[' {
		o.fail(wrongType("messages", "an array"))
		return nil
	}
	var out []Message
	elements(raw, func(i int, e []byte) bool {
		if i >= MaxMessages {
			o.fail(invalid("messages", "'messages' holds more than %d messages", MaxMessages))
			return false
		}
		m, err := parseMessage(fmt.Sprintf("messages[%d]", i), e)
		if err != nil {
			o.fail(err)
			return false
		}
		out = append(out, m)
		return true
	})
	if len(out) == 0 {
		o.fail(invalid("messages", "'messages' is empty"))
	}
	return out
}

func parseMessage(where string, raw []byte) (Message, *Error) {
	o := newObject(where+".", raw)
	if o == nil {
		return Message{}, wrongType(where, "an object")
	}
	var m Message
	var ok bool
	if m.Role, ok = o.str("role"); !ok {
		o.fail(missing(where + ".role"))
	} else if !slices.Contains([]string{"system", "developer", "user", "assistant", "tool"}, m.Role) {
		o.fail(invalid(where+".role", "'%s.role' is %q; it must be system, developer, user, assistant or tool", where, Excerpt(m.Role)))
	}
	m.Name, _ = o.str("name")
	m.ToolCalls = o.toolCalls(where)
	if m.ToolCalls != nil && m.Role != "assistant" {
		o.fail(invalid(where+".tool_calls", "only an assistant's message can have 'tool_calls'"))
	}
	m.ToolCallID, ok = o.str("tool_call_id")
	if m.Role == "tool" && (!ok || m.ToolCallID == "") {
		o.fail(missing(where + ".tool_call_id"))
	}
	for _, name := range []string{"function_call", "audio"} {
		if _, ok := o.take(name); ok {
			o.fail(unsupported(where + "." + name))
		}
	}
	content, ok := o.take("content")
	switch {
	case ok:
		m.Content = o.content(where+".content", content)
	case m.Role == "assistant" && m.ToolCalls != nil:
		m.ContentNull = true
	default:
		o.fail(badRequest(CodeMissing, where+".content", "'%s.content' is required; only an assistant's message with tool calls may leave it out", where))
	}
	return m, o.err
}

// content decodes a string, or joins the texts of a list of parts.
func (o *object) content(where string, raw []byte) string {
	switch kind(raw) {
	case '"':
		s, _ := text(raw)
		return s
	case '[':
	default:
		o.fail(wrongType(where, "a string or an array of text parts"))
		return ""
	}
	var all strings.Builder
	n := 0
	elements(raw, func(i int, e []byte) bool {
		n++
		all.WriteString(o.part(fmt.Sprintf("%s[%d]", where, i), e))
		return o.err == nil
	})
	if n == 0 {
		o.fail(invalid(where, "'%s' is an empty array", where))
	}
	return all.String()
}

func (o *object) part(where string, raw []byte) string {
	p := newObject(where+".", raw)
	if p == nil {
		o.fail(wrongType(where, "an object"))
		return ""
	}
	typ, ok := p.str("type")
	if !ok {
		p.fail(missing(where + ".type"))
	} else if typ != "text" {
		p.fail(badRequest(CodeUnsupportedContent, where+".type", "'%s.type' is %q; only text is supported", where, Excerpt(typ)))
	}
	s, ok := p.str("text")
	if !ok {
		p.fail(missing(where + ".text"))
	}
	if p.err != nil {
		o.fail(p.err)
	}
	return s
}

// toolCalls checks an assistant's calls and returns them as they came. An empty
// list equals absence.
func (o *object) toolCalls(where string) json.RawMessage {
	raw, ok := o.take("tool_calls")
	if !ok {
		return nil
	}
	where += ".tool_calls"
	if kind(raw) != '[' {
		o.fail(wrongType(where, "an array"))
		return nil
	}
	n := 0
	elements(raw, func(i int, e []byte) bool {
		n++
		o.toolCall(fmt.Sprintf("%s[%d]", where, i), e)
		return o.err == nil
	})
	if n == 0 {
		return nil
	}
	return raw
}

func (o *object) toolCall(where string, raw []byte) {
	call := newObject(where+".", raw)
	if call == nil {
		o.fail(wrongType(where, "an object"))
		return
	}
	if _, ok := call.str("id"); !ok {
		call.fail(missing(where + ".id"))
	}
	if typ, ok := call.str("type"); ok && typ != "function" {
		call.fail(invalid(where+".type", "'%s.type' must be function", where))
	}
	body, ok := call.take("function")
	if !ok {
		call.fail(missing(where + ".function"))
		o.fail(call.err)
		return
	}
	f := newObject(where+".function.", body)
	if f == nil {
		o.fail(wrongType(where+".function", "an object"))
		return
	}
	for _, name := range []string{"name", "arguments"} {
		if _, ok := f.str(name); !ok {
			f.fail(missing(where + ".function." + name))
		}
	}
	if call.err != nil {
		o.fail(call.err)
	}
	if f.err != nil {
		o.fail(f.err)
	}
}
