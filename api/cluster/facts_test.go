package cluster

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestFactsCheck(t *testing.T) {
	token := func(id int32, text string) AddedToken { return AddedToken{ID: id, Text: text} }
	for name, c := range map[string]struct {
		f  Facts
		ok bool
	}{
		"nothing":           {Facts{}, true},
		"all":               {Facts{Policies: []string{"me"}, Routers: []string{"/a/b"}, Words: &Words{"p", 9, []AddedToken{token(3, "<a>"), token(8, "<b>")}}}, true},
		"many policies":     {Facts{Policies: make([]string, MaxListed+1)}, false},
		"a long router":     {Facts{Routers: []string{strings.Repeat("x", MaxListedName+1)}}, false},
		"out of order":      {Facts{Words: &Words{"p", 9, []AddedToken{token(3, "<a>"), token(3, "<b>")}}}, false},
		"out of range":      {Facts{Words: &Words{"p", 9, []AddedToken{token(9, "<a>")}}}, false},
		"negative":          {Facts{Words: &Words{"p", 9, []AddedToken{token(-1, "<a>")}}}, false},
		"empty":             {Facts{Words: &Words{"p", 9, []AddedToken{token(1, "")}}}, false},
		"long texts":        {Facts{Words: &Words{"p", 9, []AddedToken{token(1, strings.Repeat("x", MaxAddedBytes+1))}}}, false},
		"a long print":      {Facts{Words: &Words{Plain: strings.Repeat("x", MaxID+1), Size: 9}}, false},
		"many added tokens": {Facts{Words: &Words{"p", 1 << 20, slices.Repeat([]AddedToken{token(1, "x")}, MaxAdded+1)}}, false},
	} {
		if err := c.f.Check(); (err == nil) != c.ok || err != nil && !errors.Is(err, ErrCommand) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestSpecialMapIsChecked(t *testing.T) {
	for text, want := range map[string]string{
		`{"special_map":{"l":["<a>=<b>","5=6"]}}`: "",
		`{"special_map":{}}`:                      "",
		`{"special_map":{"s":["<a>=<b>"]}}`:       "behind the entry model: m, l",
		`{"special_map":{"x":["<a>=<b>"]}}`:       "behind the entry model: m, l",
		`{"special_map":{"l":[]}}`:                "no pairs",
		`{"special_map":{"l":["<a>"]}}`:           "ENTRY=OTHER",
		`{"special_map":{"l":["=<a>"]}}`:          "ENTRY=OTHER",
		`{"special_map":{"l":["<a>="]}}`:          "ENTRY=OTHER",
	} {
		d := Deployment{Models: []string{"s", "m", "l"}, Settings: json.RawMessage(text)}
		_, err := d.PolicySettings()
		if (err == nil) != (want == "") || err != nil && (!errors.Is(err, ErrCommand) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: error %v, want %q", text, err, want)
		}
	}
}
