package openai

import "strconv"

// Usage counts tokens. Completion tokens are all committed ones, whichever
// model wrote them, the one that ended the answer included.
type Usage struct {
	Prompt, Completion int
	// Cached is the part of Prompt that came from the prefix cache.
	Cached int
}

// Add sums two counts, for requests with several prompts.
func (u Usage) Add(v Usage) Usage {
	return Usage{Prompt: u.Prompt + v.Prompt, Completion: u.Completion + v.Completion, Cached: u.Cached + v.Cached}
}

func (u Usage) append(dst []byte) []byte {
	dst = append(dst, `{"prompt_tokens":`...)
	dst = strconv.AppendInt(dst, int64(u.Prompt), 10)
	dst = append(dst, `,"completion_tokens":`...)
	dst = strconv.AppendInt(dst, int64(u.Completion), 10)
	dst = append(dst, `,"total_tokens":`...)
	dst = strconv.AppendInt(dst, int64(u.Prompt+u.Completion), 10)
	dst = append(dst, `,"prompt_tokens_details":{"cached_tokens":`...)
	dst = strconv.AppendInt(dst, int64(u.Cached), 10)
	return append(dst, `}}`...)
}

// ToolCall is a call that the model asks the client to make.
type ToolCall struct {
	// Index is the call's place among those of its choice.
	Index int
	ID    string
	Name  string
	// Arguments is a JSON object.
	Arguments string
}

// appendToolCalls appends "tool_calls" and its array, whose elements have their index
// in chunks alone.
func appendToolCalls(dst []byte, calls []ToolCall, chunk bool) []byte {
	dst = append(dst, `"tool_calls":[`...)
	for i := range calls {
		c := &calls[i]
		dst = append(comma(dst, i), '{')
		if chunk {
			dst = append(dst, `"index":`...)
			dst = append(strconv.AppendInt(dst, int64(c.Index), 10), ',')
		}
		dst = append(dst, `"id":`...)
		dst = appendString(dst, c.ID)
		dst = append(dst, `,"type":"function","function":{"name":`...)
		dst = appendString(dst, c.Name)
		dst = append(dst, `,"arguments":`...)
		dst = append(appendString(dst, c.Arguments), `}}`...)
	}
	return append(dst, ']')
}

// Token is one token with its log-probability. Text is what it adds to the
// answer, Bytes are its own: half of a character has bytes but adds no text. A
// token is shown by its bytes if they are known.
type Token struct {
	Text    string
	Bytes   []byte
	Logprob float32
	// First says that nothing comes before the token, so it has no
	// log-probability (the first token of an echoed prompt).
	First bool
	Top   []Alternative
}

// Alternative is another token that could have been taken.
type Alternative struct {
	Text    string
	Bytes   []byte
	Logprob float32
}

// Run is a stretch of tokens written by one model.
type Run struct {
	Model uint8
	N     int
}

// Extension is the object "trctl" of a response or of the last chunk of a
// choice: who wrote what. Strict clients ignore it.
type Extension struct {
	Policy string
	// Models are served names by model index.
	Models []string
	// Runs are the tokens in order. Neighbours have different models.
	Runs []Run
	// Epoch is 1, and one more for every time that the request moved to another entry.
	Epoch uint32
	// Fallback names the rule by which the entry model has written a part alone because
	// no other model could be reached; empty if there was no need.
	Fallback string
	// Threshold and MaxLargeShare are what the request overrode; nil for nothing.
	Threshold, MaxLargeShare *float64
	// Ignored are the request's unknown fields.
	Ignored []string
}

// Add notes n more tokens of a model.
func (e *Extension) Add(model uint8, n int) {
	if k := len(e.Runs); k > 0 && e.Runs[k-1].Model == model {
		e.Runs[k-1].N += n
		return
	}
	e.Runs = append(e.Runs, Run{Model: model, N: n})
}

// Count returns the tokens written by a model.
func (e *Extension) Count(model uint8) int {
	n := 0
	for _, r := range e.Runs {
		if r.Model == model {
			n += r.N
		}
	}
	return n
}

// LargeShare is the share of tokens not written by the entry model, 0 of none.
func (e *Extension) LargeShare() float64 {
	all, large := 0, 0
	for _, r := range e.Runs {
		all += r.N
		if r.Model != 0 {
			large += r.N
		}
	}
	if all == 0 {
		return 0
	}
	return float64(large) / float64(all)
}

func (e *Extension) name(model uint8) string {
	if int(model) < len(e.Models) {
		return e.Models[model]
	}
	return strconv.Itoa(int(model))
}

func (e *Extension) append(dst []byte) []byte {
	dst = append(dst, `{"policy":`...)
	dst = appendString(dst, e.Policy)
	for _, o := range []struct {
		field string
		value *float64
	}{{`,"threshold":`, e.Threshold}, {`,"max_large_share":`, e.MaxLargeShare}} {
		if o.value != nil {
			dst = strconv.AppendFloat(append(dst, o.field...), *o.value, 'g', -1, 64)
		}
	}
	dst = append(dst, `,"models":`...)
	dst = appendStrings(dst, e.Models)
	dst = append(dst, `,"tokens":{`...)
	for i, name := range e.Models {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendString(dst, name)
		dst = append(dst, ':')
		dst = strconv.AppendInt(dst, int64(e.Count(uint8(i))), 10)
	}
	dst = append(dst, `},"large_share":`...)
	dst = strconv.AppendFloat(dst, e.LargeShare(), 'f', 4, 64)
	dst = append(dst, `,"provenance":[`...)
	for i, r := range e.Runs {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, '[')
		dst = appendString(dst, e.name(r.Model))
		dst = append(dst, ',')
		dst = strconv.AppendInt(dst, int64(r.N), 10)
		dst = append(dst, ']')
	}
	dst = append(dst, `],"epoch":`...)
	dst = strconv.AppendUint(dst, uint64(e.Epoch), 10)
	if e.Fallback != "" {
		dst = append(dst, `,"fallback":`...)
		dst = appendString(dst, e.Fallback)
	}
	dst = append(dst, `,"ignored":`...)
	dst = appendStrings(dst, e.Ignored)
	return append(dst, '}')
}

func appendStrings(dst []byte, list []string) []byte {
	dst = append(dst, '[')
	for i, s := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendString(dst, s)
	}
	return append(dst, ']')
}
