package tokenizer

import (
	"slices"
	"strings"
)

// matcher finds added tokens, leftmost first and the longest of those.
type matcher struct {
	// texts is sorted, so that tokens with a common beginning are neighbours.
	texts []string
	ids   []int32
	// first marks the bytes a token can begin with; only is that byte when
	// there is just one, else 0.
	first [256]bool
	only  byte
}

func newMatcher(tokens []AddedToken) matcher {
	sorted := slices.Clone(tokens)
	slices.SortFunc(sorted, func(a, b AddedToken) int { return strings.Compare(a.Text, b.Text) })
	var m matcher
	distinct := 0
	for _, t := range sorted {
		m.texts = append(m.texts, t.Text)
		m.ids = append(m.ids, t.ID)
		if b := t.Text[0]; !m.first[b] {
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

// longest returns the length and id of the longest token that s begins with;
// the length is 0 when there is none.
func (m *matcher) longest(s string) (int, int32) {
	n, id := 0, int32(0)
	lo, hi := 0, len(m.texts)
	for d := 0; d < len(s); d++ {
		if lo, hi = m.narrow(lo, hi, d, s[d]); lo == hi {
			break
		}
		if len(m.texts[lo]) == d+1 {
			n, id = d+1, m.ids[lo]
		}
	}
	return n, id
}

// cut reports whether s is a beginning of a token that is longer than s.
func (m *matcher) cut(s string) bool {
	lo, hi := 0, len(m.texts)
	for d := 0; d < len(s) && lo < hi; d++ {
		lo, hi = m.narrow(lo, hi, d, s[d])
	}
	return lo < hi && len(m.texts[hi-1]) > len(s)
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
