package tokenizer

// Allow says which added tokens may be found in a part of a text.
type Allow uint8

const (
	// AllowAll is for what a template wrote.
	AllowAll Allow = iota
	// AllowPlain leaves out tokens with `special: true`; it is for an earlier answer,
	// in which templates look for "</think>" and the like.
	AllowPlain
	// AllowNone is for what a user wrote: it never becomes a control token.
	AllowNone
)

// Span is a part of a text, from the end of the span before it.
type Span struct {
	End   int // in bytes
	Allow Allow
}

// spans is a list of Span that covers a text; empty, all of it is AllowAll.
type spans []Span

// allow reports whether all bytes of [from, to) allow a token.
func (s spans) allow(from, to int, special bool) bool {
	start := 0
	for _, p := range s {
		if start >= to {
			break
		}
		if p.End > from && (p.Allow == AllowNone || p.Allow == AllowPlain && special) {
			return false
		}
		start = p.End
	}
	return true
}

// part returns the spans of [from, to), with ends that count from there.
func (s spans) part(from, to int) spans {
	var out spans
	for _, p := range s {
		if p.End <= from {
			continue
		}
		out = append(out, Span{min(p.End, to) - from, p.Allow})
		if p.End >= to {
			break
		}
	}
	return out
}

// EncodeSpans is Encode for a text of parts that are trusted differently: an added
// token is found only where all of its bytes allow it, so that no part of a token
// comes from a text that must not write one. Spans have ascending ends, the last
// one the length of text; text is valid UTF-8, and no span cuts a character.
func (t *Tokenizer) EncodeSpans(dst []int32, text string, parts []Span) []int32 {
	m := &t.matchers[ParseAll().matcher()]
	e := encoding{t: t, ids: dst, spans: parts, inner: &m[1], first: true}
	m[0].pieces(text, e.spans, func(from, to int) { e.piece(text[from:to], e.spans.part(from, to)) }, e.token)
	return e.ids
}

// localSpans is local for a text with spans: it looks at one rune at a time, so each
// part can be rewritten on its own.
func (n *normalizer) localSpans(s string, parts spans) (string, spans) {
	if n == nil || s == "" {
		return s, parts
	}
	rest := normalizer{replace: n.replace}
	out, start := n.prepend, 0
	moved := make(spans, 0, len(parts))
	for _, p := range parts {
		out += rest.local(s[start:p.End])
		moved = append(moved, Span{len(out), p.Allow})
		start = p.End
	}
	for _, r := range n.replace { // local replaces in what it prepends, too
		if r[0] == n.prepend {
			return n.local(s), spans{{len(n.local(s)), AllowNone}}
		}
	}
	return out, moved
}
