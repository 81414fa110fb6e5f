package openai

import "strconv"

// Kind says which endpoint an answer belongs to.
type Kind uint8

const (
	Chat Kind = 1 + iota
	Text
)

// KeepAlive is a comment event: clients skip it, proxies see that the
// connection lives.
const KeepAlive = ": keep-alive\n\n"

// Done is the last event of every stream.
const Done = "data: [DONE]\n\n"

// Chunk is one event of a stream. Exactly one choice is in it, or none if it is
// the usage chunk.
type Chunk struct {
	Index int
	// Role is set in the first chunk of a choice.
	Role bool
	// Content says that Text counts, even if it is empty.
	Content bool
	Text    string
	// ToolCalls are calls of a chat's answer, each whole.
	ToolCalls []ToolCall
	// Logprobs has the tokens of the chunk, if they were asked for. Offset is
	// where the first of them starts in the answer, in characters.
	Logprobs []Token
	Offset   int
	// Finish is empty until the last chunk of a choice: stop, length or tool_calls.
	Finish string
	// Model is the served name of the model that wrote the token, or empty.
	Model string
	// Usage is what was counted so far, if the chunk shall carry it. With
	// UsageOnly the chunk has no choice.
	Usage     *Usage
	UsageOnly bool
	// Extension rides on the last chunk of a choice.
	Extension *Extension
}

// ChunkWriter writes the chunks of one stream. All of them share a head, which
// is built once. The zero value is not usable.
type ChunkWriter struct {
	kind Kind
	head []byte
}

// NewChunkWriter returns a writer for an answer with the given id, creation
// time (Unix seconds) and model name.
func NewChunkWriter(kind Kind, id string, created int64, model string) *ChunkWriter {
	object := "text_completion"
	if kind == Chat {
		object = "chat.completion.chunk"
	}
	return &ChunkWriter{kind: kind, head: appendHead([]byte("data: "), object, id, created, model)}
}

// appendHead appends the fields that every chunk and response begins with.
func appendHead(dst []byte, object, id string, created int64, model string) []byte {
	dst = append(dst, `{"id":`...)
	dst = appendString(dst, id)
	dst = append(dst, `,"object":`...)
	dst = appendString(dst, object)
	dst = append(dst, `,"created":`...)
	dst = strconv.AppendInt(dst, created, 10)
	dst = append(dst, `,"model":`...)
	dst = appendString(dst, model)
	return append(dst, `,"choices":[`...)
}

// Append appends one event. It allocates nothing if dst has room.
func (w *ChunkWriter) Append(dst []byte, c *Chunk) []byte {
	dst = append(dst, w.head...)
	if !c.UsageOnly {
		dst = append(dst, `{"index":`...)
		dst = strconv.AppendInt(dst, int64(c.Index), 10)
		if w.kind == Chat {
			dst = c.appendDelta(dst)
		} else {
			dst = append(dst, `,"text":`...)
			dst = appendString(dst, c.Text)
		}
		dst = append(dst, `,"logprobs":`...)
		switch {
		case len(c.Logprobs) == 0:
			dst = append(dst, "null"...)
		case w.kind == Chat:
			dst = appendChatLogprobs(dst, c.Logprobs)
		default:
			dst = appendTextLogprobs(dst, c.Logprobs, c.Offset)
		}
		dst = append(dst, `,"finish_reason":`...)
		dst = append(appendNullable(dst, c.Finish), '}')
	}
	dst = append(dst, ']')
	if c.Usage != nil {
		dst = append(dst, `,"usage":`...)
		dst = c.Usage.append(dst)
	}
	switch {
	case c.Extension != nil:
		dst = append(dst, `,"trctl":`...)
		dst = c.Extension.append(dst)
	case c.Model != "":
		dst = append(dst, `,"trctl":{"model":`...)
		dst = append(appendString(dst, c.Model), '}')
	}
	return append(dst, "}\n\n"...)
}

func (c *Chunk) appendDelta(dst []byte) []byte {
	dst = append(dst, `,"delta":{`...)
	if c.Role {
		dst = append(dst, `"role":"assistant",`...)
	}
	if c.Content {
		dst = append(dst, `"content":`...)
		dst = append(appendString(dst, c.Text), ',')
	}
	if len(c.ToolCalls) > 0 {
		dst = append(appendToolCalls(dst, c.ToolCalls, true), ',')
	}
	if last := len(dst) - 1; dst[last] == ',' {
		dst = dst[:last]
	}
	return append(dst, '}')
}

// AppendErrorEvent appends an error as an event, for failures after the status
// line has left.
func AppendErrorEvent(dst []byte, e *Error) []byte {
	dst = append(dst, "data: "...)
	dst = e.AppendJSON(dst)
	return append(dst, "\n\n"...)
}
