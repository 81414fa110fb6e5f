package chat

import "strings"

// Names that rewritten templates call; a template has no reason to use them.
const (
	jsonFilter = "tokenrouter_tojson"
	loopTick   = "tokenrouter_loop"
	macroTick  = "tokenrouter_macro"
)

// rewrite prepares a template's source for the engine. The filter tojson is
// replaced by ours, which writes what Python writes, and every loop body and
// macro body begins with a call that counts against the render's budget, since
// the engine itself cannot be stopped. Nothing is printed by that, and white
// space around tags is trimmed as before: the added tag closes with the same
// sign as the one before it.
func rewrite(source string) string {
	var b strings.Builder
	for {
		at, end := nextTag(source)
		if end < 0 {
			b.WriteString(source)
			return b.String()
		}
		b.WriteString(source[:at])
		tag := source[at:end]
		source = source[end:]
		if tag[1] == '#' {
			b.WriteString(tag)
			continue
		}
		b.WriteString(renameFilter(tag))
		if tag[1] != '%' {
			continue
		}
		sign := ""
		if c := tag[len(tag)-3]; c == '-' || c == '+' {
			sign = string(c)
		}
		switch tagName(tag) {
		case "for":
			b.WriteString("{% set tokenrouter_count = " + loopTick + "() " + sign + "%}")
		case "macro":
			b.WriteString("{% set tokenrouter_count = " + macroTick + "() " + sign + "%}")
		case "raw":
			k := strings.Index(source, "endraw")
			k = max(k, 0)
			b.WriteString(source[:k])
			source = source[k:]
		}
	}
}

// tagName is the first word of a block tag.
func tagName(tag string) string {
	words := strings.Fields(strings.Trim(tag, "{}%-+"))
	if len(words) == 0 {
		return ""
	}
	return words[0]
}

// nextTag returns where the next comment, output or block tag begins and ends;
// the end is negative when there is none.
func nextTag(s string) (int, int) {
	for i := 0; i+1 < len(s); i++ {
		if s[i] != '{' {
			continue
		}
		switch s[i+1] {
		case '#':
			if k := strings.Index(s[i+2:], "#}"); k >= 0 {
				return i, i + 2 + k + 2
			}
			return 0, -1
		case '%':
			return i, tagEnd(s, i+2, "%}")
		case '{':
			return i, tagEnd(s, i+2, "}}")
		}
	}
	return 0, -1
}

// tagEnd finds the end of a tag from i on, outside of quotes and braces.
func tagEnd(s string, i int, closing string) int {
	depth := 0
	for i < len(s) {
		switch c := s[i]; {
		case c == '\'' || c == '"':
			i = quoteEnd(s, i)
			continue
		case depth == 0 && strings.HasPrefix(s[i:], closing):
			return i + 2
		case c == '{':
			depth++
		case c == '}':
			depth--
		}
		i++
	}
	return -1
}

// quoteEnd returns the index behind the quoted text that begins at i.
func quoteEnd(s string, i int) int {
	quote := s[i]
	for i++; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case quote:
			return i + 1
		}
	}
	return len(s)
}

// renameFilter replaces the filter tojson in a tag.
func renameFilter(tag string) string {
	const name = "tojson"
	var b strings.Builder
	done := 0
	for i := 0; i < len(tag); {
		switch tag[i] {
		case '\'', '"':
			i = quoteEnd(tag, i)
		case '|':
			i++
			for i < len(tag) && strings.IndexByte(" \t\r\n", tag[i]) >= 0 {
				i++
			}
			after := strings.TrimPrefix(tag[i:], name)
			if len(after) < len(tag[i:]) && after != "" && !wordByte(after[0]) {
				b.WriteString(tag[done:i])
				b.WriteString(jsonFilter)
				i += len(name)
				done = i
			}
		default:
			i++
		}
	}
	b.WriteString(tag[done:])
	return b.String()
}

func wordByte(c byte) bool {
	return c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}
