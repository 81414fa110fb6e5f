package jsonscan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"
)

// tree rebuilds what encoding/json makes of a text, with the scanner's methods.
func tree(s *Scanner) (any, error) {
	switch b := s.text[s.at]; b {
	case '{':
		out := map[string]any{}
		return out, s.Object(1<<20, func(key []byte) error {
			name := string(key)
			v, err := tree(s)
			out[name] = v
			return err
		})
	case '[':
		out := []any{}
		return out, s.Array(func(i int) error {
			if i != len(out) {
				return fmt.Errorf("element %d of %d", i, len(out))
			}
			v, err := tree(s)
			out = append(out, v)
			return err
		})
	case '"':
		return s.String(1 << 20)
	default:
		var v any
		d := json.NewDecoder(bytes.NewReader(s.Raw()))
		d.UseNumber()
		err := d.Decode(&v)
		return v, err
	}
}

func FuzzScanner(f *testing.F) {
	for _, s := range []string{`{}`, ` [ ] `, `{"a":{"b":[1,2,{"c":null}]},"d":"x\"é\\"}`, `"\ud83d\ude00"`, `[true,false,-1.5e3,"",[[]],{}]`, `0`, ` { "a" : 1 , "b" : [ 1 , 2 ] } `, `{"a":}`, `[1,]`, "\"\xff\""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var want any
		d := json.NewDecoder(strings.NewReader(text))
		d.UseNumber()
		wrong := d.Decode(&want) != nil || !json.Valid([]byte(text))
		s, err := New([]byte(text))
		if (err != nil) != wrong {
			t.Fatalf("%q: error %v", text, err)
		}
		if err != nil {
			return
		}
		got, err := tree(s)
		if err != nil {
			if strings.Contains(err.Error(), "UTF-8") {
				return
			}
			t.Fatalf("%q: %v", text, err)
		}
		if list, ok := got.([]any); ok && len(list) == 0 {
			got = []any{}
		}
		if !reflect.DeepEqual(got, want) || s.at != len(text) {
			t.Errorf("%q: got %#v, want %#v; at %d", text, got, want, s.at)
		}
		if s, _ := New([]byte(text)); string(s.Raw()) != strings.Trim(text, " \t\r\n") {
			t.Errorf("%q: Raw differs", text)
		}
	})
}

func TestRefuses(t *testing.T) {
	at := func(text string) *Scanner {
		s, err := New([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	key := func([]byte) error { return errors.New("a key") }
	for name, err := range map[string]error{
		"an object":  at(`[]`).Object(9, key),
		"an array":   at(`{}`).Array(nil),
		"at most 9":  at(`{"0123456789":1}`).Object(9, key),
		"a key":      at(`{"012345678":1}`).Object(9, key),
		"UTF-8":      second(at("\"\xff\"").String(9)),
		"a string":   second(at(`12`).String(9)),
		"integer":    second(at(`-1`).Uint()),
		`"1.5"`:      second(at(`1.5`).Uint()),
		"found \"99": second(at(strings.Repeat("9", 1<<20)).Uint()),
	} {
		if err == nil || !strings.Contains(err.Error(), name) || len(err.Error()) > 200 {
			t.Errorf("%s: error %v", name, err)
		}
	}
	if _, err := New([]byte(`{`)); !errors.Is(err, ErrSyntax) {
		t.Error(err)
	}
	if v, err := at(` 18446744073709551615 `).Uint(); v != 1<<64-1 || err != nil {
		t.Errorf("%d, %v", v, err)
	}
}

func second[T any](_ T, err error) error { return err }

// TestLongStringsCostNothing has a long string refused, and one skipped.
func TestLongStringsCostNothing(t *testing.T) {
	text := []byte(`["` + strings.Repeat("a", 1<<17) + `"]`)
	if n := testing.AllocsPerRun(10, func() {
		s, _ := New(text)
		if err := s.Array(func(int) error { _, err := s.Bytes(64); return err }); err == nil {
			t.Error("no error")
		}
	}); n > 10 {
		t.Errorf("%v allocations", n)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	s, _ := New(text)
	s.Raw()
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 64<<10 {
		t.Errorf("%d bytes allocated", n)
	}
}
