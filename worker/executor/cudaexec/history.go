package cudaexec

import (
	"math"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/cuda/kernels"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// tally is how often an id stands in a sequence.
type tally struct{ id, total, answer int32 }

// history counts the ids of a sequence for penalties. It follows the sequence up and down: what is cut leaves no trace.
type history struct {
	promptLen int
	ids       []int32 // of positions [0, len)
	// tallies has one for each different id, in any order: a step copies them all, which took a hundred times as long from a map.
	tallies []tally
	at      map[int32]int32 // id to index in tallies
}

// reset makes the sequence empty.
func (h *history) reset(promptLen int) {
	h.promptLen, h.ids, h.tallies = promptLen, h.ids[:0], h.tallies[:0]
	if h.at == nil {
		h.at = map[int32]int32{}
	}
	clear(h.at)
}

// answer is what an id at a position adds to those of the answer.
func (h *history) answer(position int) int32 {
	if position >= h.promptLen {
		return 1
	}
	return 0
}

func (h *history) push(ids ...int32) {
	for _, id := range ids {
		i, ok := h.at[id]
		if !ok {
			i = int32(len(h.tallies))
			h.at[id] = i
			h.tallies = append(h.tallies, tally{id: id})
		}
		h.tallies[i].total++
		h.tallies[i].answer += h.answer(len(h.ids))
		h.ids = append(h.ids, id)
	}
}

// cut drops the ids from a position on.
func (h *history) cut(length int) {
	for n := len(h.ids) - 1; n >= length; n-- {
		id := h.ids[n]
		i := h.at[id]
		t := &h.tallies[i]
		t.total--
		t.answer -= h.answer(n)
		if t.total == 0 { // the last one takes its place
			last := len(h.tallies) - 1
			*t = h.tallies[last]
			h.at[t.id] = i
			h.tallies = h.tallies[:last]
			delete(h.at, id)
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
	// list is a part of the mapped array; only entries [0, n) are written. Reading it back is fine, it is cached memory.
	list []kernels.Adjust
	n    int
	seen *history        // whose tallies the list begins with, in their order; nil for none
	at   map[int32]int32 // other ids to index in list
}

// entry returns the entry of an id that the model has, else nil.
func (a *adjuster) entry(id int32, vocab int) *kernels.Adjust {
	if id < 0 || int(id) >= vocab {
		return nil
	}
	if a.seen != nil {
		if i, ok := a.seen.at[id]; ok {
			return &a.list[i]
		}
	}
	i, ok := a.at[id]
	if !ok {
		i = int32(a.n)
		a.at[id] = i
		a.list[i] = kernels.Adjust{ID: id}
		a.n++
	}
	return &a.list[i]
}

// start begins a list.
func (a *adjuster) start(list []kernels.Adjust) {
	if a.at == nil {
		a.at = map[int32]int32{}
	}
	clear(a.at)
	a.list, a.n, a.seen = list, 0, nil
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
		for i, t := range h.tallies { // ids that were fed, so the model has them
			list[i] = kernels.Adjust{ID: t.id, Kind: kernels.AdjustSeen, N: t.answer}
		}
		a.seen, a.n = h, len(h.tallies)
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
