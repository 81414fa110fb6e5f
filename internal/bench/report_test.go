package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// names lists the paths of all members of a JSON value with their kinds.
func names(at string, v any) []string {
	switch v := v.(type) {
	case map[string]any:
		var out []string
		for key, e := range v {
			out = append(out, names(at+"."+key, e)...)
		}
		return out
	case []any:
		if len(v) == 0 {
			return []string{at + "[] empty"}
		}
		return names(at+"[]", v[0])
	case string:
		return []string{at + " string"}
	case float64:
		return []string{at + " number"}
	case bool:
		return []string{at + " bool"}
	}
	return []string{at + " null"}
}

// The names are an interface: scripts read them. A changed golden is a change of it.
func TestReportNames(t *testing.T) {
	full := script(act{ms, token("a") + token("b")}, act{ms, token("c")},
		act{ms, "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}],\"trctl\":{\"policy\":\"p\",\"models\":[\"s\"],\"tokens\":{\"s\":4}}}\n\n" + usage(1, 4) + endMark})
	n := 0
	handler := func(w http.ResponseWriter, r *http.Request) {
		if n++; n == 2 {
			w.WriteHeader(429)
			return
		}
		full(w, r)
	}
	inBubble(t, http.HandlerFunc(handler), func(t *testing.T, transport http.RoundTripper) {
		half := .5
		cfg := plain(t, transport)
		cfg.Concurrency, cfg.Requests, cfg.Rate, cfg.Arrivals, cfg.Temperature = 1, 3, 10, Constant, &half
		r := runBench(t, cfg)
		r.Build.Commit, r.Build.Time = "", "" // these two are not in every build
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var tree any
		if err := json.Unmarshal(text, &tree); err != nil {
			t.Fatal(err)
		}
		got := names("", tree)
		slices.Sort(got)
		golden(t, "names.txt", strings.Join(got, "\n")+"\n")
	})
}

// golden compares got with a file. With UPDATE_GOLDEN set it writes the file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s:\n%s\nwant\n%s", path, got, want)
	}
}

// A report without any success has all names too, with null and zero.
func TestEmptyReport(t *testing.T) {
	r := newTally(0, 10).report(&Config{Prompts: Prompts{Source: "none"}}, time.Time{})
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"ttft_ms":null`, `"errors":[]`, `"finish_reasons":{}`, `"routing":null`, `"output_tokens_per_s":0`} {
		if !bytes.Contains(text, []byte(want)) {
			t.Errorf("%s is not in %s", want, text)
		}
	}
	var b strings.Builder
	if err := r.Write(&b); err != nil {
		t.Error(err)
	}
}

func TestReportText(t *testing.T) {
	half := .5
	s := &Spread{Count: 12, Kept: 12, Mean: 1.25, P50: 1, P90: 2, P99: 3.333, Max: 4}
	sampled := &Spread{Count: 2 * MaxSamples, Kept: MaxSamples, Mean: 1, P50: 1, P90: 1, P99: 1, Max: 1}
	r := &Report{
		Machine: Machine{CPU: "a CPU", Cores: 2, OS: "linux", Arch: "amd64"}, URL: "http://h:1", Model: "tiny", Endpoint: Chat, Prompts: "two lines",
		MaxTokens: 9, IgnoreEOS: true, Temperature: &half, Loop: "open", Concurrency: 8, Rate: 2.5, Arrivals: Poisson, Warmup: 1, Interrupted: true,
		WallS: 2, Requests: 15, Succeeded: 12, Failed: 3, OutputTokens: 100, InputTokens: 50, CountedByServer: 10, Uncounted: 1, TokensPerPiece: 1.5, PiecesPerRead: 1,
		Finish: map[string]int{"stop": 10, "length": 2}, OutputTokensPerS: 50, RequestsPerS: 6,
		PerUser: s, TTFT: s, InterToken: sampled, Latency: s, StartDelay: s,
		Routing:  &Routing{Policy: "r-stitch", Requests: 12, LargeShare: .25, Models: []ModelTokens{{"tiny-s", 75, .75}, {"tiny-l", 25, .25}}},
		Failures: []Failures{{KindStatus, 429, "queue_full", 2, "too many"}, {KindCut, 0, "", 1, "EOF"}},
	}
	r.Build.Version = "v1"
	var b strings.Builder
	if err := r.Write(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "report.txt", b.String())
}

func TestFailureGroups(t *testing.T) {
	all := failures{}
	for i := range 200 {
		all.add(&failure{kind: KindStatus, status: 400, code: fmt.Sprint("code", i), message: "m"})
	}
	all.add(&failure{kind: KindStatus, status: 400, code: "code3", message: "later"})
	list := all.sorted()
	total := 0
	for _, f := range list {
		total += f.Count
	}
	if len(list) != maxGroups || total != 201 || list[0].Kind != "other" || list[1].Code != "code3" || list[1].Message != "m" {
		t.Errorf("%d groups of %d failures: %+v", len(list), total, list[:2])
	}
}

func TestClip(t *testing.T) {
	tests := []struct{ in, want string }{
		{"plain", "plain"},
		{"two\n  lines\t", "two lines"},
		{"12345678901", "1234567890…"},
		{"123456789é", "123456789…"},
		{"\x1b[2J\x00", "\uFFFD[2J\uFFFD"},
		{"a\xffb", "a\uFFFDb"},
	}
	for _, test := range tests {
		if got := clip(test.in, 10); got != test.want {
			t.Errorf("clip(%q) = %q, want %q", test.in, got, test.want)
		}
	}
}

func TestRoutingOfManyNames(t *testing.T) {
	tl := newTally(0, 10)
	for i := range 200 {
		tl.routing(fmt.Appendf(nil, `{"models":["m%d"],"tokens":{"m%d":-5}}`, i, i))
	}
	tl.routing([]byte(`{"models":7}`))
	if len(tl.byModel) > maxNames+1 || tl.routed != 0 || tl.extended != 200 {
		t.Errorf("%d names, %d tokens, %d extensions", len(tl.byModel), tl.routed, tl.extended)
	}
}
