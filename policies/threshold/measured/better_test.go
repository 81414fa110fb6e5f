package measured

import (
	"testing"

	"github.com/tokenrouter/tokenrouter/policies/threshold"
)

// What two GPUs measured of a large model that reads 10 tokens for a row and writes a tenth: with many requests thresholds hardly matter,
// with few they do. A table solved with many in flight is taken, so that it is there for few.
func TestBetterWithFewerRequests(t *testing.T) {
	in := &threshold.Input{
		N: 14,
		P: [][]float64{{.9014, .0986}, {1, 0}}, Commit: [][]float64{{1, 0}, {1, 0}},
		T: [][]float64{
			{.81, .89, 1.00, 1.07, 1.14, 1.22, 1.29, 1.39, 1.72, 1.80, 1.91, 1.96, 2.05, 2.16},
			{21.2, 21.7, 22.6, 23.4, 24.9, 25.6, 27.1, 28.3, 29.4, 31.1, 32.7, 33.1, 34.0, 35.2},
		},
	}
	var table [][]int // as solved
	for _, large := range []int{1, 2, 3, 3, 4, 4, 4, 4, 6, 6, 6, 6, 6, 1} {
		table = append(table, []int{1, large})
	}
	ones := func(int) []int { return []int{1, 1} }
	same := func(n int) []int { return table[n-1] }
	for name, c := range map[string]struct {
		live    int
		present func(int) []int
		better  bool
	}{
		"few now": {4, ones, true}, "perhaps few later": {14, ones, true}, "more than the table has": {20, ones, true}, "in use already": {14, same, false},
		"one request": {1, ones, false}, "none": {0, ones, false},
	} {
		promised, better, err := Better(t.Context(), in, c.live, table, c.present)
		if err != nil || better != c.better || promised <= 0 {
			t.Errorf("%s: %v tokens/s, better %v, want %v, error %v", name, promised, better, c.better, err)
		}
	}
	if _, better, err := gains(t.Context(), in, table[13], ones(14)); better || err != nil {
		t.Errorf("at 14 requests alone: better %v, error %v", better, err)
	}
}
