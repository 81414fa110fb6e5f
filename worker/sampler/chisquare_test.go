package sampler

import (
	"math"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// TestChiSquare draws many tokens and compares their counts with the exact
// distribution, which is worked out with the reference's slow sums.
func TestChiSquare(t *testing.T) {
	z := []float32{2, 1, 0.5, 0, -0.5, -1, 1, 3}
	// Ids 7, 0, 5 stand in the prompt, 7 twice, 1 and 6 in the answer.
	history, promptLen := []int32{7, 0, 5, 7, 1, 7, 6}, 3
	bias := []sampling.Bias{{ID: 3, Value: 2.5}, {ID: 7, Value: -1.5}}
	tests := []struct {
		name string
		p    sampling.Params
		keep int // ids that may be drawn
	}{
		{"plain", sampling.Params{Temperature: 1}, 8},
		{"hot", sampling.Params{Temperature: 10, TopP: 1}, 8},
		{"cold", sampling.Params{Temperature: 0.5, TopP: 1}, 8},
		{"top-k with a tie at the edge", sampling.Params{Temperature: 1, TopP: 1, TopK: 3}, 3},
		// e^(z-3): 1, .37, .135, .135, ... of a total of 1.83: .55, .75, .82, .90
		{"top-p", sampling.Params{Temperature: 1, TopP: 0.8}, 3},
		// of the best four, 1.64: .61, .84, .92
		{"top-k and top-p", sampling.Params{Temperature: 1, TopP: 0.8, TopK: 4}, 2},
		{"min-p", sampling.Params{Temperature: 1, MinP: 0.1}, 4},
		{"min-p, hot", sampling.Params{Temperature: 4, MinP: 0.5}, 5},
		{"min-p and top-k", sampling.Params{Temperature: 1, MinP: 0.1, TopK: 3}, 3},
		{"min-p and top-p", sampling.Params{Temperature: 1, MinP: 0.2, TopP: 0.99}, 2},
		{"min-p, top-k and top-p", sampling.Params{Temperature: 2, MinP: 0.3, TopK: 6, TopP: 0.95}, 4},
		{"repetition", sampling.Params{Temperature: 1, RepetitionPenalty: 1.8}, 8},
		{"repetition wanted", sampling.Params{Temperature: 1, RepetitionPenalty: 0.6}, 8},
		{"presence", sampling.Params{Temperature: 1, PresencePenalty: 1.2}, 8},
		{"frequency", sampling.Params{Temperature: 1, FrequencyPenalty: 0.7}, 8},
		{"frequency wanted", sampling.Params{Temperature: 1, FrequencyPenalty: -0.7}, 8},
		{"bias", sampling.Params{Temperature: 1, LogitBias: bias}, 8},
		{"forbidden by bias", sampling.Params{Temperature: 1, LogitBias: []sampling.Bias{{ID: 7, Value: -100}}}, 7},
		{"minimum not reached", sampling.Params{Temperature: 1, MinTokens: 5, StopIDs: []int32{7, 2}}, 6},
		{"minimum reached", sampling.Params{Temperature: 1, MinTokens: 4, StopIDs: []int32{7, 2}}, 8},
		{"all penalties", sampling.Params{Temperature: 1, RepetitionPenalty: 1.3, PresencePenalty: 0.5, FrequencyPenalty: 0.25}, 8},
		{"penalties reorder for top-k", sampling.Params{Temperature: 1, FrequencyPenalty: 1.5, TopK: 2}, 2},
		{"everything", sampling.Params{Temperature: 1.5, RepetitionPenalty: 1.3, PresencePenalty: 0.5, FrequencyPenalty: 0.25,
			LogitBias: bias, MinTokens: 9, StopIDs: []int32{0}, TopK: 6, TopP: 0.9, MinP: 0.18}, 4},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			const n = 30000
			y := adjusted(z, &tc.p, history, promptLen)
			ids := candidateIDs(y, &tc.p)
			total := 0.0
			weight := map[int32]float64{}
			for _, id := range ids {
				weight[id] = math.Exp(float64(y[id]) / float64(tc.p.Temperature))
				if total += weight[id]; weight[id] < 1e-30 {
					delete(weight, id) // banned
				}
			}
			if len(weight) != tc.keep {
				t.Errorf("candidates %v of %v, want %d", weight, y, tc.keep)
			}
			q := Sequence{Params: &tc.p, PromptLen: int32(promptLen), Counts: NewCounts(len(z), promptLen)}
			q.Counts.Push(history...)
			count := map[int32]int{}
			var s Sampler
			for i := range n {
				out := step.Out{Position: int32(len(history))}
				tc.p.Seed = uint64(i)
				s.Next(z, &q, &nothing, &out)
				count[out.Token]++
			}
			chi := 0.0
			for id, w := range weight {
				want := n * w / total
				d := float64(count[id]) - want
				chi += d * d / want
				delete(count, id)
			}
			if len(count) != 0 {
				t.Errorf("drawn outside the candidates: %v", count)
			}
			if limit := 30.0; chi > limit { // at most 7 degrees of freedom: beyond 1e-4
				t.Errorf("chi-square %.1f", chi)
			}
		})
	}
}
