package tokenizer

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"unicode/utf8"
)

// build checks everything and fills the tables.
func build(file *tokenizerFile) (*Tokenizer, error) {
	p, err := file.check()
	if err != nil {
		return nil, err
	}
	t := &Tokenizer{normal: p.normal, meta: p.meta, space: p.space, strip: p.strip, prefix: p.prefix,
		byteLevel: p.bytes, ignoreMerges: file.Model.IgnoreMerges}
	if err := t.setVocabulary(file.Model.Vocab, file.AddedTokens); err != nil {
		return nil, err
	}
	if err := t.setMerges(file.Model.Vocab, file.Model.Merges); err != nil {
		return nil, err
	}
	switch {
	case p.bytes:
		if t.split = splitterFor(p.pattern); t.split == nil {
			return nil, unsupported("pre_tokenizer: split pattern %q", p.pattern)
		}
	case t.ignoreMerges && p.splitMarks:
		t.split = wordSplitter{mark: p.space}
	case t.ignoreMerges || mergesBytes(file.Model.Merges):
		t.split = noSplitter{}
	default:
		t.split = newPairSplitter(file.Model.Merges, p.space, p.splitMarks)
	}
	for _, id := range t.prefix {
		if t.token(id) == "" {
			return nil, corrupt("post_processor: id %d is not in use", id)
		}
	}
	t.setMatchers(file.AddedTokens)
	t.fingerprint = t.digest(p, file.Model.Merges)
	return t, nil
}

// setMatchers makes a pair of matchers for each choice of added tokens: those that
// are looked for in the text as it is, and then those that are in the normalised one.
func (t *Tokenizer) setMatchers(added []addedEntry) {
	for k := range t.matchers {
		var raw, normal []pattern
		for _, a := range added {
			if a.Special && k&1 == 0 || !a.Special && k&2 == 0 {
				continue
			}
			p := pattern{a.Content, a.ID, a.Special, edges{left: a.LStrip, right: a.RStrip, word: a.SingleWord}}
			if a.Normalized {
				p.text = t.normal.full(a.Content)
				normal = append(normal, p)
			} else {
				raw = append(raw, p)
			}
		}
		t.matchers[k] = [2]matcher{newMatcher(raw), newMatcher(normal)}
	}
}

// setVocabulary fills tokens, words, bytes, added and special.
func (t *Tokenizer) setVocabulary(vocab map[string]int32, added []addedEntry) error {
	last := int32(-1)
	for text, id := range vocab {
		if id < 0 || id > maxID {
			return corrupt("id %d of %q is out of range", id, text)
		}
		if text == "" || len(text) > maxTokenBytes {
			return corrupt("token of id %d has %d bytes", id, len(text))
		}
		last = max(last, id)
	}
	if len(added) > maxAdded {
		return unsupported("%d added_tokens", len(added))
	}
	for _, a := range added {
		if err := a.check(); err != nil {
			return err
		}
		last = max(last, a.ID)
	}
	t.tokens = make([]string, last+1)
	t.special = make([]bool, last+1)
	t.whole = make([]atomic.Uint32, last+1)
	t.words = make(map[string]int32, len(vocab))
	byteOf := byteAlphabet()
	for text, id := range vocab {
		if t.tokens[id] != "" {
			return corrupt("id %d stands for two tokens, one is %q", id, text)
		}
		if t.byteLevel {
			raw, ok := rawBytes(byteOf, text)
			t.tokens[id] = raw
			if ok {
				t.words[raw] = id
			}
			continue
		}
		t.tokens[id] = t.spaced(text)
		t.words[text] = id
	}
	if err := t.setBytes(); err != nil {
		return err
	}
	return t.setAdded(vocab, added)
}

// spaced is the text of a token in a vocabulary of characters.
func (t *Tokenizer) spaced(token string) string {
	if t.space == "" {
		return token
	}
	return strings.ReplaceAll(token, t.space, " ")
}

// setBytes finds the tokens of all single bytes.
func (t *Tokenizer) setBytes() error {
	for b := range t.bytes {
		text := string([]byte{byte(b)})
		if !t.byteLevel {
			text = fmt.Sprintf("<0x%02X>", b)
		}
		id, ok := t.words[text]
		if !ok {
			return unsupported("model.vocab: no token for byte %#02x", b)
		}
		t.bytes[b] = id
		if t.byteLevel {
			continue
		}
		t.tokens[id] = string([]byte{byte(b)})
		if b < utf8.RuneSelf {
			t.ascii[b] = id
			if char, ok := t.words[string(rune(b))]; ok {
				t.ascii[b] = char
			}
		}
	}
	return nil
}

func (t *Tokenizer) setAdded(vocab map[string]int32, added []addedEntry) error {
	t.addedID = make(map[string]int32, len(added))
	for _, a := range added {
		if id, ok := vocab[a.Content]; ok && id != a.ID {
			return corrupt("added_tokens: %q has id %d, in model.vocab %d", a.Content, a.ID, id)
		} else if !ok && t.tokens[a.ID] != "" {
			return corrupt("added_tokens: id %d of %q is taken", a.ID, a.Content)
		}
		if _, ok := t.addedID[a.Content]; ok {
			return corrupt("added_tokens: %q stands there twice", a.Content)
		}
		text := a.Content
		if a.Normalized {
			text = t.normal.full(text) // as the reference decodes it
		}
		t.tokens[a.ID] = t.spaced(text)
		t.special[a.ID] = a.Special
		t.addedID[a.Content] = a.ID
		t.added = append(t.added, AddedToken{ID: a.ID, Text: a.Content, Special: a.Special})
	}
	slices.SortFunc(t.added, func(a, b AddedToken) int { return int(a.ID) - int(b.ID) })
	return nil
}

func (t *Tokenizer) setMerges(vocab map[string]int32, rules []mergeRule) error {
	t.merges = newMergeTable(len(rules))
	byteOf := byteAlphabet()
	for rank, r := range rules {
		left, okLeft := vocab[r.left]
		right, okRight := vocab[r.right]
		id, ok := vocab[r.left+r.right]
		if !okLeft || !okRight || !ok {
			return corrupt("model.merges: %q + %q needs a token that model.vocab lacks", r.left, r.right)
		}
		t.merges.set(left, right, merge{rank: uint32(rank), id: id})
		// A rule over other runes than those that stand for bytes is never applied.
		last, _ := utf8.DecodeLastRuneInString(r.left)
		first, _ := utf8.DecodeRuneInString(r.right)
		a, okLast := byteOf[last]
		b, okFirst := byteOf[first]
		if t.byteLevel && okLast && okFirst {
			t.joined[a][b>>6] |= 1 << (b & 63)
		}
	}
	return nil
}

// byteAlphabet maps the runes that stand for bytes in a byte-level vocabulary
// to these bytes: printable Latin-1 stands for itself, the other 68 bytes are
// U+0100 and up in order.
func byteAlphabet() map[rune]byte {
	m := make(map[rune]byte, 256)
	next := rune(0x100)
	for b := range 256 {
		r := rune(b)
		if r < '!' || r > '~' && r < '¡' || r == 0xAD {
			r = next
			next++
		}
		m[r] = byte(b)
	}
	return m
}

// rawBytes undoes the byte alphabet. A token with other runes in it stands for
// its own UTF-8, and false is returned.
func rawBytes(byteOf map[rune]byte, token string) (string, bool) {
	raw := make([]byte, 0, len(token))
	for _, r := range token {
		b, ok := byteOf[r]
		if !ok {
			return token, false
		}
		raw = append(raw, b)
	}
	return string(raw), true
}

// check bounds an entry.
func (a addedEntry) check() error {
	switch {
	case a.Content == "" || len(a.Content) > maxTokenBytes || !utf8.ValidString(a.Content):
		return corrupt("added_tokens: id %d has a bad text of %d bytes", a.ID, len(a.Content))
	case a.ID < 0 || a.ID > maxID:
		return corrupt("added_tokens: id %d of %q is out of range", a.ID, a.Content)
	}
	return nil
}
