package tokenizer

import (
	"slices"
	"strings"
	"sync/atomic"
	"unicode/utf8"
)

// Tokenizer is one loaded tokenizer.json. It is safe for concurrent use.
type Tokenizer struct {
	// tokens has the raw bytes of each id, empty for ids that are not in use.
	tokens  []string
	special []bool
	added   []AddedToken
	addedID map[string]int32
	// matchers is indexed by EncodeOptions.matcher: what is looked for in a text as it
	// is, and then in its pieces once they are normalised.
	matchers [4][2]matcher

	// words maps raw bytes to the id of the model's own (not added) token; with a
	// vocabulary of characters, the token as it is written there.
	words map[string]int32
	// whole remembers per id whether merging the token's bytes gives just that
	// id. It only saves work: every value leads to the same ids.
	whole []atomic.Uint32
	bytes [256]int32
	// ascii is what a word of characters begins with for each of ASCII.
	ascii  [utf8.RuneSelf]int32
	merges mergeTable
	// joined has a bit for each pair of bytes that a merge may bring together.
	joined [256][4]uint64
	split  splitter
	normal *normalizer
	meta   *metaspace
	// byteLevel has words begin as bytes; else they begin as characters, and as bytes
	// where the vocabulary lacks one.
	byteLevel bool
	// space is how such a vocabulary writes a space; strip takes one off the front
	// of a decoded text.
	space        string
	strip        bool
	prefix       []int32
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
	e := encoding{t: t, ids: dst, inner: &m[1], first: true}
	m[0].pieces(text, nil, func(from, to int) { e.piece(text[from:to], nil) }, e.token)
	return e.ids
}

// EncodePrompt is Encode for a whole prompt: it puts the ids of Prefix in front,
// unless the text begins with them itself.
func (t *Tokenizer) EncodePrompt(dst []int32, text string, opt EncodeOptions) []int32 {
	at := len(dst)
	dst = t.Encode(append(dst, t.prefix...), text, opt)
	n := len(t.prefix)
	if rest := dst[at+n:]; len(rest) >= n && slices.Equal(rest[:n], t.prefix) {
		return slices.Delete(dst, at, at+n)
	}
	return dst
}

// Prefix returns a copy of the ids that a prompt begins with, such as the one that
// begins a text; empty for many models. A chat template writes them itself.
func (t *Tokenizer) Prefix() []int32 { return slices.Clone(t.prefix) }

// encoding is one call of Encode or EncodeSpans.
type encoding struct {
	t     *Tokenizer
	ids   []int32
	spans spans
	// inner finds tokens in normalised text.
	inner *matcher
	first bool // nothing has been encoded yet
}

func (e *encoding) token(id int32) {
	e.ids = append(e.ids, id)
	e.first = false
}

// piece encodes a text in which no token was found as it is.
func (e *encoding) piece(piece string, parts spans) {
	n := e.t.normal
	switch {
	case len(e.inner.texts) == 0:
		e.words(n.full(piece))
	case parts == nil:
		text := n.full(piece)
		e.inner.pieces(text, nil, func(from, to int) { e.words(text[from:to]) }, e.token)
	default:
		// Composing characters would blur where the parts meet, so it comes last. The
		// tokens are then looked for in text that is not composed.
		text, moved := n.localSpans(piece, parts)
		e.inner.pieces(text, moved, func(from, to int) { e.words(n.compose(text[from:to])) }, e.token)
	}
}

// words encodes a text in which no added token is looked for.
func (e *encoding) words(text string) {
	text = e.t.meta.apply(text, e.first)
	e.first = false
	n, left := 0, 0
	for text != "" {
		n, left = e.t.split.next(text, left)
		e.ids = e.t.encodeWord(e.ids, text[:n])
		text = text[n:]
	}
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
	s := b.String()
	if t.strip {
		s = strings.TrimPrefix(s, " ")
	}
	return RepairUTF8(s)
}
