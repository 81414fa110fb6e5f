package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// Decoder turns a stream of ids into text. What it returns, joined, equals the
// decoding of all ids at once. It holds back at most 3 bytes, the beginning of
// a character that the next token may complete; they depend on the ids so far
// and on nothing else. A Decoder may be copied to try a continuation.
type Decoder struct {
	t           *Tokenizer
	skipSpecial bool
	// strip drops a space at the beginning of the text that comes next.
	strip bool
	tail  [3]byte
	held  int
}

// NewDecoder starts the stream of a text. With skipSpecial the tokens marked
// `special: true` give no text.
func (t *Tokenizer) NewDecoder(skipSpecial bool) *Decoder {
	return &Decoder{t: t, skipSpecial: skipSpecial, strip: t.strip}
}

// NewContinuation is NewDecoder for ids that go on behind a prompt: some
// vocabularies begin a text with a space that is not part of it, but here it is.
func (t *Tokenizer) NewContinuation(skipSpecial bool) *Decoder {
	return &Decoder{t: t, skipSpecial: skipSpecial}
}

// Next returns the text that is certain after this token, which may be empty.
// An id outside of the vocabulary has no text.
func (d *Decoder) Next(id int32) string {
	if d.skipSpecial && d.t.IsSpecial(id) {
		return ""
	}
	s := d.t.token(id)
	if d.strip && s != "" {
		s = strings.TrimPrefix(s, " ")
		d.strip = false
	}
	if d.held > 0 {
		if s == "" {
			return ""
		}
		s = string(d.tail[:d.held]) + s
		d.held = 0
	}
	n := len(s)
	for k := 1; k <= min(3, len(s)); k++ {
		if utf8.RuneStart(s[len(s)-k]) {
			if partialRune(s[len(s)-k:]) {
				n = len(s) - k
				d.held = copy(d.tail[:], s[n:])
			}
			break
		}
	}
	return RepairUTF8(s[:n])
}

// Held is the number of bytes held back.
func (d *Decoder) Held() int { return d.held }

// Flush ends the stream: it returns U+FFFD when a character stayed incomplete.
func (d *Decoder) Flush() string {
	if d.held == 0 {
		return ""
	}
	d.held = 0
	return replacement
}
