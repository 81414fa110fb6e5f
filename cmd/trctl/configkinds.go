package main

import (
	"encoding"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"strconv"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// levelName is the name of a log level.
type levelName string

// UnmarshalText accepts debug, info, warn and error.
func (l *levelName) UnmarshalText(text []byte) error {
	if new(slog.Level).UnmarshalText(text) != nil {
		return fmt.Errorf("%q is not one of debug, info, warn, error", text)
	}
	*l = levelName(text)
	return nil
}

// checkKinds reports the first value of a configuration file that is not of the
// kind that its key wants, in words, with line, column and source. What it does
// not know is left to the decoder.
func checkKinds(text []byte) error { return checkKindsOf(text, reflect.TypeFor[fileConfig]()) }

// checkKindsOf is checkKinds for a file of another type, in all its documents.
func checkKindsOf(text []byte, t reflect.Type) error {
	file, err := parser.ParseBytes(text, 0)
	if err != nil {
		return nil // the decoder says what is wrong
	}
	for _, document := range file.Docs {
		if err := checkKind(document.Body, t, "the file"); err != nil {
			return err
		}
	}
	return nil
}

// checkKind compares a value with the Go type that it is to become.
func checkKind(n ast.Node, t reflect.Type, key string) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch v := n.(type) {
	case nil, *ast.NullNode, *ast.AliasNode, *ast.TagNode, *ast.MergeKeyNode:
		return nil
	case *ast.AnchorNode:
		return checkKind(v.Value, t, key)
	}
	wrong := func(format string, args ...any) error {
		return &yaml.SyntaxError{Message: key + ": " + fmt.Sprintf(format, args...), Token: n.GetToken()}
	}
	if into, ok := reflect.New(t).Interface().(yaml.BytesUnmarshaler); ok {
		if err := into.UnmarshalYAML([]byte(n.String())); err != nil {
			return wrong("%s", err)
		}
		return nil
	}
	scalar, isScalar := n.(ast.ScalarNode)
	if into, ok := reflect.New(t).Interface().(encoding.TextUnmarshaler); ok {
		if !isScalar {
			return wrong("a single value is expected")
		}
		if err := into.UnmarshalText([]byte(scalar.GetToken().Value)); err != nil {
			return wrong("%s", err)
		}
		return nil
	}
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		return checkMapping(n, t, key, wrong)
	case reflect.Slice:
		list, ok := n.(*ast.SequenceNode)
		if !ok {
			return wrong("a list is expected, such as [a, b]")
		}
		for i, item := range list.Values {
			if err := checkKind(item, t.Elem(), fmt.Sprintf("%s[%d]", key, i)); err != nil {
				return err
			}
		}
		return nil
	}
	if !isScalar {
		return wrong("a single value is expected, %s", kindName(t))
	}
	if !fits(scalar, t) {
		return wrong("%q is not %s", scalar.GetToken().Value, kindName(t))
	}
	return nil
}

// checkMapping checks the keys that t knows, all of them if it is a map. Others are for
// the decoder.
func checkMapping(n ast.Node, t reflect.Type, key string, wrong func(string, ...any) error) error {
	var pairs []*ast.MappingValueNode
	switch v := n.(type) {
	case *ast.MappingNode:
		pairs = v.Values
	case *ast.MappingValueNode:
		pairs = []*ast.MappingValueNode{v}
	default:
		return wrong("keys with values are expected, such as name: a")
	}
	for _, p := range pairs {
		name := p.Key.GetToken().Value
		if t.Kind() == reflect.Map {
			if err := checkKind(p.Value, t.Elem(), key+"."+name); err != nil {
				return err
			}
			continue
		}
		for f := range t.Fields() {
			if f.Tag.Get("yaml") != name {
				continue
			}
			path := name
			if key != "the file" {
				path = key + "." + name
			}
			if err := checkKind(p.Value, f.Type, path); err != nil {
				return err
			}
		}
	}
	return nil
}

// fits says whether a scalar can become a value of t without loss.
func fits(n ast.ScalarNode, t reflect.Type) bool {
	text := n.GetToken().Value
	switch {
	case t == reflect.TypeFor[time.Duration]():
		_, err := time.ParseDuration(text)
		return err == nil
	case t.Kind() == reflect.Int:
		_, isInteger := n.(*ast.IntegerNode)
		v, isNumber := n.GetValue().(uint64)
		return isInteger && !(isNumber && v > math.MaxInt64)
	case t.Kind() == reflect.Float64:
		_, err := strconv.ParseFloat(text, 64)
		_, quoted := n.(*ast.StringNode)
		return err == nil && !quoted
	case t.Kind() == reflect.Bool:
		_, isBool := n.(*ast.BoolNode)
		return isBool
	}
	return true
}

// kindName names what a type is written as.
func kindName(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return "a duration such as 30s"
	case t.Kind() == reflect.Int:
		return "a whole number"
	case t.Kind() == reflect.Float64:
		return "a number"
	case t.Kind() == reflect.Bool:
		return "true or false"
	}
	return "a text"
}
