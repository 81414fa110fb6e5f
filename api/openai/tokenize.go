package openai

import (
	"encoding/json"
	"strconv"
)

// TokenizeRequest is the body of POST /tokenize: a text, or a chat as its template
// renders it.
type TokenizeRequest struct {
	// Model may be empty: then any will do.
	Model string
	// Text counts if Messages is empty.
	Text         string
	Messages     []Message
	Tools        json.RawMessage
	TemplateArgs json.RawMessage
	// Bare says that no token may be put before those of the text.
	Bare bool
	// Strings asks for the texts of the tokens too.
	Strings bool
}

// ParseTokenize parses and checks a body.
func ParseTokenize(body []byte) (*TokenizeRequest, *Error) {
	o, err := open(body)
	if err != nil {
		return nil, err
	}
	r := new(TokenizeRequest)
	r.Model, _ = o.str("model")
	special, given := o.bool("add_special_tokens")
	r.Bare = given && !special
	r.Strings, _ = o.bool("return_token_strs")
	o.skipNeutral()
	text, isText := o.str("prompt")
	if _, isChat := o.fields["messages"]; isChat && isText {
		o.fail(invalid("messages", "'prompt' and 'messages' exclude each other"))
	} else if isChat {
		r.Messages = o.messages()
		r.Tools, _ = o.tools()
		r.TemplateArgs = o.templateArgs()
	} else if !isText {
		o.fail(missing("prompt"))
	}
	if r.Text = text; o.err != nil {
		return nil, o.err
	}
	return r, nil
}

// DetokenizeRequest is the body of POST /detokenize.
type DetokenizeRequest struct {
	// Model may be empty: then any will do.
	Model string
	IDs   []int32
}

// ParseDetokenize parses and checks a body.
func ParseDetokenize(body []byte) (*DetokenizeRequest, *Error) {
	o, err := open(body)
	if err != nil {
		return nil, err
	}
	r := new(DetokenizeRequest)
	r.Model, _ = o.str("model")
	switch raw, ok := o.take("tokens"); {
	case !ok:
		o.fail(missing("tokens"))
	case kind(raw) != '[':
		o.fail(wrongType("tokens", "an array of token ids"))
	case !emptyArray(raw):
		r.IDs = o.ids(raw, "tokens", "tokens")
	}
	if o.err != nil {
		return nil, o.err
	}
	return r, nil
}

// emptyArray reports whether an array has no elements.
func emptyArray(raw []byte) bool {
	empty := true
	elements(raw, func(int, []byte) bool { empty = false; return false })
	return empty
}

// Check reports an id that the deployment does not have, or too many of them.
func (r *DetokenizeRequest) Check(l Limits) *Error { return l.checkIDs("tokens", "tokens", r.IDs) }

// AppendTokens appends the answer to a TokenizeRequest. texts may be nil.
func AppendTokens(dst []byte, ids []int32, texts []string, maxContext int) []byte {
	dst = append(dst, `{"count":`...)
	dst = strconv.AppendInt(dst, int64(len(ids)), 10)
	dst = append(dst, `,"max_model_len":`...)
	dst = strconv.AppendInt(dst, int64(maxContext), 10)
	dst = append(dst, `,"tokens":[`...)
	for i, id := range ids {
		dst = strconv.AppendInt(comma(dst, i), int64(id), 10)
	}
	dst = append(dst, `],"token_strs":`...)
	if texts == nil {
		return append(dst, `null}`...)
	}
	return append(appendStrings(dst, texts), '}')
}

// AppendText appends the answer to a DetokenizeRequest.
func AppendText(dst []byte, text string) []byte {
	return append(appendString(append(dst, `{"prompt":`...), text), '}')
}
