package fakeexec

import (
	"fmt"

	"github.com/tokenrouter/tokenrouter/worker/executor"
)

// cell is one token slot of a page. What a real cache holds for a position
// depends on the ids up to it and on nothing else, and so does a cell.
type cell struct {
	prefix   uint64 // chained hash of all ids up to the position, 0 if never written
	position int32
	id       int32
}

// chain returns the prefix of the next position; it is never 0.
func chain(prefix uint64, id int32) uint64 {
	h := (prefix ^ uint64(uint32(id)) ^ 0x9e3779b97f4a7c15) * 0xff51afd7ed558ccd
	return (h ^ h>>32) | 1
}

// page is what the fake knows about a page besides its contents.
type page struct {
	refs      int             // tables that have the page
	lastGen   uint64          // generation that used it last
	lastUse   executor.Ticket // last step that read or wrote it
	lastWrite executor.Ticket // last step that wrote it
}

// memory models the contents of all pages.
type memory struct {
	pageSize int
	pages    []page
	cells    []cell // page·pageSize + offset
}

func newMemory(pages, pageSize int) memory {
	return memory{pageSize: pageSize, pages: make([]page, pages), cells: make([]cell, pages*pageSize)}
}

// patch enters a page into a table. The batch has been checked.
func (m *memory) patch(q *sequence, index, number int32) {
	for int(index) >= len(q.table) {
		q.table = append(q.table, -1)
	}
	if old := q.table[index]; old != number {
		m.unref(old)
		m.pages[number].refs++
	}
	q.table[index] = number
}

// unref says that one table less has the page; -1 is ignored.
func (m *memory) unref(number int32) {
	if number >= 0 {
		m.pages[number].refs--
	}
}

func (m *memory) cell(q *sequence, position int) *cell {
	number := int(q.table[position/m.pageSize])
	return &m.cells[number*m.pageSize+position%m.pageSize]
}

// write appends an id at the end of the sequence.
func (m *memory) write(q *sequence, id int32, t executor.Ticket) {
	position := len(q.ids)
	q.push(id)
	*m.cell(q, position) = cell{q.prefixes[position], int32(position), id}
	m.pages[q.table[position/m.pageSize]].lastWrite = t
}

// adopt makes the first n positions valid, with the ids that their pages hold.
// The batch has been checked.
func (m *memory) adopt(q *sequence, n int) {
	for position := len(q.ids); position < n; position++ {
		q.push(m.cell(q, position).id)
	}
}

// use notes that step t reads or writes the pages of positions [0, n).
func (m *memory) use(q *sequence, n int, t executor.Ticket) {
	for i := 0; i*m.pageSize < n; i++ {
		p := &m.pages[q.table[i]]
		p.lastGen, p.lastUse = q.gen, t
	}
}

// checkContext verifies that the pages of the sequence still hold its ids.
func (m *memory) checkContext(q *sequence) error {
	for position, id := range q.ids {
		i := position / m.pageSize
		if i >= len(q.table) || q.table[i] < 0 {
			return fmt.Errorf("position %d has no page", position)
		}
		want := cell{q.prefixes[position], int32(position), id}
		if got := *m.cell(q, position); got != want {
			return fmt.Errorf("page %d lost position %d: holds position %d with id %d of context %#x, want id %d of context %#x",
				q.table[i], position, got.position, got.id, got.prefix, id, want.prefix)
		}
	}
	return nil
}

// checkAdopted verifies that pages hold a context from position 0 on, written by
// steps that have been waited for. Its ids must be those of prefix, unless that
// is empty.
func (m *memory) checkAdopted(pages, prefixIDs []int32, waited executor.Ticket) error {
	prefix := uint64(0)
	for i, number := range pages {
		if m.pages[number].lastWrite > waited {
			return fmt.Errorf("page %d is written by a step in flight", number)
		}
		for k := range m.pageSize {
			got, position := m.cells[int(number)*m.pageSize+k], int32(i*m.pageSize+k)
			prefix = chain(prefix, got.id)
			if got.prefix != prefix || got.position != position {
				return fmt.Errorf("page %d does not hold position %d of the context before it", number, position)
			}
			if len(prefixIDs) > 0 && prefixIDs[position] != got.id {
				return fmt.Errorf("page %d holds id %d at position %d, the prefix has %d", number, got.id, position, prefixIDs[position])
			}
		}
	}
	return nil
}
