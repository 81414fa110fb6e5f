package jinja

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// kind is the kind of a token.
type kind uint8

const (
	tokData kind = iota // text between tags
	tokVarBegin
	tokVarEnd
	tokBlockBegin
	tokBlockEnd
	tokName
	tokString
	tokInt
	tokFloat
	tokOp
	tokEOF
)

type token struct {
	kind kind
	text string
	line int
}

// lexer cuts a template into tokens. It trims white space around tags as Jinja does
// with trim_blocks and lstrip_blocks.
type lexer struct {
	src  string
	at   int
	line int
	// fresh says that the last tag took the line's end, so that a line begins at at.
	fresh  bool
	tokens []token
}

// lex returns the tokens of a template, the last one tokEOF.
func lex(source string) []token {
	source = strings.ReplaceAll(strings.ReplaceAll(source, "\r\n", "\n"), "\r", "\n")
	l := &lexer{src: strings.TrimSuffix(source, "\n"), line: 1, fresh: true}
	for l.at < len(l.src) {
		l.data()
	}
	l.emit(tokEOF, "")
	return l.tokens
}

func (l *lexer) emit(k kind, text string) { l.tokens = append(l.tokens, token{k, text, l.line}) }

func (l *lexer) fail(what string) { failf("line %d: %s", l.line, what) }

// skip moves on by n bytes and counts lines.
func (l *lexer) skip(n int) {
	l.line += strings.Count(l.src[l.at:l.at+n], "\n")
	l.at += n
}

// data reads text up to a tag, and the tag.
func (l *lexer) data() {
	rest := l.src[l.at:]
	k := 0
	for {
		j := strings.IndexByte(rest[k:], '{')
		if j < 0 || k+j+1 >= len(rest) {
			l.text(rest)
			l.skip(len(rest))
			return
		}
		k += j
		if c := rest[k+1]; c == '{' || c == '%' || c == '#' {
			break
		}
		k++
	}
	l.text(l.lead(rest[:k], rest[k+1], rest[k+2:]))
	l.skip(k)
	open := l.src[l.at+1]
	l.skip(2)
	sign := byte(0)
	if l.at < len(l.src) && (l.src[l.at] == '-' || l.src[l.at] == '+' && open != '{') {
		sign = l.src[l.at]
		l.skip(1)
	}
	switch open {
	case '#':
		end := strings.Index(l.src[l.at:], "#}")
		if end < 0 {
			l.fail("a comment that does not end")
		}
		mark := byte(0)
		if end > 0 && (l.src[l.at+end-1] == '-' || l.src[l.at+end-1] == '+') {
			mark = l.src[l.at+end-1]
		}
		l.skip(end + 2)
		l.trail(mark, true)
	case '%':
		if l.raw() {
			return
		}
		l.emit(tokBlockBegin, string(sign))
		l.trail(l.tag("%}", tokBlockEnd), true)
	default:
		l.emit(tokVarBegin, "")
		l.trail(l.tag("}}", tokVarEnd), false)
	}
}

// lead trims the text before a tag: all white space at a minus; else, unless there is
// a plus or the tag prints, the blanks between the line's beginning and the tag.
func (l *lexer) lead(text string, open byte, tag string) string {
	if strings.HasPrefix(tag, "-") {
		return strings.TrimRightFunc(text, blank)
	}
	if open == '{' || strings.HasPrefix(tag, "+") {
		return text
	}
	start := strings.LastIndexByte(text, '\n') + 1
	if (start > 0 || l.fresh) && strings.TrimLeftFunc(text[start:], blank) == "" {
		return text[:start]
	}
	return text
}

// trail trims the text behind a tag: all white space at a minus, one line end behind
// a block or comment without a plus.
func (l *lexer) trail(sign byte, block bool) {
	l.fresh = false
	switch {
	case sign == '-':
		rest := l.src[l.at:]
		n := len(rest) - len(strings.TrimLeftFunc(rest, blank))
		l.fresh = n > 0 && rest[n-1] == '\n'
		l.skip(n)
	case block && sign != '+' && strings.HasPrefix(l.src[l.at:], "\n"):
		l.fresh = true
		l.skip(1)
	}
}

func (l *lexer) text(s string) {
	if s != "" {
		l.emit(tokData, s)
	}
}

// raw reads a raw block, whose beginning has been read up to its name.
func (l *lexer) raw() bool {
	rest := strings.TrimLeftFunc(l.src[l.at:], blank)
	body, ok := strings.CutPrefix(rest, "raw")
	if !ok {
		return false
	}
	body = strings.TrimLeftFunc(body, blank)
	switch {
	case strings.HasPrefix(body, "-%}"):
		body = strings.TrimLeftFunc(body[3:], blank)
	case strings.HasPrefix(body, "%}"):
		body = body[2:]
	default:
		return false
	}
	l.skip(len(l.src) - l.at - len(body))
	for k := 0; ; k++ {
		j := strings.Index(body[k:], "{%")
		if j < 0 {
			l.fail("a raw block that does not end")
		}
		k += j
		tag := body[k+2:]
		name := strings.TrimLeftFunc(strings.TrimLeft(tag, "-+"), blank)
		end, ok := strings.CutPrefix(name, "endraw")
		if end = strings.TrimLeftFunc(end, blank); !ok {
			continue
		}
		sign := byte(0)
		if end != "" && (end[0] == '-' || end[0] == '+') {
			sign, end = end[0], end[1:]
		}
		if end, ok = strings.CutPrefix(end, "%}"); !ok {
			continue
		}
		l.fresh = false
		l.text(l.lead(body[:k], '%', tag))
		l.skip(len(l.src) - l.at - len(end))
		l.trail(sign, true)
		return true
	}
}

// tag reads the tokens of a tag up to its end, and returns the sign there.
func (l *lexer) tag(end string, k kind) byte {
	depth := 0
	for {
		l.skip(len(l.src[l.at:]) - len(strings.TrimLeftFunc(l.src[l.at:], blank)))
		rest := l.src[l.at:]
		if rest == "" {
			l.fail("a tag that does not end")
		}
		if depth == 0 {
			sign := 0
			if rest[0] == '-' || rest[0] == '+' && k == tokBlockEnd {
				sign = 1
			}
			if strings.HasPrefix(rest[sign:], end) {
				l.skip(sign + len(end))
				l.emit(k, "")
				if sign == 1 {
					return rest[0]
				}
				return 0
			}
		}
		switch c := rest[0]; {
		case c == '\'' || c == '"':
			l.quoted(c)
		case '0' <= c && c <= '9':
			l.number(rest)
		default:
			if r, _ := utf8.DecodeRuneInString(rest); nameRune(r) {
				n := len(rest) - len(strings.TrimLeftFunc(rest, nameRune))
				l.emit(tokName, rest[:n])
				l.skip(n)
				continue
			}
			depth += l.operator(rest)
			if depth < 0 {
				l.fail("a bracket too many")
			}
		}
	}
}

func nameRune(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) }

// operator reads one operator and returns how it changes the depth of brackets.
func (l *lexer) operator(rest string) int {
	n := 1
	if len(rest) > 1 {
		switch rest[:2] {
		case "//", "**", "==", "!=", ">=", "<=":
			n = 2
		}
	}
	if !strings.ContainsRune("+-/*%~[](){}<>=.:|,;!", rune(rest[0])) || rest[:n] == "!" {
		l.fail("a character that is not known: " + rest[:n])
	}
	l.emit(tokOp, rest[:n])
	l.skip(n)
	switch rest[0] {
	case '(', '[', '{':
		return 1
	case ')', ']', '}':
		return -1
	}
	return 0
}

func (l *lexer) number(rest string) {
	digits := func(s string) int {
		n := 0
		for n < len(s) && ('0' <= s[n] && s[n] <= '9' || s[n] == '_' && n > 0) {
			n++
		}
		return n
	}
	if len(rest) > 2 && rest[0] == '0' && strings.IndexByte("xXoObB", rest[1]) >= 0 {
		n := 2
		for n < len(rest) && (digits(rest[n:]) > 0 || 'a' <= rest[n]|0x20 && rest[n]|0x20 <= 'f' || rest[n] == '_') {
			n++
		}
		l.emit(tokInt, rest[:n])
		l.skip(n)
		return
	}
	n, k := digits(rest), tokInt
	afterDot := len(l.tokens) > 0 && l.tokens[len(l.tokens)-1].text == "." && l.tokens[len(l.tokens)-1].kind == tokOp
	if !afterDot {
		if f := n + 1; f < len(rest) && rest[n] == '.' && digits(rest[f:]) > 0 {
			n, k = f+digits(rest[f:]), tokFloat
		}
		if n < len(rest) && rest[n]|0x20 == 'e' {
			e := n + 1
			if e < len(rest) && (rest[e] == '+' || rest[e] == '-') {
				e++
			}
			if d := digits(rest[min(e, len(rest)):]); d > 0 {
				n, k = e+d, tokFloat
			}
		}
	}
	l.emit(k, strings.ReplaceAll(rest[:n], "_", ""))
	l.skip(n)
}

func (l *lexer) quoted(quote byte) {
	for i := l.at + 1; i < len(l.src); i++ {
		switch l.src[i] {
		case '\\':
			i++
		case quote:
			l.emit(tokString, l.unescape(l.src[l.at+1:i]))
			l.skip(i + 1 - l.at)
			return
		}
	}
	l.fail("a string that does not end")
}

// unescape undoes Python's escapes.
func (l *lexer) unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		switch c := s[i]; c {
		case '\n':
		case '\\', '\'', '"':
			b.WriteByte(c)
		case 'a', 'b', 'f', 'n', 'r', 't', 'v':
			b.WriteByte("\a\b\f\n\r\t\v"[strings.IndexByte("abfnrtv", c)])
		case 'x', 'u', 'U':
			n := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
			v := rune(0)
			for _, h := range []byte(s[i+1 : min(i+1+n, len(s))]) {
				v = v<<4 | hexDigit(l, h)
			}
			if i+n >= len(s) || !utf8.ValidRune(v) {
				l.fail("an escape that is no character")
			}
			b.WriteRune(v)
			i += n
		case '0', '1', '2', '3', '4', '5', '6', '7':
			v, n := rune(0), 0
			for ; n < 3 && i+n < len(s) && '0' <= s[i+n] && s[i+n] <= '7'; n++ {
				v = v<<3 | rune(s[i+n]-'0')
			}
			b.WriteRune(v)
			i += n - 1
		default:
			b.WriteByte('\\')
			b.WriteByte(c)
		}
	}
	return b.String()
}

func hexDigit(l *lexer, h byte) rune {
	switch {
	case '0' <= h && h <= '9':
		return rune(h - '0')
	case 'a' <= h|0x20 && h|0x20 <= 'f':
		return rune(h|0x20-'a') + 10
	}
	l.fail("an escape that is no character")
	return 0
}
