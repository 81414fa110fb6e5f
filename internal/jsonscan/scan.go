package jsonscan

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// ErrSyntax says that a text is no JSON.
var ErrSyntax = errors.New("expected JSON")

// Scanner is a place in a JSON text. Each method reads the value that is next, and
// leaves the scanner behind it unless it returns an error. After an error the
// scanner must not be used.
type Scanner struct {
	text []byte
	at   int
}

// New returns a scanner at the beginning of text, which is one JSON value. The text
// must not change while the scanner is in use.
func New(text []byte) (*Scanner, error) {
	if !json.Valid(text) {
		return nil, ErrSyntax
	}
	s := &Scanner{text: text}
	s.space()
	return s, nil
}

// Next is the first byte of the value that is next, which tells its kind.
func (s *Scanner) Next() byte { return s.text[s.at] }

// Object reads an object and calls field at each key with its value next; field must
// read the value. limit is the longest key in bytes. key is valid until field returns.
func (s *Scanner) Object(limit int, field func(key []byte) error) error {
	if s.text[s.at] != '{' {
		return s.mismatch("an object")
	}
	for s.at++; ; s.at++ { // behind the brace or a comma
		if s.space(); s.text[s.at] == '}' {
			break
		}
		key, err := s.Bytes(limit)
		if err != nil {
			return err
		}
		s.at++ // the colon
		s.space()
		if err := field(key); err != nil {
			return err
		}
		if s.text[s.at] == '}' {
			break
		}
	}
	s.leave()
	return nil
}

// Array reads an array and calls element at each of its values, with that next;
// element must read it.
func (s *Scanner) Array(element func(i int) error) error {
	if s.text[s.at] != '[' {
		return s.mismatch("an array")
	}
	s.at++
	for i := 0; ; i++ {
		if s.space(); s.text[s.at] == ']' {
			break
		}
		if err := element(i); err != nil {
			return err
		}
		if s.text[s.at] == ']' {
			break
		}
		s.at++ // the comma
	}
	s.leave()
	return nil
}

// String reads a string of at most limit bytes, as it is written.
func (s *Scanner) String(limit int) (string, error) {
	b, err := s.Bytes(limit)
	return string(b), err
}

// Bytes is String without a copy where there is no escape: the bytes may alias the
// text and must not be written.
func (s *Scanner) Bytes(limit int) ([]byte, error) {
	if s.text[s.at] != '"' {
		return nil, s.mismatch("a string")
	}
	start, escaped := s.at, false
	for s.at++; s.text[s.at] != '"'; s.at++ {
		if s.text[s.at] == '\\' {
			escaped = true
			s.at++
		}
	}
	quoted := s.text[start : s.at+1]
	body := quoted[1 : len(quoted)-1]
	switch {
	case len(body) > limit:
		return nil, fmt.Errorf("expected a string of at most %d bytes, found %d", limit, len(body))
	case !utf8.Valid(body):
		return nil, fmt.Errorf("expected UTF-8, found %q", body[:min(len(body), maxShown)])
	case escaped:
		var out string
		if err := json.Unmarshal(quoted, &out); err != nil {
			return nil, err
		}
		body = []byte(out)
	}
	s.leave()
	return body, nil
}

// Uint reads an integer from 0 to 2^64-1, written without fraction or exponent.
func (s *Scanner) Uint() (uint64, error) {
	word := s.word()
	v, err := strconv.ParseUint(string(word[:min(len(word), maxShown)]), 10, 64)
	if err != nil || len(word) > maxShown {
		return 0, s.mismatch("a non-negative integer")
	}
	s.at += len(word)
	s.space()
	return v, nil
}

// Raw reads any value and returns its text, which aliases the scanner's.
func (s *Scanner) Raw() []byte {
	start, depth := s.at, 0
	for { // until the brackets are closed, or one value without brackets is over
		switch s.text[s.at] {
		case '{', '[':
			depth++
			s.at++
		case '}', ']':
			depth--
			s.at++
		case '"':
			for s.at++; s.text[s.at] != '"'; s.at++ {
				if s.text[s.at] == '\\' {
					s.at++
				}
			}
			s.at++
		case ',', ':', ' ', '\t', '\n', '\r':
			s.at++
		default:
			s.at += len(s.word())
		}
		if depth == 0 {
			raw := s.text[start:s.at:s.at]
			s.space()
			return raw
		}
	}
}

// maxShown bounds what an error repeats, and the digits of an integer.
const maxShown = 40

// mismatch is the error for a value of another kind.
func (s *Scanner) mismatch(expected string) error {
	end := min(len(s.text), s.at+maxShown)
	return fmt.Errorf("expected %s, found %q", expected, s.text[s.at:end])
}

// word is the number or name that is next; it may be empty.
func (s *Scanner) word() []byte {
	end := s.at
	for end < len(s.text) && !delimiter(s.text[end]) {
		end++
	}
	return s.text[s.at:end]
}

func delimiter(b byte) bool {
	switch b {
	case ',', ':', ']', '}', '[', '{', '"', ' ', '\t', '\n', '\r':
		return true
	}
	return false
}

// leave steps over the last byte of a value and the white space behind it.
func (s *Scanner) leave() {
	s.at++
	s.space()
}

func (s *Scanner) space() {
	for s.at < len(s.text) {
		switch s.text[s.at] {
		case ' ', '\t', '\n', '\r':
			s.at++
		default:
			return
		}
	}
}
