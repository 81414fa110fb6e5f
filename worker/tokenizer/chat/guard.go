package chat

import (
	"github.com/tokenrouter/tokenrouter/worker/tokenizer"
	"github.com/tokenrouter/tokenrouter/worker/tokenizer/chat/jinja"
)

// EncodeChat returns the prompt of a conversation as token ids. Added tokens come
// from the template alone, and in an assistant's content from the tokens that are
// not special: whoever wrote a text decides which tokens may be found in it, and a
// token that is put together from several texts needs all of them to allow it. Tools
// that the template would not show to the model are ErrNoTools.
func EncodeChat(t *tokenizer.Tokenizer, tpl *Template, c Conversation) ([]int32, error) {
	if len(c.Tools) > 0 && !tpl.KnowsTools() {
		return nil, ErrNoTools
	}
	text, err := tpl.render(&c)
	if err != nil {
		return nil, err
	}
	parts := text.Spans()
	spans := make([]tokenizer.Span, len(parts))
	for i, p := range parts {
		spans[i] = tokenizer.Span{End: p.End, Allow: allowed(p.Class)}
	}
	return t.EncodeSpans(nil, text.String(), spans), nil
}

func allowed(c jinja.Class) tokenizer.Allow {
	switch c {
	case jinja.Own:
		return tokenizer.AllowAll
	case jinja.Answer:
		return tokenizer.AllowPlain
	}
	return tokenizer.AllowNone
}
