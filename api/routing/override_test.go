package routing

import (
	"math"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	f := func(v float64) *float64 { return &v }
	for _, c := range []struct {
		field string
		o     *Override
	}{
		{"", nil},
		{"", &Override{}},
		{"", &Override{Policy: "me", Threshold: f(0), MaxLargeShare: f(1)}},
		{"", &Override{Threshold: f(MaxThreshold), MaxLargeShare: f(0)}},
		{"trctl.policy", &Override{Policy: strings.Repeat("x", MaxPolicy+1)}},
		{"trctl.threshold", &Override{Threshold: f(-0.1)}},
		{"trctl.threshold", &Override{Threshold: f(math.NaN())}},
		{"trctl.threshold", &Override{Threshold: f(math.Inf(1))}},
		{"trctl.max_large_share", &Override{MaxLargeShare: f(1.01)}},
		{"trctl.max_large_share", &Override{MaxLargeShare: f(math.NaN())}},
	} {
		err := c.o.Check()
		if (err == nil) != (c.field == "") || err != nil && !strings.HasPrefix(err.Error(), c.field) {
			t.Errorf("%+v: %v, want an error of %q", c.o, err, c.field)
		}
	}
}

func TestEqual(t *testing.T) {
	f := func(v float64) *float64 { return &v }
	for _, c := range []struct {
		a, b *Override
		want bool
	}{
		{nil, nil, true},
		{nil, &Override{}, true},
		{&Override{Threshold: f(1)}, &Override{Threshold: f(1)}, true},
		{&Override{Threshold: f(0)}, nil, false},
		{&Override{Threshold: f(0)}, &Override{MaxLargeShare: f(0)}, false},
		{&Override{Policy: "me"}, &Override{Policy: "random"}, false},
	} {
		if c.a.Equal(c.b) != c.want || c.b.Equal(c.a) != c.want {
			t.Errorf("%+v and %+v: want %t", c.a, c.b, c.want)
		}
	}
}
