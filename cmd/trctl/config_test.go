package main

import (
	"log/slog"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/internal/node"
	"github.com/tokenrouter/tokenrouter/worker/schedule"
	"github.com/tokenrouter/tokenrouter/worker/subservice"
)

// The example file says what serve does without one.
func TestTinyConfigIsTheDefault(t *testing.T) {
	got, err := readConfig("../../deploy/config/r-stitch/tiny.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want := defaultSettings()
	for i := range want.Models {
		want.Models[i].Replicas = 1 // the file says so, the default is 0, which means 1
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestParseConfig(t *testing.T) {
	tau := 0.5
	tests := []struct {
		name, text string
		want       func(*settings)
	}{
		{"empty", "", func(*settings) {}},
		{"only a comment", "# nothing\n", func(*settings) {}},
		{"marks of one document", "---\npage_size: 16\n...\n", func(s *settings) { s.PageSize = 16 }},
		{"scalars", "listen: ':1'\ndrain_timeout: 1m\nhang_after: 10s\nlog_level: debug\nworkers: 2\n", func(s *settings) {
			debug := slog.LevelDebug
			s.Listen, s.DrainTimeout, s.HangAfter, s.LogLevel, s.Workers = ":1", time.Minute, 10*time.Second, &debug, 2
		}},
		{"how steps run", "lookahead: off\nreproducible: true\n", func(s *settings) {
			s.Lookahead, s.Reproducible = subservice.LookaheadOff, true
		}},
		{"names and origins", "allow_hosts: [api.example.org]\nallow_origins: ['*']\n", func(s *settings) {
			s.AllowHosts, s.AllowOrigins = []string{"api.example.org"}, []string{"*"}
		}},
		{"models alone make a deployment", "models: [{name: a, dir: d}, {name: b, dir: /e, threshold: 4, longest_wait: 30ms}]", func(s *settings) {
			s.AutoThresholds = false // one has been chosen
			s.Models = []node.Model{{Name: "a", Dir: "/etc/d", Threshold: 1}, {Name: "b", Dir: "/e", Threshold: 4, LongestWait: 30 * time.Millisecond}}
			s.Deployments = []node.Deployment{{Name: "default", Models: []string{"a", "b"}, Policy: node.Policy{Name: "r-stitch"}}}
		}},
		{"thresholds to begin with", "auto_thresholds: true\nadmin_socket: none\nschedule: adaptive\nmodels: [{name: tiny-m, threshold: 4}]", func(s *settings) {
			s.AdminSocket, s.Schedule = noSocket, schedule.Adaptive
			s.Models, s.Deployments = []node.Model{{Name: "tiny-m", Threshold: 4}}, nil
		}},
		{"one model", "models: [{name: tiny-m}]", func(s *settings) {
			s.Models, s.Deployments = []node.Model{{Name: "tiny-m", Threshold: 1}}, nil
		}},
		{"no deployments", "deployments: []", func(s *settings) { s.Deployments = nil }},
		{"policy", "deployments: [{name: x, models: [tiny-s, tiny-l], policy: {name: random, threshold: 0.5}}]", func(s *settings) {
			s.Deployments = []node.Deployment{{Name: "x", Models: []string{"tiny-s", "tiny-l"}, Policy: node.Policy{Name: "random", Threshold: &tau}}}
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, want := defaultSettings(), defaultSettings()
			test.want(&want)
			if err := parseConfig([]byte(test.text), "/etc", &got); err != nil {
				t.Fatal(err)
			}
			if len(got.Deployments) == 0 {
				got.Deployments = nil
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}

func TestParseConfigErrors(t *testing.T) {
	tests := []struct {
		name, text string
		want       []string
	}{
		{"unknown key", "listen: ':1'\npage_sise: 16\n", []string{"[2:1]", "page_sise", `Did you mean "page_size"?`}},
		{"unknown key of a model", "models:\n  - name: a\n    treshold: 2\n", []string{"[3:5]", `Did you mean "threshold"?`}},
		{"key in the wrong place", "policy: me\n", []string{"[1:1]", "Its place is deployments[].policy"}},
		{"key of two places", "threshold: 1\n", []string{"[1:1]", "models[].threshold or deployments[].policy.threshold"}},
		{"two documents", "page_size: 64\n---\npage_size: 16\n", []string{"more than one document"}},
		{"unknown key far from all", "zzzzzzzzzzzz: 1\n", []string{"[1:1]", "tiny.yaml"}},
		{"wrong type", "page_size: many\n", []string{"[1:12]", `page_size: "many" is not a whole number`}},
		{"a fraction", "listen: x\npage_size: 1.5\n", []string{"[2:12]", "not a whole number"}},
		{"a fraction of zero", "page_size: 64.0\n", []string{"[1:12]", "not a whole number"}},
		{"a huge number", "page_size: 18446744073709551615\n", []string{"[1:12]", "not a whole number"}},
		{"wrong number", "gpu_memory_share: x\n", []string{"[1:19]", "not a number"}},
		{"wrong flag", "auto_thresholds: 7\n", []string{"[1:18]", "not true or false"}},
		{"wrong duration", "drain_timeout: 5\n", []string{"[1:16]", "a duration such as 30s"}},
		{"wrong size", "gpu_memory: 3x\n", []string{"[1:13]", "no size such as"}},
		{"wrong rule", "schedule: odd\n", []string{"[1:11]", "there are delayed"}},
		{"no list", "gpus: 3\n", []string{"[1:7]", "gpus: a list is expected"}},
		{"no text", "listen: [1]\n", []string{"[1:9]", "listen: a single value is expected"}},
		{"no keys", "deployments: [{name: a, policy: 3}]\n", []string{"[1:33]", "deployments[0].policy: keys with values"}},
		{"wrong item", "deployments: [{policy: {weights: [1, x]}}]\n", []string{"deployments[0].policy.weights[1]", "not a number"}},
		{"wrong wait", "models:\n  - name: a\n    longest_wait: soon\n", []string{"[3:19]", "models[0].longest_wait", "neither auto nor a positive duration"}},
		{"negative wait", "models: [{name: a, longest_wait: -1s}]\n", []string{"neither auto nor a positive duration"}},
		{"wrong level", "log_level: loud\n", []string{"[1:12]", "log_level", "loud"}},
		{"duplicate key", "listen: a\nlisten: b\n", []string{"[2:1]"}},
		{"not a mapping", "- a\n", []string{"[1:1]"}},
		{"broken", "models: [", []string{"[1:"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := defaultSettings()
			err := parseConfig([]byte(test.text), "", &s)
			if err == nil {
				t.Fatal("no error")
			}
			for _, part := range test.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q lacks %q", err, part)
				}
			}
			for _, typ := range []string{"Go struct", "uint64", "interface {}", "fileConfig"} {
				if strings.Contains(err.Error(), typ) {
					t.Errorf("error %q names the type %s", err, typ)
				}
			}
		})
	}
}

func FuzzParseConfig(f *testing.F) {
	text, err := os.ReadFile("../../deploy/config/r-stitch/tiny.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte("models: [{name: a, threshold: 2}]"))
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		s := defaultSettings()
		if err := parseConfig(text, "", &s); err == nil {
			_ = s.Validate()
		}
	})
}

func TestLogLevel(t *testing.T) {
	s := defaultSettings()
	if s.logLevel(true) != slog.LevelWarn || s.logLevel(false) != slog.LevelInfo {
		t.Errorf("defaults: %v, %v", s.logLevel(true), s.logLevel(false))
	}
	if err := s.setLogLevel("debug"); err != nil || s.logLevel(true) != slog.LevelDebug || s.logLevel(false) != slog.LevelDebug {
		t.Errorf("chosen: %v, %v", s.logLevel(true), err)
	}
	if err := s.setLogLevel("loud"); err == nil {
		t.Error("loud was taken for a level")
	}
}

// The embedded models get thresholds of their own, others the policies'.
func TestDefaultPolicies(t *testing.T) {
	trio := []node.Model{{Name: "tiny-s"}, {Name: "tiny-l"}}
	other := []node.Model{{Name: "tiny-s", Dir: "x"}, {Name: "tiny-l"}}
	for policy, want := range map[string]float64{"r-stitch": 0.01, "request-level": 0.0002, "random": 0} {
		got := 0.0
		if p := defaultPolicy(policy, trio); p.Threshold != nil {
			got = *p.Threshold
		}
		if got != want {
			t.Errorf("%s: threshold %v, want %v", policy, got, want)
		}
		if p := defaultPolicy(policy, other); p.Threshold != nil {
			t.Errorf("%s: threshold %v for other models", policy, *p.Threshold)
		}
	}
}
