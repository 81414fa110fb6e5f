package slots

import (
	"fmt"

	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// Sequence is one open slot.
type Sequence struct {
	// Length is the number of valid positions. Who has launched a step moves it on.
	Length int32
	// Table has the page of each index up to MaxContext, -1 where there is none.
	Table []int32
	// Sampled says that the last position fed was sampled, so that a row may continue
	// from it.
	Sampled bool
	// Penalizes says that the draws need all ids before them.
	Penalizes bool

	open   bool
	mark   uint64 // of the last batch with a row of the slot
	filled int    // the first so many entries of Table are pages
}

// Limits are bounds of an executor that executor.Info does not have. Zero is no bound.
type Limits struct {
	Patches int // in one step
	Top     int // of step.Row.TopK
}

// Set is the slots of one executor. It belongs to the goroutine that calls the
// executor.
type Set struct {
	in     executor.Info
	limits Limits
	all    []Sequence
	free   []step.Slot // a stack; the lowest slot is on top at first
	undo   []undo
	mark   uint64
}

// undo is a page table entry before a patch.
type undo struct {
	q     *Sequence
	index int
	page  int32
}

// New makes the slots of an executor, all closed.
func New(in executor.Info, l Limits) *Set {
	s := &Set{in: in, limits: l, all: make([]Sequence, in.MaxSlots)}
	for i := range s.all {
		s.free = append(s.free, step.Slot(in.MaxSlots-1-i))
	}
	return s
}

// Open opens a slot without pages and positions. The error is executor.ErrNoSlot.
func (s *Set) Open(penalizes bool) (step.Slot, error) {
	n := len(s.free)
	if n == 0 {
		return -1, executor.ErrNoSlot
	}
	slot := s.free[n-1]
	s.free = s.free[:n-1]
	q := &s.all[slot]
	if q.Table == nil {
		q.Table = make([]int32, s.pages(s.in.MaxContext))
	}
	for i := range q.Table {
		q.Table[i] = -1
	}
	*q = Sequence{Table: q.Table, Penalizes: penalizes, open: true}
	return slot, nil
}

// At returns an open slot's sequence, or nil. It is valid until the slot is closed.
func (s *Set) At(slot step.Slot) *Sequence {
	if slot < 0 || int(slot) >= len(s.all) || !s.all[slot].open {
		return nil
	}
	return &s.all[slot]
}

// Truncate implements executor.Executor's. Entries of the page table stay.
func (s *Set) Truncate(slot step.Slot, length int) error {
	q := s.At(slot)
	switch {
	case q == nil:
		return fmt.Errorf("truncate: slot %d is not open", slot)
	case length < 0 || length > int(q.Length):
		return fmt.Errorf("truncate slot %d: expected 0 to %d, found %d", slot, q.Length, length)
	case int32(length) != q.Length:
		q.Length, q.Sampled = int32(length), false
	}
	return nil
}

// Close closes an open slot and reports whether it was one. With keep the next
// sequence of the slot has another table: a step in flight still reads this one.
func (s *Set) Close(slot step.Slot, keep bool) bool {
	q := s.At(slot)
	if q == nil {
		return false
	}
	if q.open = false; keep {
		q.Table = nil
	}
	s.free = append(s.free, slot)
	return true
}

// pages returns how many pages hold n positions.
func (s *Set) pages(n int) int { return (n + s.in.PageSize - 1) / s.in.PageSize }
