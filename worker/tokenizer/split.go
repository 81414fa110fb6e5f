package tokenizer

import (
	"unicode"
	"unicode/utf8"
)

// splitter cuts a text into words, each of which is merged on its own.
type splitter interface {
	// next returns the length in bytes, at least 1, of the first word of s,
	// which is not empty and is valid UTF-8.
	next(s string) int
}

// Split patterns are known by their exact text: Go's regexp lacks the
// look-ahead they need, and a hand-written splitter is several times faster
// than a general engine.
const (
	patternQwen = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// splitterFor is the table from pattern to splitter; nil for an unknown one.
func splitterFor(pattern string) splitter {
	switch pattern {
	case patternQwen:
		return gptSplitter{maxDigits: 1}
	}
	return nil
}

// gptSplitter is the family of patterns that Qwen2 and Qwen3 use. The
// alternatives are tried in order:
//
//	(?i:'s|'t|'re|'ve|'m|'ll|'d)
//	[^\r\n\p{L}\p{N}]?\p{L}+
//	\p{N}{1,maxDigits}
//	 ?[^\s\p{L}\p{N}]+[\r\n]*
//	\s*[\r\n]+
//	\s+(?!\S)
//	\s+
type gptSplitter struct{ maxDigits int }

// class is the part of Unicode that a rune belongs to in the patterns.
type class uint8

const (
	other class = iota
	letter
	number
	space
)

// classAt returns the class and the width of the first rune of s; s may be
// empty, which is class other and width 0.
func classAt(s string) (class, int) {
	if s == "" {
		return other, 0
	}
	if b := s[0]; b < utf8.RuneSelf {
		switch {
		case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z':
			return letter, 1
		case '0' <= b && b <= '9':
			return number, 1
		case b == ' ', '\t' <= b && b <= '\r':
			return space, 1
		}
		return other, 1
	}
	r, w := utf8.DecodeRuneInString(s)
	switch {
	case unicode.IsLetter(r):
		return letter, w
	case unicode.IsNumber(r):
		return number, w
	case unicode.IsSpace(r):
		return space, w
	}
	return other, w
}

func isNewline(b byte) bool { return b == '\n' || b == '\r' }

// run returns the end of the run of class c in s that starts at i.
func run(s string, i int, c class) int {
	for {
		k, w := classAt(s[i:])
		if w == 0 || k != c {
			return i
		}
		i += w
	}
}

func (g gptSplitter) next(s string) int {
	if n := contraction(s); n > 0 {
		return n
	}
	first, w := classAt(s)
	if first == letter {
		return run(s, w, letter)
	}
	second, w2 := classAt(s[w:])
	if second == letter && first != number && !isNewline(s[0]) {
		return run(s, w+w2, letter)
	}
	if first == number {
		return g.digits(s, w)
	}
	if first == other {
		return symbols(s, w)
	}
	if s[0] == ' ' && second == other && w2 > 0 {
		return symbols(s, w+w2)
	}
	return blanks(s)
}

// digits returns the end of at most maxDigits numbers; the first ends at i.
func (g gptSplitter) digits(s string, i int) int {
	for range g.maxDigits - 1 {
		c, w := classAt(s[i:])
		if w == 0 || c != number {
			break
		}
		i += w
	}
	return i
}

// symbols returns the end of a run of class other from i, with the newlines behind it.
func symbols(s string, i int) int {
	i = run(s, i, other)
	for i < len(s) && isNewline(s[i]) {
		i++
	}
	return i
}

// blanks takes the run of white space that s begins with: up to its last
// newline, or all of it at the end of the text, or all but the last rune, which
// belongs to the next word.
func blanks(s string) int {
	i, last, newline := 0, 0, 0
	for i < len(s) {
		c, w := classAt(s[i:])
		if c != space {
			break
		}
		last = i
		i += w
		if isNewline(s[last]) {
			newline = i
		}
	}
	switch {
	case newline > 0:
		return newline
	case i == len(s) || last == 0:
		return i
	}
	return last
}

// contraction returns the length of an English contraction at the start of s,
// or 0. Without regard to case 's also means 'ſ (U+017F).
func contraction(s string) int {
	if len(s) < 2 || s[0] != '\'' {
		return 0
	}
	switch s[1] | 0x20 {
	case 's', 't', 'm', 'd':
		return 2
	}
	if len(s) < 3 {
		return 0
	}
	if s[1:3] == "ſ" {
		return 3
	}
	switch [2]byte{s[1] | 0x20, s[2] | 0x20} {
	case [2]byte{'r', 'e'}, [2]byte{'v', 'e'}, [2]byte{'l', 'l'}:
		return 3
	}
	return 0
}
