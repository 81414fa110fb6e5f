package tokenizer

import (
	"strings"
	"sync/atomic"
)

// Tokenizer is one loaded tokenizer.json. It is safe for concurrent use.
type Tokenizer struct {
	// tokens has the raw bytes of each id, empty for ids that are not in use.
	tokens  []string
	special []bool
	added   []AddedToken
	addedID map[string]int32
	// matchers is indexed by EncodeOptions.matcher.
	matchers [4]matcher

	// words maps raw bytes to the id of the model's own (not added) token.
	words map[string]int32
	// whole remembers per id whether merging the token's bytes gives just that
	// id. It only saves work: every value leads to the same ids.
	whole  []atomic.Uint32
	bytes  [256]int32
	merges mergeTable
	split  splitter
	// normal is nil when the text is taken as it is.
	normal       *normalizer
	ignoreMerges bool
	fingerprint  string
}

// AddedToken is a text that stands for one id, outside of the merges.
type AddedToken struct {
	ID   int32
	Text string
	// Special tokens steer the model; a decoder may leave them out of the text.
	Special bool
}

// EncodeOptions says which added tokens are looked for in the text. The zero
// value takes all of it as plain text, which is right for what a user wrote.
type EncodeOptions struct {
	// Special looks for tokens with `special: true`, Added for the others.
	Special, Added bool
	// Clean, when set, rewrites each piece between added tokens before it is
	// normalised and split. It must return valid UTF-8.
	Clean func(piece string) string
}

// ParseAll looks for every added token, as for a prompt that a template wrote.
func ParseAll() EncodeOptions { return EncodeOptions{Special: true, Added: true} }

func (o EncodeOptions) matcher() int {
	k := 0
	if o.Special {
		k |= 1
	}
	if o.Added {
		k |= 2
	}
	return k
}

// Encode appends the ids of text to dst. Each maximal bad part of invalid
// UTF-8 counts as one U+FFFD.
func (t *Tokenizer) Encode(dst []int32, text string, opt EncodeOptions) []int32 {
	text = RepairUTF8(text)
	m := &t.matchers[opt.matcher()]
	start := 0
	for i := m.next(text, 0); i < len(text); {
		n, id := m.longest(text[i:])
		if n == 0 {
			i = m.next(text, i+1)
			continue
		}
		dst = t.encodePiece(dst, text[start:i], opt.Clean)
		dst = append(dst, id)
		start = i + n
		i = m.next(text, start)
	}
	return t.encodePiece(dst, text[start:], opt.Clean)
}

// encodePiece encodes a text in which no added token is looked for.
func (t *Tokenizer) encodePiece(dst []int32, piece string, clean func(string) string) []int32 {
	if clean != nil {
		piece = clean(piece)
	}
	if t.normal != nil {
		piece = t.normal.nfc(piece)
	}
	for piece != "" {
		n := t.split.next(piece)
		dst = t.encodeWord(dst, piece[:n])
		piece = piece[n:]
	}
	return dst
}

// Size is the real vocabulary: the largest id plus one. A checkpoint's logits
// may have more rows; those must never be sampled.
func (t *Tokenizer) Size() int { return len(t.tokens) }

// TokenBytes returns a copy of the raw bytes of a token, the text of an added
// one, and nil for an id that stands for nothing.
func (t *Tokenizer) TokenBytes(id int32) []byte {
	if s := t.token(id); s != "" {
		return []byte(s)
	}
	return nil
}

func (t *Tokenizer) token(id int32) string {
	if id < 0 || int(id) >= len(t.tokens) {
		return ""
	}
	return t.tokens[id]
}

// IsSpecial reports whether id is an added token with `special: true`.
func (t *Tokenizer) IsSpecial(id int32) bool {
	return id >= 0 && int(id) < len(t.special) && t.special[id]
}

// AddedID finds the added token with exactly this text.
func (t *Tokenizer) AddedID(text string) (int32, bool) {
	id, ok := t.addedID[text]
	return id, ok
}

// AddedTokens returns a copy of the added tokens in order of id.
func (t *Tokenizer) AddedTokens() []AddedToken {
	return append([]AddedToken(nil), t.added...)
}

// AddedAt returns the length in bytes of the longest added token that text
// begins with, 0 for none. With specialOnly the others do not count.
func (t *Tokenizer) AddedAt(text string, specialOnly bool) int {
	n, _ := t.guardMatcher(specialOnly).longest(text)
	return n
}

// AddedCut reports whether text is a beginning of an added token but not all of it.
func (t *Tokenizer) AddedCut(text string, specialOnly bool) bool {
	return t.guardMatcher(specialOnly).cut(text)
}

func (t *Tokenizer) guardMatcher(specialOnly bool) *matcher {
	return &t.matchers[EncodeOptions{Special: true, Added: !specialOnly}.matcher()]
}

// Fingerprint is a SHA-256 in hex over all that decides ids: vocabulary,
// merges, added tokens, split pattern and normal form. Models with equal
// fingerprints can exchange token ids.
func (t *Tokenizer) Fingerprint() string { return t.fingerprint }

// Decode returns the text of ids in one piece; see Decoder for streams.
func (t *Tokenizer) Decode(ids []int32, skipSpecial bool) string {
	var b strings.Builder
	for _, id := range ids {
		if !skipSpecial || !t.IsSpecial(id) {
			b.WriteString(t.token(id))
		}
	}
	return RepairUTF8(b.String())
}
