package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"unicode/utf8"
)

// checkJSON reports what makes body unfit to parse: bytes that are not UTF-8, a
// byte order mark, wrong syntax, nesting over MaxDepth, half of a surrogate
// pair, a key used twice in one object. The standard decoder lets the first and
// the last two pass silently. The field in which the fault is, if it is in one,
// is the error's parameter.
func checkJSON(body []byte) *Error {
	bad := func(format string, args ...any) *Error { return badRequest(CodeInvalidJSON, "", format, args...) }
	badAt := func(at int, format string, args ...any) *Error {
		return badRequest(CodeInvalidJSON, fieldAt(body, at), format, args...)
	}
	switch {
	case len(bytes.TrimSpace(body)) == 0:
		return bad("the body is empty; it must be a JSON object")
	case bytes.HasPrefix(body, []byte("\xef\xbb\xbf")):
		return bad("the body starts with a byte order mark")
	case !utf8.Valid(body):
		at := invalidAt(body)
		return badAt(at, "the body is not valid UTF-8 (at byte %d)", at)
	case depth(body) > MaxDepth:
		return bad("the body nests deeper than %d levels", MaxDepth)
	}
	var raw json.RawMessage
	if err := json.Unmarshal(body, &raw); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			at := int(syntax.Offset) // the end, if the body was cut off,
			if !strings.HasPrefix(syntax.Error(), "unexpected end") {
				at-- // else behind the byte that is wrong
			}
			return badAt(at, "the body is not valid JSON (at byte %d)", syntax.Offset)
		}
		return bad("the body is not valid JSON")
	}
	s := scanner{b: bytes.TrimSpace(body)}
	if len(s.b) == 0 || s.b[0] != '{' {
		return bad("the body must be a JSON object")
	}
	s.value(0)
	return s.err
}

func invalidAt(b []byte) int {
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return len(b)
}

// fieldAt returns the key of the outermost object in whose value byte at is, as
// far as b is an object up to there, and "" outside of a value. Escapes in the
// key are left as they are.
func fieldAt(b []byte, at int) string {
	level, start := 0, -1 // start is where the string begins that i is in
	var last, key []byte  // the last string on level 1, and the one before the last colon
	for i := 0; i < min(at, len(b)); i++ {
		switch c := b[i]; {
		case start >= 0 && c == '\\':
			i++
		case start >= 0 && c == '"':
			if level == 1 {
				last = b[start+1 : i]
			}
			start = -1
		case start >= 0:
		case c == '"':
			start = i
		case c == '{' || c == '[':
			level++
		case c == '}' || c == ']':
			level--
		case c == ':' && level == 1:
			key = last
		case c == ',' && level == 1:
			key = nil
		}
	}
	if level < 1 {
		return ""
	}
	return Excerpt(string(key))
}

// depth returns the deepest nesting of brackets outside strings.
func depth(b []byte) int {
	deepest, now, inString := 0, 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			now++
			deepest = max(deepest, now)
		case c == '}' || c == ']':
			now--
		}
	}
	return deepest
}

// scanner walks over JSON that is known to be valid and at most MaxDepth deep.
type scanner struct {
	b   []byte
	i   int
	top string // key of the outermost object that the scanner is in
	err *Error
}

func (s *scanner) space() {
	for s.i < len(s.b) && (s.b[s.i] == ' ' || s.b[s.i] == '\t' || s.b[s.i] == '\n' || s.b[s.i] == '\r') {
		s.i++
	}
}

// value skips one value and the space after it.
func (s *scanner) value(level int) {
	s.space()
	if s.i >= len(s.b) {
		return
	}
	switch s.b[s.i] {
	case '{':
		s.object(level)
	case '[':
		s.i++
		s.space()
		for s.i < len(s.b) && s.b[s.i] != ']' {
			s.value(level + 1)
			s.comma()
		}
		s.i++
	case '"':
		s.str()
	default:
		for s.i < len(s.b) && !bytes.ContainsRune([]byte(",]} \t\r\n"), rune(s.b[s.i])) {
			s.i++
		}
	}
	s.space()
}

func (s *scanner) comma() {
	if s.i < len(s.b) && s.b[s.i] == ',' {
		s.i++
		s.space()
	}
}

// fewKeys is how many keys are compared one by one; more go into a map.
const fewKeys = 12

func (s *scanner) object(level int) {
	s.i++
	s.space()
	var few [fewKeys]string
	var many map[string]struct{}
	n := 0
	for s.i < len(s.b) && s.b[s.i] != '}' {
		key := s.str()
		if level == 0 {
			s.top = key
		}
		switch {
		case n < fewKeys:
			for _, k := range few[:n] {
				if k == key {
					s.duplicate(key)
				}
			}
			few[n] = key
		default:
			if many == nil {
				many = make(map[string]struct{})
				for _, k := range few {
					many[k] = struct{}{}
				}
			}
			if _, ok := many[key]; ok {
				s.duplicate(key)
			}
			many[key] = struct{}{}
		}
		n++
		s.space()
		s.i++ // the colon
		s.value(level + 1)
		s.comma()
	}
	s.i++
}

func (s *scanner) duplicate(key string) {
	if s.err == nil {
		s.err = badRequest(CodeInvalidJSON, Excerpt(s.top), "the key %q occurs twice in one object", Excerpt(key))
	}
}

// str skips a string and returns its value.
func (s *scanner) str() string {
	start := s.i
	escaped := false
	for s.i++; s.i < len(s.b) && s.b[s.i] != '"'; s.i++ {
		if s.b[s.i] != '\\' {
			continue
		}
		escaped = true
		s.i++
		if s.b[s.i] == 'u' {
			s.surrogate()
		}
	}
	s.i++
	quoted := s.b[start:min(s.i, len(s.b))]
	if !escaped {
		return string(quoted[1 : len(quoted)-1])
	}
	var out string
	if json.Unmarshal(quoted, &out) != nil {
		return string(quoted)
	}
	return out
}

// surrogate looks at the escape whose 'u' is at s.i. A first half must be
// followed by a second half, which is skipped; a second half alone is an error.
func (s *scanner) surrogate() {
	unit := hex4(s.b[s.i+1:])
	s.i += 4
	switch {
	case unit < 0xd800 || unit > 0xdfff:
		return
	case unit < 0xdc00 && s.i+6 < len(s.b) && s.b[s.i+1] == '\\' && s.b[s.i+2] == 'u':
		if low := hex4(s.b[s.i+3:]); low >= 0xdc00 && low <= 0xdfff {
			s.i += 6
			return
		}
	}
	if s.err == nil {
		s.err = badRequest(CodeInvalidJSON, Excerpt(s.top), "half of a surrogate pair stands alone")
	}
}

func hex4(b []byte) int {
	v := 0
	for _, c := range b[:min(4, len(b))] {
		v <<= 4
		switch {
		case c >= '0' && c <= '9':
			v |= int(c - '0')
		case c >= 'a' && c <= 'f':
			v |= int(c-'a') + 10
		case c >= 'A' && c <= 'F':
			v |= int(c-'A') + 10
		}
	}
	return v
}

// elements calls f with the index and the bytes of every element of a valid
// JSON array, until f returns false.
func elements(array []byte, f func(i int, element []byte) bool) {
	s := scanner{b: array}
	s.space()
	s.i++
	s.space()
	for n := 0; s.i < len(s.b) && s.b[s.i] != ']'; n++ {
		start := s.i
		s.value(1)
		if !f(n, bytes.TrimSpace(s.b[start:s.i])) {
			return
		}
		s.comma()
	}
}
