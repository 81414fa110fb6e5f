package choice

import (
	"slices"
	"testing"

	"github.com/tokenrouter/tokenrouter/gateway/session"
)

func TestOf(t *testing.T) {
	for _, c := range []struct {
		name, own string
		models    []string
		has, not  []string
	}{
		{"two models", "r-stitch", []string{"s", "l"}, []string{"citer", "entropy", "glimp-router", "me", "r-stitch", "r2r", "random", "single"}, []string{"rule"}},
		{"own with settings", "rule", []string{"s", "l"}, []string{"rule", "me"}, nil},
		{"one of one's own", "sparing", []string{"s", "l"}, []string{"sparing", "r-stitch"}, nil},
		{"one model", "single", []string{"s"}, []string{"me", "single"}, []string{"r2r", "random", "rule"}},
		{"three models", "me", []string{"s", "m", "l"}, []string{"me", "single"}, []string{"r2r", "r-stitch"}},
	} {
		list := Of(c.own, c.models, func(policy string) string {
			if policy == "r2r" {
				return Lacks(policy, c.models[0])
			}
			return ""
		})
		var names []string
		for _, x := range list {
			names = append(names, x.Policy)
			if (x.Lacks != "") != (x.Policy == "r2r") {
				t.Errorf("%s: %s lacks %q", c.name, x.Policy, x.Lacks)
			}
		}
		if !slices.IsSorted(names) || len(slices.Compact(slices.Clone(names))) != len(names) {
			t.Errorf("%s: %v", c.name, names)
		}
		for _, name := range c.has {
			if !slices.Contains(names, name) {
				t.Errorf("%s: %s is not in %v", c.name, name, names)
			}
		}
		for _, name := range c.not {
			if slices.Contains(names, name) {
				t.Errorf("%s: %s is in %v", c.name, name, names)
			}
		}
	}
	i := slices.IndexFunc(Of("single", []string{"s"}, nothing), func(x session.PolicyChoice) bool { return x.HasThreshold })
	if i >= 0 {
		t.Error("no policy for one model has a threshold")
	}
}

func nothing(string) string { return "" }
