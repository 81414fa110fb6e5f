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
}

// Sample fills out from the raw logits z [V]. The caller has set out.Row and
// out.Position; row says which features and alternatives are wanted, and model
// keys the draw. Slices of out are reused; Hidden is not touched.
func (s *Sampler) Sample(z []float32, p *sampling.Params, model uint8, row *step.Row, out *step.Out) {
	*out = step.Out{Row: out.Row, Position: out.Position, Top: out.Top[:0], Hidden: out.Hidden, Logits: out.Logits[:0]}
	if row.Want&step.FLogits != 0 {
		out.Logits = append(out.Logits, z...)
	}
	first, margin, ok := scan(z)
	if !ok {
		out.Flags |= step.FlagNaN
		return
	}
	out.Token, out.Margin = first, margin
	if !p.Greedy() {
		stream := philox.Stream{Seed: p.Seed, Position: uint32(out.Position), Model: model, Purpose: philox.Token}
		out.Token = s.draw(z, first, p, stream)
	}
	features(z, first, row, out)
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

// features fills what the row wants from raw logits at temperature 1.
func features(z []float32, first int32, row *step.Row, out *step.Out) {
	top := max(int(row.Logprobs), 0)
	if row.Want&step.FTopK != 0 {
		top = max(top, int(row.TopK))
	}
	if row.Want&step.FEntropy == 0 && row.Logprobs < 0 && top == 0 {
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
	if row.Want&step.FEntropy != 0 {
		out.Entropy = float32(max(math.Log(sum)-moment/sum, 0))
		out.LogV = float32(math.Log(float64(len(z))))
	}
	if row.Logprobs >= 0 {
		out.Logprob = float32(float64(z[out.Token]) - lse)
	}
	out.Top = largest(z, min(top, len(z)), out.Top)
	for i := range out.Top {
		out.Top[i].Logprob = float32(float64(out.Top[i].Logit) - lse)
	}
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
