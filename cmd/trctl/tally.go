package main

import (
	"fmt"
	"io"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// evalReport is the result; its JSON names are stable.
type evalReport struct {
	Policy   string   `json:"policy"`
	Models   []string `json:"models"`
	N        int      `json:"n"`
	Accuracy float64  `json:"accuracy"`
	// LargeShare is the share of tokens that the entry model did not write.
	LargeShare float64 `json:"large_share"`
	// Shares is each model's share of the tokens.
	Shares map[string]float64 `json:"shares"`
	// TokensPerS is completion tokens over wall time, all requests together.
	TokensPerS float64 `json:"tokens_per_s"`
}

// tally adds up answers; many requests add at the same time.
type tally struct {
	name string

	mu      sync.Mutex
	policy  string
	models  []string
	asked   int
	judged  int // of those asked, with an answer to compare with
	right   int
	tokens  int
	byModel map[string]int
}

func newTally(name string) *tally { return &tally{name: name, byModel: map[string]int{}} }

// totals is a snapshot of a tally.
type totals struct{ asked, judged, right, tokens int }

func (t *tally) add(q problem, r *reply) totals {
	got, ok := finalAnswer(r.Choices[0].Message.Content)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asked++
	if !math.IsNaN(q.Answer) {
		t.judged++
	}
	if ok && got == q.Answer {
		t.right++
	}
	if r.Usage != nil {
		t.tokens += r.Usage.CompletionTokens
	}
	if r.Routing != nil {
		t.policy, t.models = r.Routing.Policy, r.Routing.Models
		for model, n := range r.Routing.Tokens {
			t.byModel[model] += n
		}
	}
	return totals{t.asked, t.judged, t.right, t.tokens}
}

func (t *tally) report(wall time.Duration) *evalReport {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := &evalReport{Policy: t.policy, Models: t.models, N: t.asked, Shares: map[string]float64{}}
	r.Accuracy = float64(t.right) / float64(max(t.asked, 1))
	r.TokensPerS = float64(t.tokens) / wall.Seconds()
	if len(r.Models) == 0 {
		r.Models = []string{t.name}
	}
	all := 0
	for _, n := range t.byModel {
		all += n
	}
	for model, n := range t.byModel {
		r.Shares[model] = float64(n) / float64(max(all, 1))
	}
	if all > 0 && len(r.Models) > 1 {
		r.LargeShare = float64(all-t.byModel[r.Models[0]]) / float64(all)
	}
	return r
}

func (r *evalReport) write(w io.Writer) error {
	var shares []string
	for _, model := range slices.Sorted(maps.Keys(r.Shares)) {
		shares = append(shares, fmt.Sprintf("%s %.1f %%", model, 100*r.Shares[model]))
	}
	policy := r.Policy
	if policy == "" {
		policy = "none"
	}
	_, err := fmt.Fprintf(w, "models       %s\npolicy       %s\nproblems     %d\naccuracy     %.3f\nlarge share  %.2f %%\nshares       %s\nspeed        %.0f tokens/s\n",
		strings.Join(r.Models, " + "), policy, r.N, r.Accuracy, 100*r.LargeShare, strings.Join(shares, ", "), r.TokensPerS)
	return err
}

// finalAnswer is the number of the last "The answer is N" of a text.
func finalAnswer(text string) (float64, bool) {
	found := regexp.MustCompile(`The answer is\s+(-?[0-9][0-9,]*(?:\.[0-9]+)?)`).FindAllStringSubmatch(text, -1)
	if len(found) == 0 {
		return 0, false
	}
	n, err := strconv.ParseFloat(strings.ReplaceAll(found[len(found)-1][1], ",", ""), 64)
	return n, err == nil
}
