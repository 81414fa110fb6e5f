package cudaexec

import (
	"math"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/cuda/kernels"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// tally is how often an id stands in a sequence.
type tally struct{ total, answer int32 }

// history counts the ids of a sequence for penalties. It follows the sequence up and down: what is cut leaves no trace.
type history struct {
	promptLen int
	ids       []int32 // of positions [0, len)
	counts    map[int32]tally
}

// reset makes the sequence empty.
func (h *history) reset(promptLen int) {
	h.promptLen, h.ids = promptLen, h.ids[:0]
	if h.counts == nil {
		h.counts = map[int32]tally{}
	}
	clear(h.counts)
}

// one is what an id at a position adds.
func (h *history) one(position int) tally {
	if position >= h.promptLen {
		return tally{1, 1}
	}
	return tally{1, 0}
}

func (h *history) push(ids ...int32) {
	for _, id := range ids {
		t, o := h.counts[id], h.one(len(h.ids))
		h.counts[id] = tally{t.total + o.total, t.answer + o.answer}
		h.ids = append(h.ids, id)
	}
}

// cut drops the ids from a position on.
func (h *history) cut(length int) {
	for n := len(h.ids) - 1; n >= length; n-- {
		id, o := h.ids[n], h.one(n)
		t := h.counts[id]
		if t = (tally{t.total - o.total, t.answer - o.answer}); t.total == 0 {
			delete(h.counts, id)
		} else {
			h.counts[id] = t
		}
		h.ids = h.ids[:n]
	}
}

// adjusts is the size of the largest list that a sequence with these parameters can need at a position, given how many
// ids are counted.
func adjusts(p *sampling.Params, counted int) int {
	n := len(p.LogitBias)
	if p.Penalizes() {
		n += counted
	}
	if p.MinTokens > 0 {
		n += len(p.StopIDs)
	}
	return n
}

// mixSize returns the size of the largest list that a row's mixture can need for each of its sampled positions.
func mixSize(m *step.Mixture) int {
	if m == nil {
		return 0
	}
	return len(m.Entries)
}

// adjuster merges what applies to each id into one entry, so that the device may work on all of them at once.
type adjuster struct {
	at map[int32]int // id to index in list
	// list is a part of the mapped array; only entries [0, n) are written. Reading it back is fine, it is cached memory.
	list []kernels.Adjust
	n    int
}

// entry returns the entry of an id that the model has, else nil.
func (a *adjuster) entry(id int32, vocab int) *kernels.Adjust {
	if id < 0 || int(id) >= vocab {
		return nil
	}
	i, ok := a.at[id]
	if !ok {
		i = a.n
		a.at[id] = i
		a.list[i] = kernels.Adjust{ID: id}
		a.n++
	}
	return &a.list[i]
}

// start begins a list.
func (a *adjuster) start(list []kernels.Adjust) {
	if a.at == nil {
		a.at = map[int32]int{}
	}
	clear(a.at)
	a.list, a.n = list, 0
}

// mix writes what a mixture adds to the probabilities of its ids into list, which is long enough (see mixSize). It returns the
// number of ids. The mixture has been checked.
func (a *adjuster) mix(list []kernels.Adjust, m *step.Mixture, vocab int) int {
	a.start(list)
	for _, t := range m.Entries {
		// Both factors may be tiny, so they are multiplied in float64. What float32 rounds to nothing is below all weights.
		mass := float32((1 - float64(m.Weight)) * math.Exp(float64(t.Logprob)))
		if mass == 0 {
			continue
		}
		if e := a.entry(t.ID, vocab); e != nil {
			e.Bias += mass
		}
	}
	return a.n
}

// fill writes the adjustments for the token that follows the ids of h, at a position, into list, which is long enough (see
// adjusts). It returns their number.
func (a *adjuster) fill(list []kernels.Adjust, p *sampling.Params, h *history, promptLen, position, vocab int) int {
	a.start(list)
	if p.Penalizes() {
		for id, t := range h.counts {
			if e := a.entry(id, vocab); e != nil {
				e.Kind, e.N = kernels.AdjustSeen, t.answer
			}
		}
	}
	for _, b := range p.LogitBias {
		if e := a.entry(b.ID, vocab); e != nil {
			e.Bias = b.Value
		}
	}
	if p.MinTokens > 0 && position < math.MaxInt32 && position-promptLen < int(p.MinTokens) {
		for _, id := range p.StopIDs {
			if e := a.entry(id, vocab); e != nil {
				e.Kind |= kernels.AdjustBanned
			}
		}
	}
	return a.n
}
