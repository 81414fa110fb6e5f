package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/tokenrouter/tokenrouter/api/openai"
)

// How models write what is no answer for the reader.
const (
	callOpen, callClose   = "<tool_call>", "</tool_call>" // Qwen and what follows Hermes
	thinkOpen, thinkClose = "<think>", "</think>"
)

// callReader takes the calls of tools out of the text of one answer. It knows two
// forms: objects {"name", "arguments"} between <tool_call> and </tool_call> anywhere
// in the text, and text that is nothing but objects {"name", "parameters"} with names
// of tools, as Llama writes them. Calls inside of thoughts, and what only looks like a
// call, stay text. Space before and after calls is dropped.
//
// What comes out does not depend on how the text is cut into pieces.
type callReader struct {
	// id is a prefix of the calls' ids; tools are the names of the tools.
	id    string
	tools []string
	// one says that only the first call counts.
	one bool

	mode callMode
	// held is text that may become part of a call.
	held string
	// calls counts those that were found, told those that the client gets.
	calls, told int
}

// callMode says where in an answer a callReader is.
type callMode uint8

const (
	atStart   callMode = iota // of the answer, or behind its thoughts: only space so far
	inThought                 // behind <think>
	inText
	inCall // at the space before <tool_call>
)

// maxCall bounds the text that is held for one call, in bytes; a longer one is text.
const maxCall = 256 << 10

// spaces are what is dropped around calls.
const spaces = " \t\r\n"

// push takes the next piece of the text and returns what can be told of it.
func (r *callReader) push(text string) (content string, calls []openai.ToolCall) {
	r.held += text
	return r.read(false)
}

// end returns the rest.
func (r *callReader) end() (content string, calls []openai.ToolCall) { return r.read(true) }

// read tells what is certain of the held text; at the end that is all of it.
func (r *callReader) read(end bool) (content string, calls []openai.ToolCall) {
	var b strings.Builder
	for {
		text, found, again := r.step(end)
		b.WriteString(text)
		for _, c := range found {
			if r.calls++; r.one && r.calls > 1 {
				continue
			}
			c.ID, c.Index = fmt.Sprintf("%s%d", r.id, r.told), r.told
			r.told++
			calls = append(calls, c)
		}
		if !again {
			return b.String(), calls
		}
	}
}

// step reads on to where the mode changes, and reports whether there may be more.
func (r *callReader) step(end bool) (text string, calls []openai.ToolCall, again bool) {
	switch r.mode {
	case atStart:
		return r.stepStart(end)
	case inThought:
		if _, _, closed := strings.Cut(r.held, thinkClose); closed {
			r.mode = atStart
			return r.tell(strings.Index(r.held, thinkClose) + len(thinkClose)), nil, true
		}
		return r.tell(len(r.held) - r.mayBegin(thinkClose, "", end)), nil, false
	case inText:
		if at := strings.Index(r.held, callOpen); at >= 0 {
			r.mode = inCall
			return r.tell(len(strings.TrimRight(r.held[:at], spaces))), nil, true
		}
		if end && r.calls > 0 {
			r.held = strings.TrimRight(r.held, spaces)
		}
		return r.tell(len(r.held) - r.mayBegin(callOpen, spaces, end)), nil, false
	}
	return r.stepCall(end)
}

// tell takes n bytes off the held text.
func (r *callReader) tell(n int) string {
	text := r.held[:n]
	r.held = r.held[n:]
	return text
}

// stepStart decides what an answer begins with.
func (r *callReader) stepStart(end bool) (string, []openai.ToolCall, bool) {
	begin := strings.TrimLeft(r.held, spaces)
	switch {
	case strings.HasPrefix(begin, thinkOpen):
		r.mode = inThought
		return "", nil, true
	case !end && strings.HasPrefix(thinkOpen, begin): // also if there is nothing yet
		return "", nil, false
	case mayBeBare(begin) && !end && len(begin) <= maxCall:
		return "", nil, false
	case mayBeBare(begin) && end:
		if calls := bareCalls(begin, r.tools); calls != nil {
			r.held = ""
			return "", calls, false
		}
	}
	r.mode = inText
	return "", nil, true
}

// stepCall reads a call, which becomes text if it is none.
func (r *callReader) stepCall(end bool) (string, []openai.ToolCall, bool) {
	begin := strings.Index(r.held, callOpen) + len(callOpen)
	body, _, closed := strings.Cut(r.held[begin:], callClose)
	if !closed && !end && len(body) <= maxCall {
		return "", nil, false
	}
	r.mode = inText
	size := begin + len(body)
	if closed {
		size += len(callClose)
	}
	whole := r.tell(size)
	if c, ok := parseCall([]byte(body)); ok {
		return "", []openai.ToolCall{c}, true
	}
	return whole, nil, true
}

// mayBegin is the length of the end of the held text that may be the beginning of tag,
// with any of before in front of it; 0 at the end of the answer.
func (r *callReader) mayBegin(tag, before string, end bool) int {
	if end {
		return 0
	}
	n := min(len(tag)-1, len(r.held))
	for n > 0 && !strings.HasSuffix(r.held, tag[:n]) {
		n--
	}
	rest := r.held[:len(r.held)-n]
	return n + len(rest) - len(strings.TrimRight(rest, before))
}

// mayBeBare reports whether text is the beginning of an object whose first key is one
// of a call.
func mayBeBare(text string) bool {
	rest, ok := strings.CutPrefix(text, "{")
	if !ok {
		return false
	}
	rest = strings.TrimLeft(rest, spaces)
	return slices.ContainsFunc([]string{`"name"`, `"type"`}, func(key string) bool {
		return strings.HasPrefix(rest, key) || strings.HasPrefix(key, rest)
	})
}

// bareCalls reads a text that is nothing but calls of tools, between which there may be
// semicolons; nil if it is not.
func bareCalls(text string, tools []string) []openai.ToolCall {
	var calls []openai.ToolCall
	for rest := text; rest != ""; rest = strings.TrimLeft(rest, spaces+";") {
		var raw json.RawMessage
		d := json.NewDecoder(strings.NewReader(rest))
		if d.Decode(&raw) != nil {
			return nil
		}
		c, ok := parseCall(raw)
		if !ok || !slices.Contains(tools, c.Name) || len(calls) >= openai.MaxTools {
			return nil
		}
		calls = append(calls, c)
		rest = rest[d.InputOffset():]
	}
	return calls
}

// parseCall reads one call. Arguments may be absent, and a string that holds them.
func parseCall(raw []byte) (openai.ToolCall, bool) {
	var c struct {
		Name                  string
		Arguments, Parameters json.RawMessage
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	if d.Decode(&c) != nil || c.Name == "" || c.Arguments != nil && c.Parameters != nil {
		return openai.ToolCall{}, false
	}
	if _, err := d.Token(); err != io.EOF {
		return openai.ToolCall{}, false
	}
	arguments := c.Arguments
	if arguments == nil {
		arguments = c.Parameters
	}
	var quoted string
	if json.Unmarshal(arguments, &quoted) == nil && quoted != "" {
		arguments = json.RawMessage(quoted)
	}
	var object map[string]json.RawMessage
	switch {
	case arguments == nil:
		arguments = json.RawMessage("{}")
	case json.Unmarshal(arguments, &object) != nil || object == nil:
		return openai.ToolCall{}, false
	}
	return openai.ToolCall{Name: c.Name, Arguments: string(arguments)}, true
}
