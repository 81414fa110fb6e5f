package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// pairSplitter cuts a text over a vocabulary of characters between two characters that
// no merge brings together. Such a place is never crossed, so the words can be merged
// apart from each other and give the same ids; and they are short, where the text as a
// whole is one long word.
type pairSplitter struct {
	// ascii has a bit for each pair of ASCII characters that may be joined, fromMark and
	// toMark for each that may stand behind or before the mark for a space; joined has
	// all other pairs.
	ascii            [utf8.RuneSelf][2]uint64
	fromMark, toMark [2]uint64
	joined           map[[2]rune]struct{}
	mark             rune
	// every has words begin at every mark, whatever the merges say.
	every bool
}

// newPairSplitter learns the pairs: a merge crosses the place between the last
// character of its left part and the first one of its right part.
func newPairSplitter(rules []mergeRule, mark string, every bool) *pairSplitter {
	p := &pairSplitter{joined: map[[2]rune]struct{}{}, every: every}
	p.mark, _ = utf8.DecodeRuneInString(mark)
	for _, r := range rules {
		left, _ := utf8.DecodeLastRuneInString(r.left)
		right, _ := utf8.DecodeRuneInString(r.right)
		switch {
		case left < utf8.RuneSelf && right < utf8.RuneSelf:
			p.ascii[left][right>>6] |= 1 << (right & 63)
		case left == p.mark && right < utf8.RuneSelf:
			p.fromMark[right>>6] |= 1 << (right & 63)
		case right == p.mark && left < utf8.RuneSelf:
			p.toMark[left>>6] |= 1 << (left & 63)
		default:
			p.joined[[2]rune{left, right}] = struct{}{}
		}
	}
	return p
}

// mergesBytes reports whether a rule merges a token that stands for a byte. Bytes
// replace characters that the vocabulary lacks, so pairs of characters do not tell
// where such a rule applies.
func mergesBytes(rules []mergeRule) bool {
	isByte := func(s string) bool { return len(s) == 6 && strings.HasPrefix(s, "<0x") && s[5] == '>' }
	for _, r := range rules {
		if isByte(r.left) || isByte(r.right) {
			return true
		}
	}
	return false
}

func (p *pairSplitter) next(s string, _ int) (n, left int) {
	before, i := utf8.DecodeRuneInString(s)
	for i < len(s) {
		r, w := rune(s[i]), 1
		if r >= utf8.RuneSelf {
			r, w = utf8.DecodeRuneInString(s[i:])
		}
		if !p.joins(before, r) {
			break
		}
		before = r
		i += w
	}
	return i, 0
}

// joins reports whether a merge may cross the place between two characters.
func (p *pairSplitter) joins(a, b rune) bool {
	bit := func(set *[2]uint64, r rune) bool { return set[r>>6]>>(r&63)&1 != 0 }
	switch {
	case b == p.mark && p.every:
		return false
	case a < utf8.RuneSelf && b < utf8.RuneSelf:
		return bit(&p.ascii[a], b)
	case a == p.mark && b < utf8.RuneSelf:
		return bit(&p.fromMark, b)
	case b == p.mark && a < utf8.RuneSelf:
		return bit(&p.toMark, a)
	}
	_, ok := p.joined[[2]rune{a, b}]
	return ok
}
