package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/planner"
)

func TestParseDeployments(t *testing.T) {
	const head = "deployments:\n  - name: d\n    models: [tiny-s, tiny-l]\n"
	for _, c := range []struct {
		name, text string
		want       cluster.Deployment
		settings   string
	}{
		{"defaults of the trio", head, cluster.Deployment{Name: "d", Models: []string{"tiny-s", "tiny-l"}, Policy: "r-stitch"}, `{"threshold":0.01}`},
		{"defaults of other models", "deployments: [{name: d, models: [a, b]}]", cluster.Deployment{Name: "d", Models: []string{"a", "b"}, Policy: "r-stitch"}, ""},
		{"one model", "deployments: [{name: d, models: [a]}]", cluster.Deployment{Name: "d", Models: []string{"a"}, Policy: "single"}, ""},
		{
			"all keys", head + "    policy: {name: random, threshold: 0.5}\n    allow_policy_override: true\n    replicas: [1, 2]\n    thresholds: [1, 4]\n" +
				"    longest_wait: 50ms\n    max_in_flight: 7\n    fallback: fail\n    fallback_wait: 3s\n",
			cluster.Deployment{
				Name: "d", Models: []string{"tiny-s", "tiny-l"}, Policy: "random", Replicas: []int{1, 2}, Thresholds: []int{1, 4},
				LongestWait: 50 * time.Millisecond, MaxInFlight: 7, Fallback: cluster.FallbackFail, FallbackWait: 3 * time.Second,
			}, `{"threshold":0.5,"allow_policy_override":true}`,
		},
		{
			"special map", head + "    special_map: {tiny-l: ['<think>=<t>', 5=6]}\n", cluster.Deployment{Name: "d", Models: []string{"tiny-s", "tiny-l"}, Policy: "r-stitch"},
			`{"threshold":0.01,"special_map":{"tiny-l":["\u003cthink\u003e=\u003ct\u003e","5=6"]}}`,
		},
		{"automatic", head + "    thresholds: auto\n    longest_wait: auto\n", cluster.Deployment{Name: "d", Models: []string{"tiny-s", "tiny-l"}, Policy: "r-stitch"}, `{"threshold":0.01}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			list, err := parseDeployments([]byte(c.text))
			if err != nil || len(list) != 1 {
				t.Fatalf("%v, %v", list, err)
			}
			got := list[0]
			if string(got.Settings) != c.settings {
				t.Errorf("settings %s, want %s", got.Settings, c.settings)
			}
			got.Settings = nil
			if got.Name != c.want.Name || got.Policy != c.want.Policy || !slices.Equal(got.Models, c.want.Models) || !slices.Equal(got.Replicas, c.want.Replicas) ||
				!slices.Equal(got.Thresholds, c.want.Thresholds) || got.LongestWait != c.want.LongestWait || got.MaxInFlight != c.want.MaxInFlight ||
				got.Fallback != c.want.Fallback || got.FallbackWait != c.want.FallbackWait {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

func TestParseDeploymentsRefuses(t *testing.T) {
	const head = "deployments:\n  - name: d\n    models: [tiny-s, tiny-l]\n"
	for _, c := range []struct{ name, text, want string }{
		{"nothing", "", "no deployment in it"},
		{"a file of serve", "listen: 127.0.0.1:8000\n", `unknown field "listen"`},
		{"unknown key", head + "    replica: [1, 1]\n", `Did you mean "replicas"?`},
		{"key in another place", head + "    rule: x\n", "Its place is deployments[].policy.rule"},
		{"unknown key of a second document", head + "---\n" + head + "    replica: [1, 1]\n", "[8:5]"},
		{"thresholds of one number", head + "    thresholds: 3\n", "[4:17] deployments[0].thresholds"},
		{"thresholds for too few", head + "    thresholds: [3]\n", "1 numbers for 2 models"},
		{"unknown policy", head + "    policy: {name: r-stich}\n", `did you mean "r-stitch"?`},
		{"setting of another policy", head + "    policy: {name: r-stitch, weights: [1, 2]}\n", "weights"},
		{"policy for more models", "deployments: [{name: d, models: [a, b, c]}]", "r-stitch"},
		{"no models", "deployments: [{name: d}]", "models"},
		{"a model twice", "deployments: [{name: d, models: [a, a]}]", "twice"},
		{"a bad name", "deployments: [{name: a/b, models: [a]}]", "letters, digits"},
		{"the same name twice", head + "  - name: d\n    models: [a]\n", "twice"},
		{"fallback", head + "    fallback: hope\n", "not one of wait, small-only, fail"},
		{"wait", head + "    longest_wait: -1s\n", "neither auto nor a positive duration"},
		{"negative wait", head + "    fallback_wait: -1s\n", "negative"},
		{"router beside the file", head + "    policy: {name: r2r, router: ./net}\n", "must be absolute"},
		{"special map of the entry", head + "    special_map: {tiny-s: [a=b]}\n", "behind the entry model: tiny-l"},
		{"negative wait", head + "    fallback_wait: -1s\n", `deployment "d": fallback_wait is not allowed: it is negative`},
		{"negative bound", head + "    max_in_flight: -1\n", `deployment "d": max_in_flight is not allowed: it is negative`},
		{"special map of none", head + "    special_map: {tiny-m: [a=b]}\n", `settings is not allowed: special_map: "tiny-m" is none`},
		{"special map without a pair", head + "    special_map: {tiny-l: [ab]}\n", "expected ENTRY=OTHER"},
		{"special map with a rule", head + "    special_map: {tiny-l: [a=b]}\n    policy: {name: rule, rule: entropy > 1}\n", "special_map: not with the policy rule"},
		{"not YAML", "deployments: [\n", ""},
		{"a list", "- a\n", "keys with values are expected"},
	} {
		t.Run(c.name, func(t *testing.T) {
			list, err := parseDeployments([]byte(c.text))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%+v, %v; want %q", list, err, c.want)
			}
		})
	}
}

// Every file under deploy/deployments is well-formed.
func TestDeploymentFiles(t *testing.T) {
	files, err := filepath.Glob("../../deploy/deployments/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parseDeployments(text); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// The deployments that a cluster makes by itself are what applying them without settings
// makes.
func TestDefaultDeployments(t *testing.T) {
	for _, pair := range planner.Pairs() {
		w := wishedDeployment{Name: pair.Name, Models: pair.Models, Policy: filePolicy{Name: pair.Policy}}
		d, err := w.deployment()
		if err != nil || string(d.Settings) != string(pair.Settings) {
			t.Errorf("%s: settings %s, the planner has %s, %v", pair.Name, d.Settings, pair.Settings, err)
		}
	}
}

func FuzzParseDeployments(f *testing.F) {
	f.Add([]byte("deployments:\n  - name: d\n    models: [tiny-s, tiny-l]\n    thresholds: [1, 4]\n    longest_wait: 50ms\n"))
	f.Add([]byte("deployments: [{name: d, models: [a], policy: {name: single}}]\n---\n"))
	f.Add([]byte("deployments: &a\n  - *a\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		list, err := parseDeployments(text)
		if err == nil && len(list) == 0 {
			t.Error("neither a deployment nor an error")
		}
	})
}

func TestExpiryTime(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 5, time.UTC)
	for text, want := range map[string]time.Time{
		"never": {}, "12h": now.Add(12 * time.Hour).Truncate(time.Second), "90d": now.AddDate(0, 0, 90).Truncate(time.Second),
		"2027-01-31": time.Date(2027, 1, 31, 0, 0, 0, 0, time.UTC), "2027-01-31T10:00:00Z": time.Date(2027, 1, 31, 10, 0, 0, 0, time.UTC),
	} {
		var e expiryTime
		if err := e.UnmarshalText([]byte(text)); err != nil || !e.from(now).Equal(want) {
			t.Errorf("%s: %s, %v; want %s", text, e.from(now), err, want)
		}
	}
	for _, text := range []string{"", "soon", "-3h", "0d", "0s", "-1d", "99999999999d", "31.1.2027"} {
		if err := new(expiryTime).UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}
