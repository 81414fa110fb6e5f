package bench

import (
	"encoding/json"
	"errors"
	"unicode/utf8"
)

// maxDepth bounds the nesting of arrays and objects in what a server sends.
const maxDepth = 128

// errJSON says that a piece of an answer is not valid JSON, nests too deep, or
// has a field of the wrong type.
var errJSON = errors.New("not the JSON that was expected")

// cursor walks over JSON text once, checks its grammar as encoding/json does, and
// allocates nothing. After a fault, bad is set and every method returns at once.
type cursor struct {
	b     []byte
	i     int
	depth int
	bad   bool
}

func (c *cursor) fail() { c.bad = true }

func (c *cursor) space() {
	for c.i < len(c.b) {
		switch c.b[c.i] {
		case ' ', '\t', '\n', '\r':
			c.i++
		default:
			return
		}
	}
}

// peek is the first byte of the value that follows, 0 at the end.
func (c *cursor) peek() byte {
	c.space()
	if c.bad || c.i >= len(c.b) {
		return 0
	}
	return c.b[c.i]
}

// accept takes the byte b if it follows.
func (c *cursor) accept(b byte) bool {
	if c.peek() != b {
		return false
	}
	c.i++
	return true
}

func (c *cursor) expect(b byte) {
	if !c.accept(b) {
		c.fail()
	}
}

// end checks that nothing follows.
func (c *cursor) end() bool {
	c.space()
	return !c.bad && c.i == len(c.b)
}

// raw skips a value and returns its text.
func (c *cursor) raw() []byte {
	c.space()
	start := c.i
	c.skip()
	if c.bad {
		return nil
	}
	return c.b[start:c.i]
}

// skip passes over one value.
func (c *cursor) skip() {
	switch b := c.peek(); {
	case b == '{':
		c.object(func([]byte) { c.skip() })
	case b == '[':
		c.array(func() { c.skip() })
	case b == '"':
		c.str()
	case b == 't':
		c.literal("true")
	case b == 'f':
		c.literal("false")
	case b == 'n':
		c.literal("null")
	default:
		c.number()
	}
}

// null takes a null if it follows.
func (c *cursor) null() bool {
	if c.peek() != 'n' {
		return false
	}
	c.literal("null")
	return !c.bad
}

func (c *cursor) literal(word string) {
	if len(c.b)-c.i < len(word) || string(c.b[c.i:c.i+len(word)]) != word {
		c.fail()
		return
	}
	c.i += len(word)
}

// object calls field with every key; field must take the value.
func (c *cursor) object(field func(key []byte)) {
	c.open('{')
	for first := true; !c.bad && !c.accept('}'); first = false {
		if !first {
			c.expect(',')
		}
		if c.peek() != '"' {
			c.fail()
			break
		}
		key := unescape(c.str())
		c.expect(':')
		if !c.bad {
			field(key)
		}
	}
	c.depth--
}

// array calls element for every element; element must take it.
func (c *cursor) array(element func()) {
	c.open('[')
	for first := true; !c.bad && !c.accept(']'); first = false {
		if !first {
			c.expect(',')
		}
		element()
	}
	c.depth--
}

func (c *cursor) open(b byte) {
	c.expect(b)
	if c.depth++; c.depth > maxDepth {
		c.fail()
	}
}

// str takes a string and returns what is between its quotes, escapes as they are.
func (c *cursor) str() []byte {
	c.expect('"')
	start := c.i
	for !c.bad && c.i < len(c.b) {
		switch b := c.b[c.i]; {
		case b == '"':
			c.i++
			return c.b[start : c.i-1]
		case b == '\\':
			c.escape()
		case b < 0x20:
			c.fail()
		default:
			c.i++
		}
	}
	c.fail()
	return nil
}

// escape takes one escape sequence.
func (c *cursor) escape() {
	c.i++
	if c.i >= len(c.b) {
		c.fail()
		return
	}
	switch c.b[c.i] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		c.i++
	case 'u':
		for k := 1; k <= 4; k++ {
			if c.i+k >= len(c.b) || !hex(c.b[c.i+k]) {
				c.fail()
				return
			}
		}
		c.i += 5
	default:
		c.fail()
	}
}

func hex(b byte) bool {
	return b >= '0' && b <= '9' || b >= 'a' && b <= 'f' || b >= 'A' && b <= 'F'
}

// unescape decodes a key. Almost none has an escape.
func unescape(raw []byte) []byte {
	plain := true
	for _, b := range raw {
		if b == '\\' || b >= utf8.RuneSelf {
			plain = false
			break
		}
	}
	if plain {
		return raw
	}
	quoted := append(append([]byte{'"'}, raw...), '"')
	var s string
	if json.Unmarshal(quoted, &s) != nil {
		return raw
	}
	return []byte(s)
}

// number takes a number.
func (c *cursor) number() {
	c.accept('-')
	switch {
	case c.bad:
		return
	case c.i < len(c.b) && c.b[c.i] == '0':
		c.i++
	default:
		c.digits()
	}
	if c.i < len(c.b) && c.b[c.i] == '.' {
		c.i++
		c.digits()
	}
	if c.i < len(c.b) && (c.b[c.i] == 'e' || c.b[c.i] == 'E') {
		c.i++
		if c.i < len(c.b) && (c.b[c.i] == '+' || c.b[c.i] == '-') {
			c.i++
		}
		c.digits()
	}
}

func (c *cursor) digits() {
	start := c.i
	for c.i < len(c.b) && c.b[c.i] >= '0' && c.b[c.i] <= '9' {
		c.i++
	}
	if c.i == start {
		c.fail()
	}
}

// maxCount bounds a token count; more is a fault of the server.
const maxCount = 1 << 40

// count takes a whole number in [0, maxCount], or null as 0.
func (c *cursor) count() int64 {
	if c.null() {
		return 0
	}
	text := c.raw()
	var n int64
	for _, b := range text {
		if b < '0' || b > '9' {
			c.fail()
			return 0
		}
		if n = 10*n + int64(b-'0'); n > maxCount {
			c.fail()
			return 0
		}
	}
	return n
}

// filled takes a value and says whether it is a string or a list with something
// in it, or an object.
func (c *cursor) filled() bool {
	switch c.peek() {
	case '"':
		return len(c.str()) > 0
	case '[':
		n := 0
		c.array(func() { n++; c.skip() })
		return n > 0
	case '{':
		c.skip()
		return true
	}
	c.skip()
	return false
}
