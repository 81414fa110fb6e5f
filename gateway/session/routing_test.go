package session

import (
	"errors"
	"math"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/api/routing"
	"github.com/tokenrouter/tokenrouter/api/sampling"
)

func TestRoutingOfRequests(t *testing.T) {
	f := func(v float64) *float64 { return &v }
	open := Deployment{Name: "tiny", Policy: "r-stitch", MaxContext: 100, Vocab: 10, Models: []string{"s", "l"}, Overrides: []PolicyChoice{
		{Policy: "me"}, {Policy: "r-stitch", HasThreshold: true, To: 1}, {Policy: "entropy", HasThreshold: true, To: 100},
		{Policy: "citer", HasThreshold: true, To: 1, Lacks: "it needs more"},
	}}
	shut := open
	shut.Overrides = nil
	for _, c := range []struct {
		name  string
		d     *Deployment
		o     *routing.Override
		field string
		want  *routing.Override
	}{
		{"nothing", &shut, nil, "", nil},
		{"nothing in it", &shut, &routing.Override{}, "", nil},
		{"policy forbidden", &shut, &routing.Override{Policy: "me", Threshold: f(1)}, "trctl.policy", nil},
		{"threshold forbidden", &shut, &routing.Override{Threshold: f(1)}, "trctl.threshold", nil},
		{"share forbidden", &shut, &routing.Override{MaxLargeShare: f(1)}, "trctl.max_large_share", nil},
		{"own policy by name", &open, &routing.Override{Policy: "r-stitch"}, "", nil},
		{"own policy's threshold", &open, &routing.Override{Policy: "r-stitch", Threshold: f(0.5)}, "", &routing.Override{Threshold: f(0.5)}},
		{"own policy's range", &open, &routing.Override{Threshold: f(1.5)}, "trctl.threshold", nil},
		{"another's range", &open, &routing.Override{Policy: "entropy", Threshold: f(1.5)}, "", &routing.Override{Policy: "entropy", Threshold: f(1.5)}},
		{"no threshold", &open, &routing.Override{Policy: "me", Threshold: f(0.5)}, "trctl.threshold", nil},
		{"not offered", &open, &routing.Override{Policy: "r2r"}, "trctl.policy", nil},
		{"something is lacking", &open, &routing.Override{Policy: "citer", Threshold: f(0.5)}, "trctl.policy", nil},
		{"share", &open, &routing.Override{MaxLargeShare: f(0.1)}, "", &routing.Override{MaxLargeShare: f(0.1)}},
		{"share out of range", &open, &routing.Override{MaxLargeShare: f(math.NaN())}, "trctl.max_large_share", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			served := &Served{Deployment: *c.d}
			requests, err := served.Requests(&Settings{MaxTokens: 5, Logprobs: -1, Routing: c.o}, generate.Request{Prompt: "x"})
			var field *sampling.FieldError
			switch {
			case c.field == "" && err != nil:
				t.Fatal(err)
			case c.field != "":
				if !errors.Is(err, ErrSettings) || !errors.As(err, &field) || field.Field != c.field {
					t.Fatalf("error %v, want one of %s", err, c.field)
				}
				return
			}
			if got := requests[0].Routing; !got.Equal(c.want) || (got == nil) != (c.want == nil) {
				t.Errorf("travels as %+v, want %+v", got, c.want)
			}
		})
	}
}
