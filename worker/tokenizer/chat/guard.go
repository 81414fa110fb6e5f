package chat

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/tokenrouter/tokenrouter/worker/tokenizer"
)

// The template and the caller's texts end up in one string, in which added
// tokens are then looked for. To tell the two apart, every added token within
// a caller's text gets a mark inside before rendering, so that it is no longer
// found, and the mark is taken out again from the pieces between the real
// tokens, before these are normalised and split. Marks are noncharacters, which
// no template looks for. Should a text hold one of its own, it is escaped.
//
// In an assistant's content only special tokens are marked: templates look for
// "</think>" and the like there. A text that ends with the beginning of an added
// token is marked too, as the next text might complete it.
const (
	// escape and the rune escapeBase+k stand for a text's own firstMark+k.
	firstMark  = '\uFDD0'
	lastMark   = '\uFDD3'
	escape     = '\uFDD0'
	escapeBase = '\uFDD8'
	// guardMark is the mark inside an added token.
	guardMark = '\uFDD1'
	// numberMark begins a number that the engine is given as text, see value.go.
	numberMark = '\uFDD2'
	// markPrefix is how all of these runes, and few others, begin in UTF-8.
	markPrefix = "\xEF\xB7"
)

// ErrUnguardable says that an added token of the tokenizer cannot be told from
// the same text in a message: it is a single character, or holds a mark.
var ErrUnguardable = errors.New("added token cannot be guarded")

// marking rewrites one text of the caller.
type marking func(text string) string

// escapeMarks escapes the marks that text itself holds.
func escapeMarks(text string) string {
	text = tokenizer.RepairUTF8(text)
	if !strings.Contains(text, markPrefix) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if firstMark <= r && r <= lastMark {
			b.WriteRune(escape)
			r = escapeBase + (r - firstMark)
		}
		b.WriteRune(r)
	}
	return b.String()
}

// clean takes out the marks and undoes the escapes.
func clean(text string) string {
	if !strings.Contains(text, markPrefix) {
		return text
	}
	var b strings.Builder
	escaped := false
	for _, r := range text {
		switch {
		case escaped && escapeBase <= r && r <= escapeBase+(lastMark-firstMark):
			b.WriteRune(firstMark + (r - escapeBase))
			escaped = false
		case r == escape:
			escaped = true
		case r == guardMark || r == numberMark:
			escaped = false
		default:
			b.WriteRune(r)
			escaped = false
		}
	}
	return b.String()
}

// guard returns the marking of texts from untrusted roles, or with specialOnly
// of an assistant's content.
func guard(t *tokenizer.Tokenizer, specialOnly bool) marking {
	return func(text string) string {
		text = escapeMarks(text)
		// A template may trim the text, so white space must not hide a cut token.
		trimmed := strings.TrimRightFunc(text, unicode.IsSpace)
		var b strings.Builder
		done := 0
		for i := range len(text) {
			whole := t.AddedAt(text[i:], specialOnly) > 0
			if !whole && (i >= len(trimmed) || !t.AddedCut(trimmed[i:], specialOnly)) {
				continue
			}
			_, w := utf8.DecodeRuneInString(text[i:])
			b.WriteString(text[done : i+w])
			b.WriteRune(guardMark)
			done = i + w
		}
		if done == 0 {
			return text
		}
		b.WriteString(text[done:])
		return b.String()
	}
}

// guardable refuses tokens that a mark cannot break up.
func guardable(t *tokenizer.Tokenizer) error {
	for _, a := range t.AddedTokens() {
		if utf8.RuneCountInString(a.Text) < 2 || strings.Contains(a.Text, markPrefix) {
			return fmt.Errorf("%w: %q", ErrUnguardable, a.Text)
		}
	}
	return nil
}

// EncodeChat returns the prompt of a conversation as token ids. Added tokens
// come from the template alone, and in an assistant's content from the tokens
// that are not special.
func EncodeChat(t *tokenizer.Tokenizer, tpl *Template, c Conversation) ([]int32, error) {
	if err := guardable(t); err != nil {
		return nil, err
	}
	text, err := tpl.render(&c, guard(t, false), guard(t, true))
	if err != nil {
		return nil, err
	}
	opt := tokenizer.ParseAll()
	opt.Clean = clean
	return t.Encode(nil, text, opt), nil
}
