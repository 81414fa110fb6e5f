package idmap

import (
	"fmt"
	"slices"

	"github.com/tokenrouter/tokenrouter/api/handoff"
	"github.com/tokenrouter/tokenrouter/api/sampling"
)

// Receive makes a frame's ids the collaborator's own, in place: tokens, the alternatives
// of log-probabilities, and on a first visit stop ids and biases. It must come before
// the frame is compared with anything, so that a repeated one is equal to itself. An
// error wraps ErrNoCounterpart; the frame is spoilt then and must be rejected.
func (m *Map) Receive(f *handoff.Frame) error {
	if m == nil {
		return nil
	}
	for i, t := range f.Tokens {
		id, ok := m.Own(t.ID)
		if !ok {
			return fmt.Errorf("%w: %d at position %d", ErrNoCounterpart, t.ID, int(f.Base)+i)
		}
		f.Tokens[i].ID = id
	}
	for i := range f.Logprobs {
		f.Logprobs[i].Top = translate(f.Logprobs[i].Top, m.Own)
	}
	if f.First != nil {
		m.params(&f.First.Sampling)
	}
	return nil
}

// neverBias is the bias of tokens that must not be sampled.
const neverBias = -sampling.MaxBias

// params translates sampling parameters. A stop id or a bias of a token that is not
// here has nothing to do here.
func (m *Map) params(p *sampling.Params) {
	ends := len(m.entryEnds) > 0
	for _, id := range m.entryEnds {
		ends = ends && slices.Contains(p.StopIDs, id)
	}
	var stops []int32
	for _, id := range p.StopIDs {
		if own, ok := m.Own(id); ok {
			stops = append(stops, own)
		}
	}
	if ends { // not ignored: then the collaborator's own ends count as well
		stops = append(stops, m.ownEnds...)
	}
	slices.Sort(stops)
	p.StopIDs = slices.Compact(stops)
	var bias []sampling.Bias
	for _, b := range p.LogitBias {
		if own, ok := m.Own(b.ID); ok {
			bias = append(bias, sampling.Bias{ID: own, Value: b.Value})
		}
	}
	for _, id := range m.onlyOwn {
		bias = append(bias, sampling.Bias{ID: id, Value: neverBias})
	}
	slices.SortFunc(bias, func(a, b sampling.Bias) int { return int(a.ID) - int(b.ID) })
	p.LogitBias = bias
}

// Send makes a frame's ids the entry's. What the frame's slices point to is not changed,
// since log-probabilities may be sent again. An error wraps ErrNoCounterpart.
func (m *Map) Send(f *handoff.Frame) error {
	if m == nil {
		return nil
	}
	copied := false
	for i, t := range f.Tokens {
		id, ok := m.Entry(t.ID)
		if !ok {
			return fmt.Errorf("%w: %d at position %d", ErrNoCounterpart, t.ID, int(f.Base)+i)
		}
		if id == t.ID {
			continue
		}
		if !copied {
			f.Tokens, copied = slices.Clone(f.Tokens), true
		}
		f.Tokens[i].ID = id
	}
	if len(f.Logprobs) == 0 {
		return nil
	}
	f.Logprobs = slices.Clone(f.Logprobs)
	for i := range f.Logprobs {
		f.Logprobs[i].Top = translate(f.Logprobs[i].Top, m.Entry)
	}
	return nil
}

// translate returns the alternatives with other ids, less those that have none.
func translate(top []handoff.TopEntry, to func(int32) (int32, bool)) []handoff.TopEntry {
	same := func(t handoff.TopEntry) bool { id, ok := to(t.ID); return ok && id == t.ID }
	if !slices.ContainsFunc(top, func(t handoff.TopEntry) bool { return !same(t) }) {
		return top
	}
	out := make([]handoff.TopEntry, 0, len(top))
	for _, t := range top {
		if id, ok := to(t.ID); ok {
			out = append(out, handoff.TopEntry{ID: id, Logprob: t.Logprob})
		}
	}
	return out
}
