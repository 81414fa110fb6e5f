package main

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/routing"
	"github.com/tokenrouter/tokenrouter/policies"
)

// Along a scale the large model gets more, from one end of the range to the other.
func TestScale(t *testing.T) {
	for _, name := range curved() {
		line, ok := scaleOf(name)
		if !ok {
			t.Fatalf("%s has no scale", name)
		}
		from, to, _ := policies.ThresholdRange(name)
		var all []float64
		for i := range 65 {
			all = append(all, line.at(float64(i)/64))
		}
		if !line.rising {
			slices.Reverse(all)
		}
		if !slices.IsSorted(all) || all[0] != from || all[64] != to || len(slices.Compact(slices.Clone(all))) != 65 {
			t.Errorf("%s: %v", name, all)
		}
	}
	if _, ok := scaleOf("me"); ok {
		t.Error("me has a scale")
	}
	if !slices.Contains(curved(), "r2r") || slices.Contains(curved(), "rule") {
		t.Errorf("policies with curves: %v", curved())
	}
}

// The search ends at the threshold that a model of the policy has for its bound.
func TestCalibrateSearch(t *testing.T) {
	f := func(v float64) *float64 { return &v }
	line, _ := scaleOf("r-stitch")
	// Share and accuracy as functions of τ, both falling.
	measure := func(tau float64) (*evalReport, error) {
		share := math.Exp(-20 * tau)
		return &evalReport{N: 10, LargeShare: share, Accuracy: 0.4 + 0.5*math.Sqrt(share)}, nil
	}
	c := calibrateCmd{Steps: 20, LargeShare: f(0.1)}
	best, tau, err := c.search(line, measure)
	if err != nil || best.LargeShare > 0.1 || best.LargeShare < 0.097 {
		t.Errorf("share %v at %v: %v", best, tau, err)
	}
	c = calibrateCmd{Steps: 20, TargetAccuracy: f(0.8)}
	best, tau, err = c.search(line, measure)
	if err != nil || best.Accuracy < 0.8 || best.Accuracy > 0.801 {
		t.Errorf("accuracy %v at %v: %v", best, tau, err)
	}
	var bound *boundError
	c = calibrateCmd{Steps: 5, TargetAccuracy: f(0.95)}
	if _, _, err = c.search(line, measure); !errors.As(err, &bound) || !strings.Contains(err.Error(), "the best was 0.9") {
		t.Errorf("an accuracy that is never reached: %v", err)
	}
	c = calibrateCmd{Steps: 5, LargeShare: f(0)}
	if _, _, err = c.search(line, func(float64) (*evalReport, error) { return &evalReport{LargeShare: 0.2}, nil }); !errors.As(err, &bound) {
		t.Errorf("a share that is never so small: %v", err)
	}
	broken := errors.New("broken")
	if _, _, err = c.search(line, func(float64) (*evalReport, error) { return nil, broken }); err != broken {
		t.Errorf("a measurement that fails: %v", err)
	}
}

// Points of a curve are sorted by share and spread over the small ones.
func TestCurvePoints(t *testing.T) {
	line, _ := scaleOf("r2r")
	n := 0
	points, err := fillGaps(8, func(x float64) (curvePoint, error) {
		n++
		tau := line.at(x)
		return curvePoint{Threshold: &tau, LargeShare: 0.1 + 0.9*math.Exp(-50*tau), place: x}, nil // 0.1 at least
	})
	if err != nil || n != 8 || len(points) != 8 {
		t.Fatalf("%d points after %d measurements: %v", len(points), n, err)
	}
	if !slices.IsSortedFunc(points, func(a, b curvePoint) int { return int(math.Copysign(1, a.LargeShare-b.LargeShare)) }) {
		t.Errorf("not sorted: %v", points)
	}
	between := 0
	for _, p := range points {
		if p.LargeShare > 0.11 && p.LargeShare < 0.9 {
			between++
		}
	}
	if between < 3 {
		t.Errorf("%d points are between the ends: %v", between, points)
	}
}

func TestReplayCompares(t *testing.T) {
	tau := 0.1
	old := &recorded{Text: "abcé1", Entry: "s", Provenance: []span{{"s", 3}, {"l", 1}, {"s", 2}}}
	for _, c := range []struct {
		name        string
		text        string
		spans       []span
		char, token int
		large, all  int
	}{
		{"the same", "abcé1", []span{{"s", 3}, {"l", 1}, {"s", 2}}, -1, -1, 1, 6},
		{"other writers", "abcé1", []span{{"s", 2}, {"l", 2}, {"s", 2}}, -1, 2, 2, 6},
		{"half of a character", "abcè1", []span{{"s", 6}}, 3, 3, 0, 6},
		{"longer", "abcé12", []span{{"s", 3}, {"l", 1}, {"s", 3}}, 5, 6, 1, 7},
		{"shorter", "ab", []span{{"s", 3}}, 2, 3, 0, 3},
		{"none", "", nil, 0, 0, 0, 0},
	} {
		q := compareRecords(4, old, &recorded{Text: c.text, Provenance: c.spans})
		if q.TextParts != c.char || q.TokenParts != c.token || q.LargeAfter != c.large || q.TokensAfter != c.all || q.LargeBefore != 1 || q.TokensBefore != 6 {
			t.Errorf("%s: %+v", c.name, q)
		}
	}
	long := compareRecords(1, &recorded{Text: strings.Repeat("é", 90)}, &recorded{Text: "x"})
	if long.Before != strings.Repeat("é", 20)+"…" {
		t.Errorf("clipped to %q", long.Before)
	}
	// Shares are of the tokens that are not the entry model's own, whose ever models they
	// were; a model alone is large where the pair beside it has it so.
	pair := func(entry, other string) *recorded {
		return &recorded{Entry: entry, Provenance: []span{{entry, 3}, {other, 1}}}
	}
	alone := &recorded{Entry: "l", Provenance: []span{{"l", 4}}}
	for name, c := range map[string]struct {
		old, now      *recorded
		before, after int
	}{
		"other models":       {pair("a", "b"), pair("s", "l"), 1, 1},
		"another entry":      {pair("s", "l"), pair("m", "l"), 1, 1},
		"the large alone":    {pair("s", "l"), alone, 1, 4},
		"the small alone":    {pair("s", "l"), &recorded{Entry: "s", Provenance: []span{{"s", 5}}}, 1, 0},
		"a pair after one":   {alone, pair("s", "l"), 4, 1},
		"one after the same": {alone, alone, 0, 0},
		"no entry named":     {&recorded{Provenance: []span{{"s", 1}, {"l", 2}}}, pair("s", "l"), 2, 1},
	} {
		if q := compareRecords(1, c.old, c.now); q.LargeBefore != c.before || q.LargeAfter != c.after {
			t.Errorf("%s: %d became %d, want %d and %d", name, q.LargeBefore, q.LargeAfter, c.before, c.after)
		}
	}
	// A line holds all that the request was.
	req := chatRequest{Model: "m", Messages: []message{{Role: "user", Content: "<q>"}}, MaxTokens: 3, Temperature: &tau, Routing: &routing.Override{Threshold: &tau}}
	file := t.TempDir() + "/r.jsonl"
	if err := writeRecord(file, []*recorded{nil, {chatRequest: req, Text: "t", Provenance: []span{{"s", 3}}}}); err != nil {
		t.Fatal(err)
	}
	list, err := readRecord(file)
	if err != nil || len(list) != 1 || !list[0].Routing.Equal(req.Routing) || *list[0].Temperature != tau || list[0].Provenance[0] != (span{"s", 3}) {
		t.Errorf("read %+v, %v", list, err)
	}
}

func FuzzParseRecord(f *testing.F) {
	f.Add([]byte(`{"model":"m","messages":[{"role":"user","content":"q"}],"text":"t","provenance":[["s",3],["l",1]]}`))
	f.Add([]byte(`{"model":"m","messages":[{}],"provenance":[["s"]]}`))
	f.Add([]byte(`{"model":"m","messages":[{}],"provenance":[["s",-1]]}`))
	f.Add([]byte(`{"model":"m","messages":[{}],"provenance":[[1,"s"],7]}`))
	f.Add([]byte("\n\n{"))
	f.Fuzz(func(t *testing.T, text []byte) {
		list, err := parseRecord(text)
		if (err == nil) != (len(list) > 0) {
			t.Fatalf("%d records and %v", len(list), err)
		}
		for _, r := range list {
			if compareRecords(1, r, r).TextParts != -1 {
				t.Fatalf("%+v differs from itself", r)
			}
		}
	})
}

// FuzzParseQuestions reads any file of questions.
func FuzzParseQuestions(f *testing.F) {
	for _, text := range []string{"{\"question\":\"x\",\"answer\":1}\n", "\xef\xbb\xbf{\"question\":\"x\"}\r\n\r\n", "[1]", "{\"question\":{}}", "{\"question\":\"x\",\"answer\":1e999}", "{"} {
		f.Add([]byte(text), true)
		f.Add([]byte(text), false)
	}
	f.Fuzz(func(t *testing.T, text []byte, answers bool) {
		list, err := parseQuestions(text, answers)
		if (err == nil) != (len(list) > 0) {
			t.Fatalf("%d questions and %v", len(list), err)
		}
		for _, q := range list {
			if q.Question == "" || answers && math.IsNaN(q.Answer) {
				t.Fatalf("%+v", q)
			}
		}
	})
}
