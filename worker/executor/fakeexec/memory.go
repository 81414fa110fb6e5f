package fakeexec

import (
	"fmt"

	"github.com/tokenrouter/tokenrouter/worker/executor"
)

// cell is one token slot of a page: who wrote it, for which position, which id.
type cell struct {
	gen      uint64 // generation of the sequence, 0 if never written
	position int32
	id       int32
}

// page is what the fake knows about a page besides its contents.
type page struct {
	gen     uint64          // generation whose table has the page, 0 if none
	lastGen uint64          // generation that used it last
	lastUse executor.Ticket // last step that read or wrote it
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
	if old := q.table[index]; old >= 0 && old != number {
		m.unref(old)
	}
	q.table[index] = number
	m.pages[number].gen = q.gen
}

// unref says that no table has the page any more; -1 is ignored.
func (m *memory) unref(number int32) {
	if number >= 0 {
		m.pages[number].gen = 0
	}
}

func (m *memory) cell(q *sequence, position int) *cell {
	number := int(q.table[position/m.pageSize])
	return &m.cells[number*m.pageSize+position%m.pageSize]
}

func (m *memory) write(q *sequence, position int, id int32, t executor.Ticket) {
	*m.cell(q, position) = cell{q.gen, int32(position), id}
}

// use notes that step t reads or writes the pages of positions [0, n).
func (m *memory) use(q *sequence, n int, t executor.Ticket) {
	for i := 0; i*m.pageSize < n; i++ {
		p := &m.pages[q.table[i]]
		p.lastGen, p.lastUse = q.gen, t
	}
}

// checkContext verifies that the pages of the sequence still hold what it wrote.
func (m *memory) checkContext(q *sequence) error {
	for position, id := range q.ids {
		i := position / m.pageSize
		if i >= len(q.table) || q.table[i] < 0 {
			return fmt.Errorf("position %d has no page", position)
		}
		want := cell{q.gen, int32(position), id}
		if got := *m.cell(q, position); got != want {
			return fmt.Errorf("page %d lost position %d: holds position %d of generation %d, want generation %d",
				q.table[i], position, got.position, got.gen, q.gen)
		}
	}
	return nil
}
