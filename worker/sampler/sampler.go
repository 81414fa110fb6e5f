package sampler

import (
	"math"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/internal/philox"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// Sampler holds scratch memory. The zero value is ready. It must not be used by
// two goroutines at once.
type Sampler struct {
	order   []int32   // ids, as a heap and then sorted candidates
	weights []float64 // e of the candidates
	saved   []saved   // logits before adjust
	mixed   []float32 // logarithms of a mixture
	masses  []float64 // its probabilities
}

// Sequence is what a sequence's draws depend on besides logits and position.
type Sequence struct {
	Params *sampling.Params
	// Model keys the draws.
	Model uint8
	// PromptLen is the number of prompt ids.
	PromptLen int32
	// Counts has the ids of all positions before the drawn one. It may be nil if
	// Params does not penalize.
	Counts *Counts
}

// Sample is Next for a sequence with an empty history.
func (s *Sampler) Sample(z []float32, p *sampling.Params, model uint8, row *step.Row, out *step.Out) {
	s.Next(z, &Sequence{Params: p, Model: model}, row, out)
}

// Next fills out from the raw logits z [V] with the next token of a sequence. The
// caller has set out.Row and out.Position; row says which features and
// alternatives are wanted. Slices of out are reused; Hidden is not touched. z is
// changed meanwhile and restored to the last bit.
func (s *Sampler) Next(z []float32, q *Sequence, row *step.Row, out *step.Out) {
	*out = step.Out{Row: out.Row, Position: out.Position, Top: out.Top[:0], Hidden: out.Hidden, Logits: out.Logits[:0]}
	if row.Want&step.FLogits != 0 {
		out.Logits = append(out.Logits, z...)
	}
	first, margin, ok := scan(z)
	if !ok {
		out.Flags |= step.FlagNaN
		return
	}
	out.Margin = margin
	switch {
	case row.Mix != nil:
		y := s.mix(z, row.Mix)
		if q.Params.Adjusts() {
			s.adjust(y, q, out.Position)
		}
		best, _, left := scan(y)
		if !left {
			out.Flags |= step.FlagNaN
			return
		}
		out.Token = s.choose(y, best, q, out.Position)
	case q.Params.Adjusts():
		s.adjust(z, q, out.Position)
		best, _, left := scan(z)
		if left {
			out.Token = s.choose(z, best, q, out.Position)
		}
		s.restore(z)
		if !left {
			out.Flags |= step.FlagNaN
			return
		}
	default:
		out.Token = s.choose(z, first, q, out.Position)
	}
	top := max(int(row.Logprobs), 0)
	if row.Want&step.FTopK != 0 {
		top = max(top, int(row.TopK))
	}
	features(z, first, row.Want&step.FEntropy != 0, row.Logprobs >= 0, top, out)
}

// choose returns the token for adjusted logits. first is the id of the largest.
func (s *Sampler) choose(z []float32, first int32, q *Sequence, position int32) int32 {
	if q.Params.Greedy() {
		return first
	}
	return s.draw(z, first, q.Params, philox.Stream{Seed: q.Params.Seed, Position: uint32(position), Model: q.Model, Purpose: philox.Token})
}

// Score fills out with the log-probability of a given id and top alternatives,
// from the raw logits z [V].
func (s *Sampler) Score(z []float32, id int32, top int, out *step.Out) {
	*out = step.Out{Row: out.Row, Position: out.Position, Token: id, Given: true, Top: out.Top[:0], Hidden: out.Hidden[:0], Logits: out.Logits[:0]}
	first, _, ok := scan(z)
	if !ok {
		out.Flags |= step.FlagNaN
		return
	}
	features(z, first, false, true, top, out)
}

// scan returns the id of the largest logit, the lowest on ties, and its distance
// to the second largest (+Inf if there is none).
func scan(z []float32) (first int32, margin float32, ok bool) {
	first = -1
	a, b := float32(math.Inf(-1)), float32(math.Inf(-1))
	for i, v := range z {
		if v > b {
			if v > a {
				first, a, b = int32(i), v, a
			} else {
				b = v
			}
		} else if v != v {
			return 0, 0, false
		}
	}
	return first, a - b, first >= 0 && a <= math.MaxFloat32
}

// features fills what is wanted, from raw logits at temperature 1.
func features(z []float32, first int32, entropy, logprob bool, top int, out *step.Out) {
	if !entropy && !logprob && top == 0 {
		return
	}
	m := float64(z[first])
	var sum, moment float64
	for _, v := range z {
		if d := float64(v) - m; d > -745 { // below, exp is 0 in float64
			e := math.Exp(d)
			sum += e
			moment += d * e
		}
	}
	lse := m + math.Log(sum)
	if entropy {
		out.Entropy = float32(max(math.Log(sum)-moment/sum, 0))
		out.LogV = float32(math.Log(float64(len(z))))
	}
	if logprob {
		out.Logprob = float32(float64(z[out.Token]) - lse)
	}
	out.Top = largest(z, min(top, len(z)), out.Top)
	for i := range out.Top {
		out.Top[i].Logprob = float32(float64(out.Top[i].Logit) - lse)
	}
}

// Largest appends the n largest logits to dst, descending, lowest id first on ties.
// Their log-probabilities stay 0.
func Largest(z []float32, n int, dst []step.TopEntry) []step.TopEntry {
	return largest(z, min(n, len(z)), dst)
}

// largest appends the n largest logits to dst, descending, lowest id first on
// ties. A sorted list and insertion are enough: for random logits it inserts
// about n·ln(V/n) times.
func largest(z []float32, n int, dst []step.TopEntry) []step.TopEntry {
	if n == 0 {
		return dst
	}
	for i, v := range z {
		if len(dst) == n {
			if v <= dst[n-1].Logit {
				continue
			}
			dst = dst[:n-1]
		}
		at := len(dst)
		dst = append(dst, step.TopEntry{})
		for at > 0 && dst[at-1].Logit < v {
			dst[at] = dst[at-1]
			at--
		}
		dst[at] = step.TopEntry{ID: int32(i), Logit: v}
	}
	return dst
}
