package openai

import (
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/routing"
)

func TestParseRouting(t *testing.T) {
	f := func(v float64) *float64 { return &v }
	for _, c := range []struct {
		name, body, param string
		want              *routing.Override
	}{
		{"absent", ``, "", nil},
		{"null", `,"trctl":null`, "", nil},
		{"empty", `,"trctl":{}`, "", nil},
		{"null fields", `,"trctl":{"policy":null,"threshold":null}`, "", nil},
		{"all", `,"trctl":{"policy":"random","threshold":0,"max_large_share":0.25}`, "", &routing.Override{Policy: "random", Threshold: f(0), MaxLargeShare: f(0.25)}},
		{"a list", `,"trctl":[]`, "trctl", nil},
		{"policy is a number", `,"trctl":{"policy":1}`, "trctl.policy", nil},
		{"policy is long", `,"trctl":{"policy":"` + strings.Repeat("x", 33) + `"}`, "trctl.policy", nil},
		{"threshold is a text", `,"trctl":{"threshold":"0.1"}`, "trctl.threshold", nil},
		{"threshold is negative", `,"trctl":{"threshold":-0.1}`, "trctl.threshold", nil},
		{"share over 1", `,"trctl":{"max_large_share":1.1}`, "trctl.max_large_share", nil},
		{"unknown field", `,"trctl":{"treshold":1}`, "trctl.treshold", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := ParseChat([]byte(`{` + hi + c.body + `}`))
			if c.param != "" {
				if err == nil || err.Param != c.param || err.Status != 400 {
					t.Errorf("error %v, want one of %s", err, c.param)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !r.Routing.Equal(c.want) || (r.Routing == nil) != (c.want == nil) {
				t.Errorf("got %+v, want %+v", r.Routing, c.want)
			}
		})
	}
}

// An answer repeats what its request overrode.
func TestOverrideInAnswer(t *testing.T) {
	tau, share := 0.01, 1.0
	e := Extension{Policy: "random", Threshold: &tau, MaxLargeShare: &share}
	if got := string(e.append(nil)); !strings.HasPrefix(got, `{"policy":"random","threshold":0.01,"max_large_share":1,"models":`) {
		t.Error(got)
	}
}
