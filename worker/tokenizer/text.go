package tokenizer

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

const replacement = "\uFFFD"

// RepairUTF8 replaces each maximal bad part of s by one U+FFFD, the rule of
// the Unicode standard (and of browsers, Rust and Python). A bad part is the
// longest beginning of a character that is cut off, or else one byte.
func RepairUTF8(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	b.Grow(len(s) + 16)
	for len(s) > 0 {
		r, w := utf8.DecodeRuneInString(s)
		if r == utf8.RuneError && w == 1 {
			w = badPart(s)
			b.WriteString(replacement)
		} else {
			b.WriteString(s[:w])
		}
		s = s[w:]
	}
	return b.String()
}

// badPart returns the length of the maximal bad part that s begins with, given
// that s does not begin with a whole character.
func badPart(s string) int {
	for n := min(len(s), 3); n > 1; n-- {
		if partialRune(s[:n]) {
			return n
		}
	}
	return 1
}

// partialRune reports whether s is a proper beginning of some character's UTF-8.
func partialRune(s string) bool {
	if s == "" || len(s) > 3 {
		return false
	}
	need, lo, hi := 0, byte(0x80), byte(0xBF)
	switch b := s[0]; {
	case 0xC2 <= b && b <= 0xDF:
		need = 2
	case 0xE0 <= b && b <= 0xEF:
		need = 3
		switch b {
		case 0xE0: // shorter forms exist below
			lo = 0xA0
		case 0xED: // surrogates above
			hi = 0x9F
		}
	case 0xF0 <= b && b <= 0xF4:
		need = 4
		switch b {
		case 0xF0:
			lo = 0x90
		case 0xF4: // above U+10FFFF
			hi = 0x8F
		}
	}
	if len(s) >= need || len(s) > 1 && (s[1] < lo || s[1] > hi) {
		return false
	}
	return len(s) < 3 || 0x80 <= s[2] && s[2] <= 0xBF
}

// markRun is how many marks in a row x/text is trusted with. It breaks runs of
// more than 30 by an inserted U+034F, and one rune may decompose into 3 marks.
const markRun = 10

// markRules make normal form C as Unicode 9 has it.
type markRules struct{ young *unicode.RangeTable }

func newMarkRules() *markRules { return &markRules{young: youngMarks()} }

// nfc returns s in normal form C. s is valid UTF-8.
func (n *markRules) nfc(s string) string {
	if isASCII(s) {
		return s
	}
	cut := n.nextYoung(s)
	if cut == len(s) {
		return stretchNFC(s)
	}
	// Each young mark stands for itself, and the text on its two sides is apart.
	var b strings.Builder
	for s != "" {
		b.WriteString(stretchNFC(s[:cut]))
		s = s[cut:]
		_, w := utf8.DecodeRuneInString(s)
		b.WriteString(s[:w])
		s = s[w:]
		cut = n.nextYoung(s)
	}
	return b.String()
}

// firstYoung is the least of youngMarks.
const firstYoung = '\u07FD'

// nextYoung returns where the first young mark of s is, or the length of s.
func (n *markRules) nextYoung(s string) int {
	for i, r := range s {
		if r >= firstYoung && unicode.Is(n.young, r) {
			return i
		}
	}
	return len(s)
}

// stretchNFC normalises a text without young marks.
func stretchNFC(s string) string {
	if hasMarkRun(s) {
		return exactNFC(s)
	}
	return norm.NFC.String(s)
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

func hasMarkRun(s string) bool {
	n := 0
	for i := 0; i < len(s); {
		if s[i] < utf8.RuneSelf {
			n = 0
			i++
			continue
		}
		p := norm.NFD.PropertiesString(s[i:])
		if p.LeadCCC() == 0 && p.TrailCCC() == 0 {
			n = 0
		} else if n++; n >= markRun {
			return true
		}
		i += max(p.Size(), 1)
	}
	return false
}

// exactNFC follows the definition without a limit on runs of marks: decompose,
// sort marks by class, compose. Hangul syllables need no decomposition, as
// composing would only put them together again.
func exactNFC(s string) string {
	type point struct {
		r   rune
		ccc uint8
	}
	var all []point
	for len(s) > 0 {
		p := norm.NFD.PropertiesString(s)
		size := max(p.Size(), 1)
		part := s[:size]
		if d := p.Decomposition(); d != nil {
			part = string(d)
		}
		for _, r := range part {
			all = append(all, point{r, norm.NFD.PropertiesString(string(r)).CCC()})
		}
		s = s[size:]
	}
	for i := 0; i < len(all); {
		j := i + 1
		if all[i].ccc != 0 {
			for j < len(all) && all[j].ccc != 0 {
				j++
			}
			slices.SortStableFunc(all[i:j], func(a, b point) int { return int(a.ccc) - int(b.ccc) })
		}
		i = j
	}
	out := all[:0]
	starter := -1
	for _, p := range all {
		// A mark is blocked from its starter when one of the same or a higher
		// class stands between; a starter, when anything does.
		open := starter >= 0 && (starter == len(out)-1 || p.ccc != 0 && out[len(out)-1].ccc < p.ccc)
		if open {
			if c, ok := composed(out[starter].r, p.r); ok {
				out[starter].r = c
				continue
			}
		}
		if p.ccc == 0 {
			starter = len(out)
		}
		out = append(out, p)
	}
	var b strings.Builder
	for _, p := range out {
		b.WriteRune(p.r)
	}
	return b.String()
}

// composed returns the one rune that a followed by b is equivalent to.
func composed(a, b rune) (rune, bool) {
	s := norm.NFC.String(string([]rune{a, b}))
	r, w := utf8.DecodeRuneInString(s)
	return r, w == len(s)
}
