package cudaexec

import (
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/cuda/kernels"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// plainAdjusts is fill, plainly: one entry for each id that anything applies to.
func plainAdjusts(p *sampling.Params, ids []int32, promptLen, position, vocab int) map[int32]kernels.Adjust {
	out := map[int32]kernels.Adjust{}
	change := func(id int32, f func(*kernels.Adjust)) {
		if id < 0 || int(id) >= vocab {
			return
		}
		e := out[id]
		e.ID = id
		f(&e)
		out[id] = e
	}
	if p.Penalizes() {
		for at, id := range ids {
			change(id, func(e *kernels.Adjust) {
				e.Kind |= kernels.AdjustSeen
				if at >= promptLen {
					e.N++
				}
			})
		}
	}
	for _, b := range p.LogitBias {
		change(b.ID, func(e *kernels.Adjust) { e.Bias = b.Value })
	}
	if p.MinTokens > 0 && position-promptLen < int(p.MinTokens) {
		for _, id := range p.StopIDs {
			change(id, func(e *kernels.Adjust) { e.Kind |= kernels.AdjustBanned })
		}
	}
	return out
}

// A history that goes up and down gives the same entries as counting all ids again, each id once.
func TestHistoryFollows(t *testing.T) {
	const vocab, promptLen = 12, 7
	rng := rand.New(rand.NewPCG(4, 5))
	bias := []sampling.Bias{{ID: 3, Value: 1}, {ID: 11, Value: -2}}
	for name, p := range map[string]sampling.Params{
		"penalties": {PresencePenalty: 1}, "bias": {LogitBias: bias}, "stops": {MinTokens: 9, StopIDs: []int32{3, 5, 99, -1}},
		"all": {RepetitionPenalty: 2, LogitBias: bias, MinTokens: 9, StopIDs: []int32{3, 5, 99, -1}},
	} {
		var h history
		var a adjuster
		h.reset(promptLen)
		var ids []int32
		for range 2000 {
			switch rng.IntN(4) {
			case 0:
				n := rng.IntN(len(ids) + 1)
				ids = ids[:n]
				h.cut(n)
			case 1:
				if rng.IntN(20) == 0 {
					ids = ids[:0]
					h.reset(promptLen)
				}
			default:
				if len(ids) > 40 {
					continue
				}
				id := rng.Int32N(vocab)
				ids = append(ids, id)
				h.push(id)
			}
			list := make([]kernels.Adjust, adjusts(&p, len(h.tallies)))
			got := map[int32]kernels.Adjust{}
			n := a.fill(list, &p, &h, promptLen, len(ids), vocab)
			for _, e := range list[:n] {
				got[e.ID] = e
			}
			if want := plainAdjusts(&p, ids, promptLen, len(ids), vocab); len(got) != n || !maps.Equal(got, want) {
				t.Fatalf("%s after %v: %d entries %v, want %v", name, ids, n, got, want)
			}
		}
	}
}

// A mixture's entries are its ids' probabilities times what is left of the weight, each id once.
func TestMixtureEntries(t *testing.T) {
	var a adjuster
	list := make([]kernels.Adjust, 5)
	m := &step.Mixture{Weight: 0.25, Entries: []step.TopEntry{{ID: 4}, {ID: 2, Logprob: -1000}, {ID: 4}, {ID: 1}}}
	if n := a.mix(list, m, 10); n != 2 || list[0].ID != 4 || list[0].Bias != 1.5 || list[1].ID != 1 || list[1].Bias != 0.75 {
		t.Errorf("%d entries %v", n, list[:n])
	}
	m.Weight = 1
	if n := a.mix(list, m, 10); n != 0 {
		t.Errorf("%d entries of a mixture with nothing in it", n)
	}
}
