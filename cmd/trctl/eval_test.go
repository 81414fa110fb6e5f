package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/models"
)

func TestFinalAnswer(t *testing.T) {
	tests := []struct {
		text string
		want float64
		ok   bool
	}{
		{"The answer is 12.", 12, true},
		{"<think>The answer is 3.</think>\nThe answer is -1,234,567.", -1234567, true},
		{"The answer is 2.50", 2.5, true},
		{"The answer is  7, I think", 7, true},
		{"The answer is\n8", 8, true},
		{"The answer is", 0, false},
		{"The answer is N", 0, false},
		{"the answer is 4", 0, false},
		{"12", 0, false},
		{"", 0, false},
	}
	for _, test := range tests {
		if got, ok := finalAnswer(test.text); got != test.want || ok != test.ok {
			t.Errorf("finalAnswer(%q) = %v, %v", test.text, got, ok)
		}
	}
}

func TestParseProblems(t *testing.T) {
	problems, err := parseProblems(models.Problems())
	if err != nil || len(problems) != 500 {
		t.Fatalf("the embedded problems: %d, %v", len(problems), err)
	}
	for _, text := range []string{"", "\n\n", "{", `{"question":"x"}`, `{"answer":1}`, `{"question":"x","answer":"1"}`} {
		if _, err := parseProblems([]byte(text)); err == nil {
			t.Errorf("parseProblems(%q) has no error", text)
		}
	}
}

func answer(text string, r *routed) *reply {
	out := &reply{Routing: r}
	out.Choices = append(out.Choices, struct {
		Message delta   `json:"message"`
		Delta   delta   `json:"delta"`
		Finish  *string `json:"finish_reason"`
	}{Message: delta{Content: text}})
	return out
}

func TestTally(t *testing.T) {
	both := []string{"s", "l"}
	tl := newTally("pair")
	tl.add(problem{Answer: 1}, answer("The answer is 1.", &routed{Policy: "p", Models: both, Tokens: map[string]int{"s": 90, "l": 10}}))
	tl.add(problem{Answer: 2}, answer("The answer is 1.", &routed{Policy: "p", Models: both, Tokens: map[string]int{"s": 60, "l": 40}}))
	r := tl.report(time.Second)
	if r.N != 2 || r.Accuracy != 0.5 || math.Abs(r.LargeShare-0.25) > 1e-12 || r.Policy != "p" || r.Shares["s"] != 0.75 {
		t.Errorf("report = %+v", r)
	}
}

func TestTallyOfOneModel(t *testing.T) {
	tl := newTally("l")
	tl.add(problem{Answer: 1}, answer("The answer is 1.", &routed{Models: []string{"l"}, Tokens: map[string]int{"l": 10}}))
	if r := tl.report(time.Second); r.LargeShare != 0 || r.Shares["l"] != 1 || r.Accuracy != 1 {
		t.Errorf("report = %+v", r)
	}
	tl = newTally("other")
	tl.add(problem{Answer: 1}, answer("", nil))
	if r := tl.report(time.Second); len(r.Models) != 1 || r.Models[0] != "other" || r.Accuracy != 0 {
		t.Errorf("report of a server without the extension = %+v", r)
	}
}

func TestPaintKeepsText(t *testing.T) {
	p := newPainter()
	for _, text := range []string{"a", " a ", "\n", "a\n\nb  ", "\ta", "\n x\n"} {
		for _, model := range []string{"", "tiny-s", "tiny-l"} {
			painted := p.paint(model, text, false)
			if got := stripStyle(painted); got != text {
				t.Errorf("paint(%q, %q) without colours = %q", model, text, got)
			}
			if model != "" && strings.TrimSpace(text) != "" && !strings.Contains(painted, "\x1b[") {
				t.Errorf("paint(%q, %q) = %q has no colour", model, text, painted)
			}
		}
	}
}

// stripStyle removes the escape sequences of colours.
func stripStyle(s string) string {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(s, "\x1b[")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		_, s, _ = strings.Cut(after, "m")
	}
}

// An interrupted evaluation prints what was measured, says so and ends with 130.
func TestEvalInterrupted(t *testing.T) {
	for name, served := range map[string]int{"some": 3, "none": 0} {
		t.Run(name, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			n := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if strings.HasSuffix(r.URL.Path, "/models") {
					fmt.Fprint(w, `{"data":[{"id":"m"}]}`)
					return
				}
				_, _ = io.Copy(io.Discard, r.Body) // only then the server notices that the client has gone
				if n++; n > served {
					stop()
					<-r.Context().Done()
					return
				}
				fmt.Fprint(w, `{"choices":[{"message":{"content":"The answer is 1"},"finish_reason":"stop"}],"usage":{"completion_tokens":2}}`)
			}))
			defer server.Close()
			var out, errs bytes.Buffer
			code := run(ctx, []string{"eval", "--url", server.URL, "--models", "m", "--concurrency", "1", "-n", "10", "-o", "json"},
				process{in: &bytes.Buffer{}, out: &out, err: &errs})
			if code != exitInterrupted || !strings.Contains(errs.String(), "the evaluation was interrupted") {
				t.Errorf("exit code %d: %s", code, &errs)
			}
			var report evalReport
			err := json.Unmarshal(out.Bytes(), &report)
			if served > 0 && (err != nil || report.N != served) || served == 0 && out.Len() > 0 {
				t.Errorf("%v: %s", err, &out)
			}
		})
	}
}
