package openai

import (
	"strconv"
	"unicode/utf8"
)

// appendChatLogprobs appends the chat form: one entry per token, each with its
// alternatives.
func appendChatLogprobs(dst []byte, tokens []Token) []byte {
	dst = append(dst, `{"content":[`...)
	for i := range tokens {
		t := &tokens[i]
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendEntry(dst, t.Text, t.Bytes, t.Logprob)
		dst = append(dst, `,"top_logprobs":[`...)
		for j := range t.Top {
			a := &t.Top[j]
			if j > 0 {
				dst = append(dst, ',')
			}
			dst = append(appendEntry(dst, a.Text, a.Bytes, a.Logprob), '}')
		}
		dst = append(dst, `]}`...)
	}
	return append(dst, `],"refusal":null}`...)
}

func appendEntry(dst []byte, text string, raw []byte, logprob float32) []byte {
	dst = append(dst, `{"token":`...)
	dst = appendOwnText(dst, text, raw)
	dst = append(dst, `,"logprob":`...)
	dst = appendLogprob(dst, logprob)
	dst = append(dst, `,"bytes":`...)
	return appendBytes(dst, raw)
}

// appendOwnText appends a token's own text: its bytes if they are known.
func appendOwnText(dst []byte, text string, raw []byte) []byte {
	if len(raw) > 0 {
		return appendString(dst, raw)
	}
	return appendString(dst, text)
}

// appendTextLogprobs appends the older form of the completions endpoint:
// parallel lists, and for every token an object of alternatives that always
// contains the token itself. offset is where the first token starts in the
// answer, in characters.
func appendTextLogprobs(dst []byte, tokens []Token, offset int) []byte {
	dst = append(dst, `{"tokens":[`...)
	for i := range tokens {
		dst = comma(dst, i)
		dst = appendOwnText(dst, tokens[i].Text, tokens[i].Bytes)
	}
	dst = append(dst, `],"token_logprobs":[`...)
	for i := range tokens {
		dst = comma(dst, i)
		if tokens[i].First {
			dst = append(dst, "null"...)
			continue
		}
		dst = appendLogprob(dst, tokens[i].Logprob)
	}
	dst = append(dst, `],"top_logprobs":[`...)
	for i := range tokens {
		dst = comma(dst, i)
		if tokens[i].First {
			dst = append(dst, "null"...)
			continue
		}
		dst = appendTopObject(dst, &tokens[i])
	}
	dst = append(dst, `],"text_offset":[`...)
	for i := range tokens {
		dst = comma(dst, i)
		dst = strconv.AppendInt(dst, int64(offset), 10)
		offset += Characters(tokens[i].Text)
	}
	return append(dst, `]}`...)
}

func comma(dst []byte, i int) []byte {
	if i > 0 {
		return append(dst, ',')
	}
	return dst
}

// Characters counts the characters of a text, as text_offset does.
func Characters(s string) int { return utf8.RuneCountInString(s) }

// appendTopObject appends {text: logprob, …}, each text once. Two tokens can
// look alike (halves of characters); the likelier one stands.
func appendTopObject(dst []byte, t *Token) []byte {
	dst = append(dst, '{')
	dst = appendOwnText(dst, t.Text, t.Bytes)
	dst = append(dst, ':')
	dst = appendLogprob(dst, t.Logprob)
	for j := range t.Top {
		a := &t.Top[j]
		mark := len(dst)
		dst = append(dst, ',')
		dst = appendOwnText(dst, a.Text, a.Bytes)
		if t.looksLike(j, dst[mark+1:]) {
			dst = dst[:mark]
			continue
		}
		dst = append(dst, ':')
		dst = appendLogprob(dst, a.Logprob)
	}
	return append(dst, '}')
}

// looksLike reports whether quoted is how the token, or an alternative before
// j, is written.
func (t *Token) looksLike(j int, quoted []byte) bool {
	var room [64]byte
	if string(appendOwnText(room[:0], t.Text, t.Bytes)) == string(quoted) {
		return true
	}
	for k := range t.Top[:j] {
		if string(appendOwnText(room[:0], t.Top[k].Text, t.Top[k].Bytes)) == string(quoted) {
			return true
		}
	}
	return false
}
