package tokenizer

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// edges says how an added token treats the text beside it.
type edges struct {
	// left and right take the white space there into the token.
	left, right bool
	// word finds the token only between characters that are no part of a word.
	word bool
}

// pattern is a text to be found, and the added token that it stands for.
type pattern struct {
	text    string
	id      int32
	special bool
	edges   edges
}

// matcher finds added tokens, leftmost first and the longest of those.
type matcher struct {
	// texts is sorted, so that tokens with a common beginning are neighbours.
	texts []string
	found []pattern
	// first marks the bytes a token can begin with; only is that byte when
	// there is just one, else 0.
	first [256]bool
	only  byte
}

func newMatcher(patterns []pattern) matcher {
	sorted := slices.Clone(patterns)
	slices.SortFunc(sorted, func(a, b pattern) int { return strings.Compare(a.text, b.text) })
	var m matcher
	distinct := 0
	for _, p := range sorted {
		m.texts = append(m.texts, p.text)
		m.found = append(m.found, p)
		if b := p.text[0]; !m.first[b] {
			m.first[b] = true
			m.only = b
			distinct++
		}
	}
	if distinct != 1 {
		m.only = 0
	}
	return m
}

// pieces cuts s into added tokens and what is between them: it calls text for each
// piece that is not empty, and token for each token found where parts allow it. As
// in the reference, the texts of the tokens are looked for first, and white space is
// taken after that.
func (m *matcher) pieces(s string, parts spans, text func(from, to int), token func(int32)) {
	start := 0 // of the piece that is open
	for i := m.next(s, 0); i < len(s); {
		p := m.longest(s, i, parts)
		if p == nil {
			i = m.next(s, i+1)
			continue
		}
		end := i + len(p.text)
		if p.edges.word && (endsWord(s[:i]) || startsWord(s[end:])) {
			i = m.next(s, end)
			continue
		}
		begin, next := i, end
		if p.edges.left {
			begin = max(start, len(strings.TrimRightFunc(s[:i], unicode.IsSpace)))
		}
		if p.edges.right {
			next = len(s) - len(strings.TrimLeftFunc(s[end:], unicode.IsSpace))
		}
		if start < begin {
			text(start, begin)
		}
		token(p.id)
		start = next
		i = m.next(s, end)
	}
	if start < len(s) {
		text(start, len(s))
	}
}

func endsWord(s string) bool {
	r, w := utf8.DecodeLastRuneInString(s)
	return w > 0 && wordRune(r)
}

func startsWord(s string) bool {
	r, w := utf8.DecodeRuneInString(s)
	return w > 0 && wordRune(r)
}

// wordRune is \w.
func wordRune(r rune) bool {
	return unicode.In(r, unicode.L, unicode.M, unicode.Nd, unicode.Nl, unicode.Pc, unicode.Other_Alphabetic, unicode.Join_Control)
}

// next returns the first place from i on where a token may begin, else the length of s.
func (m *matcher) next(s string, i int) int {
	if len(m.texts) == 0 || i >= len(s) {
		return len(s)
	}
	if m.only != 0 {
		if k := strings.IndexByte(s[i:], m.only); k >= 0 {
			return i + k
		}
		return len(s)
	}
	for i < len(s) && !m.first[s[i]] {
		i++
	}
	return i
}

// longest returns the longest token that s has at i and that parts allow there, or nil.
func (m *matcher) longest(s string, i int, parts spans) *pattern {
	var best *pattern
	lo, hi := 0, len(m.texts)
	for d := 0; i+d < len(s); d++ {
		if lo, hi = m.narrow(lo, hi, d, s[i+d]); lo == hi {
			break
		}
		if p := &m.found[lo]; len(p.text) == d+1 && parts.allow(i, i+d+1, p.special) {
			best = p
		}
	}
	return best
}

// narrow keeps of texts[lo:hi], which agree before byte d, those with byte d equal to b.
func (m *matcher) narrow(lo, hi, d int, b byte) (int, int) {
	at := func(limit int) int {
		l, h := lo, hi
		for l < h {
			k := (l + h) / 2
			if t := m.texts[k]; len(t) > d && int(t[d]) >= limit {
				h = k
			} else {
				l = k + 1
			}
		}
		return l
	}
	return at(int(b)), at(int(b) + 1)
}
