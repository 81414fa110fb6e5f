package tokenizer

import "strings"

// normalizer rewrites each piece of text between added tokens. The nil normalizer
// leaves it as it is.
type normalizer struct {
	// marks is for normal form C; nil if the file does not ask for it.
	marks *markRules
	// prepend stands before every piece.
	prepend string
	// replace lists runes and what they become; at most a few.
	replace [][2]string
}

// full does all of it.
func (n *normalizer) full(s string) string {
	if n == nil {
		return s
	}
	return n.local(n.compose(s))
}

// compose brings s to normal form C, if the file asks for that.
func (n *normalizer) compose(s string) string {
	if n == nil || n.marks == nil {
		return s
	}
	return n.marks.nfc(s)
}

// local does what looks at one rune at a time.
func (n *normalizer) local(s string) string {
	if n == nil || s == "" || n.prepend == "" && len(n.replace) == 0 {
		return s
	}
	s = n.prepend + s
	for _, r := range n.replace {
		s = strings.ReplaceAll(s, r[0], r[1])
	}
	return s
}

// metaspace is the newer way to write white space as a visible mark.
type metaspace struct {
	mark string
	// always and first put a mark before each piece, or before the first of a text,
	// that does not begin with one.
	always, first bool
}

func (m *metaspace) apply(s string, first bool) string {
	if m == nil {
		return s
	}
	s = strings.ReplaceAll(s, " ", m.mark)
	if (m.always || m.first && first) && !strings.HasPrefix(s, m.mark) {
		s = m.mark + s
	}
	return s
}
