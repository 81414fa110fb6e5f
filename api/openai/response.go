package openai

import "strconv"

// Choice is one whole answer.
type Choice struct {
	Text   string
	Finish string // stop, length or tool_calls
	// ToolCalls are the calls of a chat's answer.
	ToolCalls []ToolCall
	// Logprobs has every token, if they were asked for.
	Logprobs  []Token
	Extension *Extension
}

// AppendResponse appends the body of an answer that is not streamed. The
// extension of a single choice stands at the top, those of several in each.
func AppendResponse(dst []byte, kind Kind, id string, created int64, model string, choices []Choice, usage Usage) []byte {
	object := "text_completion"
	if kind == Chat {
		object = "chat.completion"
	}
	dst = appendHead(dst, object, id, created, model)
	for i := range choices {
		dst = comma(dst, i)
		dst = choices[i].append(dst, kind, i, len(choices) > 1)
	}
	dst = append(dst, `],"usage":`...)
	dst = usage.append(dst)
	if len(choices) == 1 && choices[0].Extension != nil {
		dst = append(dst, `,"trctl":`...)
		dst = choices[0].Extension.append(dst)
	}
	return append(dst, '}')
}

func (c *Choice) append(dst []byte, kind Kind, index int, extension bool) []byte {
	dst = append(dst, `{"index":`...)
	dst = strconv.AppendInt(dst, int64(index), 10)
	if kind == Chat {
		dst = append(dst, `,"message":{"role":"assistant","content":`...)
		if len(c.ToolCalls) == 0 {
			dst = append(appendString(dst, c.Text), `,"refusal":null}`...)
		} else {
			dst = append(appendNullable(dst, c.Text), `,"refusal":null,`...)
			dst = append(appendToolCalls(dst, c.ToolCalls, false), '}')
		}
	} else {
		dst = append(dst, `,"text":`...)
		dst = appendString(dst, c.Text)
	}
	dst = append(dst, `,"logprobs":`...)
	switch {
	case c.Logprobs == nil:
		dst = append(dst, "null"...)
	case kind == Chat:
		dst = appendChatLogprobs(dst, c.Logprobs)
	default:
		dst = appendTextLogprobs(dst, c.Logprobs, 0)
	}
	dst = append(dst, `,"finish_reason":`...)
	dst = appendNullable(dst, c.Finish)
	if extension && c.Extension != nil {
		dst = append(dst, `,"trctl":`...)
		dst = c.Extension.append(dst)
	}
	return append(dst, '}')
}

// Model is one entry of the model list.
type Model struct {
	ID      string
	Created int64
	// MaxContext is reported as max_model_len, the name that benchmarks read.
	MaxContext int
}

// AppendModel appends one model.
func AppendModel(dst []byte, m Model) []byte {
	dst = append(dst, `{"id":`...)
	dst = appendString(dst, m.ID)
	dst = append(dst, `,"object":"model","created":`...)
	dst = strconv.AppendInt(dst, m.Created, 10)
	dst = append(dst, `,"owned_by":"tokenrouter","max_model_len":`...)
	dst = strconv.AppendInt(dst, int64(m.MaxContext), 10)
	return append(dst, '}')
}

// AppendVersion appends the answer of /version.
func AppendVersion(dst []byte, version string) []byte {
	return append(appendString(append(dst, `{"version":`...), version), '}')
}

// AppendModels appends the model list.
func AppendModels(dst []byte, models []Model) []byte {
	dst = append(dst, `{"object":"list","data":[`...)
	for i, m := range models {
		dst = comma(dst, i)
		dst = AppendModel(dst, m)
	}
	return append(dst, `]}`...)
}
