package jinja

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Class says where a part of a text comes from. Higher classes are trusted less.
type Class uint8

const (
	// Own is the template's own text, and what is made from it.
	Own Class = iota
	// Answer is what a model wrote earlier.
	Answer
	// Foreign is what a user or a tool wrote.
	Foreign
)

// Span is a part of a text, from the end of the span before it.
type Span struct {
	End   int // in bytes
	Class Class
}

// Text is a string whose parts have classes. The zero Text is empty.
type Text struct {
	s string
	// spans cover s, neighbours differ; nil means that all of it is Own.
	spans []Span
}

// Mark makes a text of one class.
func Mark(s string, c Class) Text {
	if c == Own || s == "" {
		return Text{s: s}
	}
	return Text{s: s, spans: []Span{{len(s), c}}}
}

func own(s string) Text { return Text{s: s} }

// String returns the text without its classes.
func (t Text) String() string { return t.s }

// Spans returns the parts of the text; nil if all of it is Own.
func (t Text) Spans() []Span { return t.spans }

// class returns the least trusted class of the text.
func (t Text) class() Class {
	c := Own
	for _, p := range t.spans {
		c = max(c, p.Class)
	}
	return c
}

// slice returns the bytes [from, to).
func (t Text) slice(from, to int) Text {
	if from >= to {
		return Text{}
	}
	out := Text{s: t.s[from:to]}
	if t.spans == nil {
		return out
	}
	for _, p := range t.spans {
		if p.End > from {
			out.spans = append(out.spans, Span{min(p.End, to) - from, p.Class})
		}
		if p.End >= to {
			break
		}
	}
	if len(out.spans) == 1 && out.spans[0].Class == Own {
		out.spans = nil
	}
	return out
}

// builder puts texts together.
type builder struct {
	b     strings.Builder
	spans []Span
	mixed bool // something is not Own
}

func (b *builder) add(t Text) {
	if t.s == "" {
		return
	}
	at := b.b.Len()
	b.b.WriteString(t.s)
	if t.spans == nil {
		b.span(b.b.Len(), Own)
		return
	}
	for _, p := range t.spans {
		b.span(at+p.End, p.Class)
	}
}

func (b *builder) span(end int, c Class) {
	b.mixed = b.mixed || c != Own
	if n := len(b.spans); n > 0 && b.spans[n-1].Class == c {
		b.spans[n-1].End = end
		return
	}
	b.spans = append(b.spans, Span{end, c})
}

func (b *builder) text() Text {
	if !b.mixed {
		return Text{s: b.b.String()}
	}
	return Text{s: b.b.String(), spans: b.spans}
}

func concat(parts ...Text) Text {
	var b builder
	for _, p := range parts {
		b.add(p)
	}
	return b.text()
}

// offset returns where in bytes the n-th character of s begins.
func offset(s string, n int) int {
	for i := range s {
		if n == 0 {
			return i
		}
		n--
	}
	return len(s)
}

// blank is str.isspace of one character.
func blank(r rune) bool { return unicode.IsSpace(r) || 0x1C <= r && r <= 0x1F }

// strip is str.strip: cut takes characters in set off the chosen ends.
func (t Text) strip(left, right bool, cut func(rune) bool) Text {
	from, to := 0, len(t.s)
	if left {
		from = len(t.s) - len(strings.TrimLeftFunc(t.s, cut))
	}
	if right {
		to = len(strings.TrimRightFunc(t.s[from:], cut)) + from
	}
	return t.slice(from, to)
}

// split is str.split(sep, limit); a negative limit is none.
func (t Text) split(sep string, limit int) []Text {
	var out []Text
	from := 0
	for limit != 0 {
		k := strings.Index(t.s[from:], sep)
		if k < 0 {
			break
		}
		out = append(out, t.slice(from, from+k))
		from += k + len(sep)
		limit--
	}
	return append(out, t.slice(from, len(t.s)))
}

// rsplit is str.rsplit(sep, limit).
func (t Text) rsplit(sep string, limit int) []Text {
	var out []Text
	to := len(t.s)
	for limit != 0 {
		k := strings.LastIndex(t.s[:to], sep)
		if k < 0 {
			break
		}
		out = append(out, t.slice(k+len(sep), to))
		to = k
		limit--
	}
	out = append(out, t.slice(0, to))
	for i, j := 0, len(out)-1; i < j; i, j = i+1, j-1 {
		out[i], out[j] = out[j], out[i]
	}
	return out
}

// fields is str.split() at white space, with a limit from the left.
func (t Text) fields(limit int) []Text {
	var out []Text
	rest := t.strip(true, false, blank)
	for rest.s != "" {
		k := strings.IndexFunc(rest.s, blank)
		if k < 0 || limit == 0 {
			if limit == 0 {
				rest = rest.strip(false, true, blank)
			}
			return append(out, rest)
		}
		out = append(out, rest.slice(0, k))
		rest = rest.slice(k, len(rest.s)).strip(true, false, blank)
		limit--
	}
	return out
}

// lines is str.splitlines().
func (t Text) lines() []Text {
	var out []Text
	from := 0
	for i, r := range t.s {
		if i < from {
			continue // the second half of \r\n
		}
		switch r {
		case '\n', '\v', '\f', '\r', 0x1C, 0x1D, 0x1E, 0x85, 0x2028, 0x2029:
			out = append(out, t.slice(from, i))
			from = i + utf8.RuneLen(r)
			if r == '\r' && strings.HasPrefix(t.s[from:], "\n") {
				from++
			}
		}
	}
	if from < len(t.s) {
		out = append(out, t.slice(from, len(t.s)))
	}
	return out
}
