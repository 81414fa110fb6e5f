package tokenizer

import "strings"

// splitter cuts a text into words, each of which is merged on its own.
type splitter interface {
	// next returns the length in bytes, at least 1, of the first word of s, which is
	// not empty and is valid UTF-8. left is what the call for the word before
	// returned, 0 at the beginning of a piece: the bytes of s that are left of a
	// segment which the splitter works in.
	next(s string, left int) (n, leftAfter int)
}

// Split patterns are known by their exact text: Go's regexp lacks the
// look-ahead they need, and a hand-written splitter is several times faster
// than a general engine.
const (
	patternQwen     = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternLlama3   = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternDeepSeek = `\p{N}{1,3}` + "\n" + `[一-龥぀-ゟ゠-ヿ]+` + "\n" +
		"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)

// splitterFor is the table from patterns, one a line in the order of their passes,
// to splitter; nil for unknown ones.
func splitterFor(pattern string) splitter {
	switch pattern {
	case patternQwen:
		return gptSplitter{newClassTable(true), 1}
	case patternLlama3:
		return gptSplitter{newClassTable(true), 3}
	case patternDeepSeek:
		return deepSeekSplitter{newClassTable(false)}
	}
	return nil
}

// gptSplitter is the family of patterns of Qwen2, Qwen3 and Llama 3. The
// alternatives are tried in order:
//
//	(?i:'s|'t|'re|'ve|'m|'ll|'d)
//	[^\r\n\p{L}\p{N}]?\p{L}+
//	\p{N}{1,maxDigits}
//	 ?[^\s\p{L}\p{N}]+[\r\n]*
//	\s*[\r\n]+
//	\s+(?!\S)
//	\s+
type gptSplitter struct {
	classes   *classTable // folded
	maxDigits int
}

func isNewline(b byte) bool { return b == '\n' || b == '\r' }

func (g gptSplitter) next(s string, _ int) (n, left int) { return g.word(s), 0 }

func (g gptSplitter) word(s string) int {
	if n := contraction(s); n > 0 {
		return n
	}
	first, w := g.classes.at(s)
	if first == letter {
		return g.classes.run(s, w, letter)
	}
	second, w2 := g.classes.at(s[w:])
	if second == letter && first != number && !isNewline(s[0]) {
		return g.classes.run(s, w+w2, letter)
	}
	if first == number {
		return g.classes.digits(s, w, g.maxDigits)
	}
	if first == other {
		return g.symbols(s, w)
	}
	if s[0] == ' ' && second == other && w2 > 0 {
		return g.symbols(s, w+w2)
	}
	return g.classes.blanks(s)
}

// digits returns the end of at most limit numbers; the first ends at i.
func (t *classTable) digits(s string, i, limit int) int {
	for range limit - 1 {
		c, w := t.at(s[i:])
		if w == 0 || c != number {
			break
		}
		i += w
	}
	return i
}

// symbols returns the end of a run of class other from i, with the newlines behind it.
func (g gptSplitter) symbols(s string, i int) int {
	i = g.classes.run(s, i, other)
	for i < len(s) && isNewline(s[i]) {
		i++
	}
	return i
}

// blanks takes the run of white space that s begins with: up to its last
// newline, or all of it at the end of the text, or all but the last rune, which
// belongs to the next word.
func (t *classTable) blanks(s string) int {
	i, last, newline := 0, 0, 0
	for i < len(s) {
		c, w := t.at(s[i:])
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

// wordSplitter cuts a text in front of every mark for a space.
type wordSplitter struct{ mark string }

func (w wordSplitter) next(s string, _ int) (n, left int) {
	i := 0
	if strings.HasPrefix(s, w.mark) {
		i = len(w.mark)
	}
	if k := strings.Index(s[i:], w.mark); k >= 0 {
		return i + k, 0
	}
	return len(s), 0
}

// noSplitter takes a text as one word.
type noSplitter struct{}

func (noSplitter) next(s string, _ int) (n, left int) { return len(s), 0 }
