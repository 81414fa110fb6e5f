package tokenizer

import "unicode/utf8"

// deepSeekSplitter is the split of DeepSeek V3 and R1, which passes over the text
// three times: numbers of at most three digits, then runs of Chinese and Japanese,
// then, within what these two passes left and found,
//
//	[ASCII punctuation][A-Za-z]+
//	[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+
//	 ?[\p{P}\p{S}]+[\r\n]*
//	\s*[\r\n]+
//	\s+(?!\S)
//	\s+
//
// A pass does not see over the borders that the ones before it drew. What none of
// the patterns takes, such as control characters, stays together up to the next
// place where one of them does.
type deepSeekSplitter struct{ classes *classTable }

func (d deepSeekSplitter) next(s string, left int) (n, leftAfter int) {
	if left == 0 {
		left = d.segment(s)
	}
	segment := s[:left]
	if n = d.match(segment); n == 0 {
		n = d.gap(segment)
	}
	return n, left - n
}

// gap returns the end of what no pattern takes at the beginning of s.
func (d deepSeekSplitter) gap(s string) int {
	_, n := d.classes.at(s)
	for n < len(s) && d.match(s[n:]) == 0 {
		_, w := d.classes.at(s[n:])
		n += w
	}
	return n
}

// segment returns the length of the segment of the first two passes that s begins with.
func (d deepSeekSplitter) segment(s string) int {
	first, w := d.classes.at(s)
	if first == number {
		return d.classes.digits(s, w, 3)
	}
	han := eastAsian(s)
	for i := w; i < len(s); i += w {
		if s[i] < utf8.RuneSelf {
			w = 1
			if han || '0' <= s[i] && s[i] <= '9' {
				return i
			}
			continue
		}
		var c class
		if c, w = d.classes.at(s[i:]); c == number || eastAsian(s[i:]) != han {
			return i
		}
	}
	return len(s)
}

// eastAsian reports whether the first rune of s is in the set of the second pass.
func eastAsian(s string) bool {
	if s[0] < 0xE3 {
		return false
	}
	r, _ := utf8.DecodeRuneInString(s)
	return 0x4E00 <= r && r <= 0x9FA5 || 0x3040 <= r && r <= 0x30FF
}

// match returns the length of what the third pass takes at the beginning of s, or 0.
func (d deepSeekSplitter) match(s string) int {
	first, w := d.classes.at(s)
	if isASCIIPunct(s[0]) && len(s) > 1 && isASCIILetter(s[1]) {
		i := 2
		for i < len(s) && isASCIILetter(s[i]) {
			i++
		}
		return i
	}
	if first == letter || first == mark {
		return d.letters(s, w)
	}
	second, w2 := d.classes.at(s[w:])
	if (second == letter || second == mark) && first != punct && first != sign && !isNewline(s[0]) {
		return d.letters(s, w+w2)
	}
	switch {
	case first == punct || first == sign:
		return d.symbols(s, w)
	case s[0] == ' ' && (second == punct || second == sign):
		return d.symbols(s, w+w2)
	case first == space:
		return d.classes.blanks(s)
	}
	return 0
}

// letters returns the end of a run of letters and marks from i on.
func (d deepSeekSplitter) letters(s string, i int) int {
	for i < len(s) {
		c, w := d.classes.at(s[i:])
		if c != letter && c != mark {
			break
		}
		i += w
	}
	return i
}

// symbols returns the end of a run of punctuation and symbols from i on, with the
// newlines behind it.
func (d deepSeekSplitter) symbols(s string, i int) int {
	for i < len(s) {
		c, w := d.classes.at(s[i:])
		if c != punct && c != sign {
			break
		}
		i += w
	}
	for i < len(s) && isNewline(s[i]) {
		i++
	}
	return i
}

func isASCIILetter(b byte) bool { return 'a' <= b|0x20 && b|0x20 <= 'z' }

func isASCIIPunct(b byte) bool {
	return '!' <= b && b <= '/' || ':' <= b && b <= '@' || '[' <= b && b <= '`' || '{' <= b && b <= '~'
}
