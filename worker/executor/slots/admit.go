package slots

import (
	"fmt"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// Admit checks all of a batch and applies its patches. After an error, which says
// what is wrong, nothing of the batch stays; Undo does the same for a caller with
// checks of its own. Refused wraps either's error.
//
// The caller then runs the batch, and moves the sequences on.
func (s *Set) Admit(b *step.Batch) error {
	err := s.admit(b)
	if err != nil {
		s.Undo()
	}
	return err
}

// Undo takes back the patches of the last batch admitted, once.
func (s *Set) Undo() {
	for i := len(s.undo) - 1; i >= 0; i-- {
		u := &s.undo[i]
		if u.q.Table[u.index] = u.page; u.page < 0 {
			u.q.filled = min(u.q.filled, u.index)
		}
	}
	s.undo = s.undo[:0]
}

// Refused is the error of Launch for a batch that was not admitted.
func Refused(b *step.Batch, err error) error {
	return fmt.Errorf("%w: step %d: %w", executor.ErrBadBatch, b.Step, err)
}

func (s *Set) admit(b *step.Batch) error {
	s.undo = s.undo[:0]
	if len(b.Rows) == 0 || len(b.Rows) > s.in.MaxRows {
		return fmt.Errorf("rows: expected 1 to %d, found %d", s.in.MaxRows, len(b.Rows))
	}
	if limit := s.limits.Patches; limit > 0 && len(b.Patches) > limit {
		return fmt.Errorf("patches: expected at most %d, found %d", limit, len(b.Patches))
	}
	for i := range b.Patches {
		if err := s.patch(&b.Patches[i]); err != nil {
			return err
		}
	}
	s.mark++
	total := 0
	for i := range b.Rows {
		r := &b.Rows[i]
		if err := s.row(r); err != nil {
			return fmt.Errorf("row %d of slot %d: %w", i, r.Slot, err)
		}
		if total += len(r.Tokens); total > s.in.MaxTokens {
			return fmt.Errorf("tokens: expected at most %d in a step, found more", s.in.MaxTokens)
		}
	}
	return nil
}

func (s *Set) patch(p *step.PagePatch) error {
	q := s.At(p.Slot)
	switch {
	case q == nil:
		return fmt.Errorf("patch: slot %d is not open", p.Slot)
	case p.Index < 0 || int(p.Index) >= len(q.Table):
		return fmt.Errorf("patch of slot %d: index: expected 0 to %d, found %d", p.Slot, len(q.Table)-1, p.Index)
	case p.Page < 0 || int(p.Page) >= s.in.Pages:
		return fmt.Errorf("patch of slot %d: page: expected 0 to %d, found %d", p.Slot, s.in.Pages-1, p.Page)
	}
	s.undo = append(s.undo, undo{q, int(p.Index), q.Table[p.Index]})
	q.Table[p.Index] = p.Page
	return nil
}

func (s *Set) row(r *step.Row) error {
	q := s.At(r.Slot)
	switch {
	case q == nil:
		return fmt.Errorf("not open")
	case q.mark == s.mark:
		return fmt.Errorf("a second row of the slot")
	}
	q.mark = s.mark
	n := len(r.Tokens)
	if n == 0 || n > s.in.MaxTokens {
		return fmt.Errorf("tokens: expected 1 to %d, found %d", s.in.MaxTokens, n)
	}
	if err := s.start(r, q); err != nil {
		return err
	}
	end := int(r.Start) + n
	if end > s.in.MaxContext {
		return fmt.Errorf("positions: expected at most %d, found %d", s.in.MaxContext, end)
	}
	if n < 64 && r.Sample>>n != 0 {
		return fmt.Errorf("sample: expected bits below %d, found %b", n, r.Sample)
	}
	if err := s.tokens(r, q); err != nil {
		return err
	}
	// Pages stay, so what was found once need not be looked at again in each step.
	for needed := s.pages(end); q.filled < needed; q.filled++ {
		if q.Table[q.filled] < 0 {
			return fmt.Errorf("page %d of the table is missing", q.filled)
		}
	}
	if err := s.outputs(r); err != nil {
		return err
	}
	return s.given(r)
}

// start checks where the row begins: behind the valid positions or, while there are
// none, behind adopted pages. That these hold the right ids is up to the caller.
func (s *Set) start(r *step.Row, q *Sequence) error {
	adopts := q.Length == 0 && r.Start > 0 && int(r.Start)%s.in.PageSize == 0 && s.in.Features&step.FAdopt != 0
	switch {
	case r.Start != q.Length && !adopts:
		return fmt.Errorf("start: expected %d, found %d", q.Length, r.Start)
	case len(r.Prefix) > 0 && !adopts:
		return fmt.Errorf("prefix: expected none, found %d ids", len(r.Prefix))
	case len(r.Prefix) > 0 && len(r.Prefix) != int(r.Start), adopts && len(r.Prefix) == 0 && q.Penalizes:
		return fmt.Errorf("prefix: expected %d ids, found %d", r.Start, len(r.Prefix))
	}
	return s.ids("prefix", r.Prefix)
}

// tokens checks what the row feeds. A row that continues feeds what was last sampled.
func (s *Set) tokens(r *step.Row, q *Sequence) error {
	switch {
	case !r.Continue:
		return s.ids("token", r.Tokens)
	case s.in.Features&step.FContinue == 0:
		return fmt.Errorf("continue: not offered")
	case len(r.Tokens) != 1:
		return fmt.Errorf("continue: expected 1 token, found %d", len(r.Tokens))
	case !q.Sampled:
		return fmt.Errorf("continue: the slot's last position was not sampled")
	case q.Penalizes:
		return fmt.Errorf("continue: the sequence penalizes ids, which must be known")
	}
	return nil
}

func (s *Set) ids(what string, ids []int32) error {
	for _, id := range ids {
		if id < 0 || int(id) >= s.in.Vocab {
			return fmt.Errorf("%s: expected 0 to %d, found %d", what, s.in.Vocab-1, id)
		}
	}
	return nil
}

// outputs checks what the row wants of its sampled positions.
func (s *Set) outputs(r *step.Row) error {
	limit := s.in.Vocab
	if s.limits.Top > 0 {
		limit = min(limit, s.limits.Top)
	}
	switch extra := r.Want &^ (s.in.Features & step.Outputs); {
	case extra != 0:
		return fmt.Errorf("features: %b is not offered", extra)
	case r.Want&step.FScore != 0 && int(r.Net) >= len(s.in.Nets):
		return fmt.Errorf("net: expected one of %d, found number %d", len(s.in.Nets), r.Net)
	case r.Want&step.FTopK != 0 && (r.TopK < 0 || int(r.TopK) > limit):
		return fmt.Errorf("top-k: expected 0 to %d, found %d", limit, r.TopK)
	case r.Logprobs < -1 || r.Logprobs > sampling.MaxLogprobs:
		return fmt.Errorf("log-probabilities: expected -1 to %d, found %d", sampling.MaxLogprobs, r.Logprobs)
	}
	return executor.CheckMix(r.Mix, &s.in)
}

// given checks the ids that the caller chose.
func (s *Set) given(r *step.Row) error {
	if len(r.Given) == 0 {
		return nil
	}
	left := len(r.Tokens) - len(r.Given) // positions that may be sampled
	switch {
	case s.in.Features&step.FGiven == 0:
		return fmt.Errorf("given: not offered")
	case left < 0:
		return fmt.Errorf("given: expected at most %d ids, found %d", len(r.Tokens), len(r.Given))
	case left < 64 && r.Sample>>left != 0:
		return fmt.Errorf("sample: expected bits below %d beside given ids, found %b", left, r.Sample)
	case r.Logprobs < 0:
		return fmt.Errorf("given: log-probabilities are not wanted")
	}
	return s.ids("given", r.Given)
}
