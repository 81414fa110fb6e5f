package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// jsonLines calls each for the lines of a file that has one JSON object a line, but for
// the blank ones, numbered from 1. A line has at most so many bytes. Errors name the line.
func jsonLines(text []byte, most int, each func(n int, line []byte) error) error {
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf")) // which some editors put in front
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, most)
	n := 0
	for lines.Scan() {
		n++
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		if err := each(n, lines.Bytes()); err != nil {
			return fmt.Errorf("line %d: %w", n, lineFault(err))
		}
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		return fmt.Errorf("line %d: it has more than %d bytes", n+1, most)
	} else if err != nil {
		return fmt.Errorf("line %d: %w", n+1, err)
	}
	return nil
}

// lineFault says in the file's words what JSON's decoder says in those of the program.
func lineFault(err error) error {
	var kind *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &kind) && kind.Field == "":
		return fmt.Errorf("it is no object, but %s", article(kind.Value))
	case errors.As(err, &kind):
		names := strings.Split(kind.Field, ".")
		return fmt.Errorf("the %s is %s; it must be %s", names[len(names)-1], article(kind.Value), shapeOf(kind.Type.Kind().String()))
	case errors.As(err, &syntax) && syntax.Error() == "unexpected end of JSON input":
		return fmt.Errorf("%w: the line is cut short", err)
	}
	return err
}

// article puts one before a word of JSON.
func article(word string) string {
	word, _, _ = strings.Cut(word, " ") // number 1.5
	switch word {
	case "object", "array":
		return "an " + word
	}
	return "a " + word
}

// shapeOf names a kind of Go's values in words of JSON.
func shapeOf(kind string) string {
	switch kind {
	case "string":
		return "a string"
	case "slice", "array":
		return "an array"
	case "struct", "map":
		return "an object"
	case "bool":
		return "true or false"
	case "int", "int64":
		return "a whole number"
	}
	return "a number"
}

// someOf is how many of a list's first are meant: 100 unless it was said, or all if there
// are fewer; 0 means all.
func someOf(n *int, have int, what string) (int, error) {
	const usual = 100
	switch {
	case n == nil:
		return min(usual, have), nil
	case *n < 0 || *n > have:
		return 0, usagef("--n is %d, there are %d %s", *n, have, what)
	case *n == 0:
		return have, nil
	}
	return *n, nil
}
