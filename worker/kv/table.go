package kv

import "fmt"

// Entry is one new entry of a page table: positions
// [Index·pageSize, (Index+1)·pageSize) live in Page.
type Entry struct {
	Index, Page int32
}

// Table is the page table of one sequence. The zero value is not usable; see NewTable.
// Invariant: pages[i] holds positions [i·pageSize, (i+1)·pageSize), with no gap.
type Table struct {
	pool  *Pool
	pages []int32
	// promised is the number of pages reserved in the pool for this table and
	// not allocated yet.
	promised int
}

// NewTable makes an empty table over the pages of pool.
func NewTable(pool *Pool) *Table { return &Table{pool: pool} }

// Pages returns the page numbers by index. The caller must not change them;
// they are valid until the next call that changes the table.
func (t *Table) Pages() []int32 { return t.pages[:len(t.pages):len(t.pages)] }

// Promised returns the number of pages that are reserved but not allocated.
func (t *Table) Promised() int { return t.promised }

// Reserve promises pages for a total of n positions, those held included.
// It fails with ErrNoPages and then changes nothing. It never shrinks a promise.
func (t *Table) Reserve(n int) error {
	more := t.pool.PagesFor(n) - len(t.pages) - t.promised
	if more <= 0 {
		return nil
	}
	if err := t.pool.Reserve(more); err != nil {
		return err
	}
	t.promised += more
	return nil
}

// Grow allocates pages until n positions are covered and appends the new
// entries to dst. It allocates all that is missing or nothing: ErrNotReserved
// if the promise is too small, ErrNoPages if the pages are still in quarantine.
func (t *Table) Grow(n int, dst []Entry) ([]Entry, error) {
	missing := t.pool.PagesFor(n) - len(t.pages)
	if missing <= 0 {
		return dst, nil
	}
	if missing > t.promised {
		return dst, fmt.Errorf("%w: want %d pages, %d promised", ErrNotReserved, missing, t.promised)
	}
	if missing > len(t.pool.free) {
		return dst, fmt.Errorf("%w: want %d, %d free", ErrNoPages, missing, len(t.pool.free))
	}
	for range missing {
		page, err := t.pool.Alloc()
		if err != nil {
			return dst, err // not reached: both conditions were checked above
		}
		t.promised--
		dst = append(dst, Entry{int32(len(t.pages)), page})
		t.pages = append(t.pages, page)
	}
	return dst, nil
}

// Truncate keeps the pages of the first n positions and frees the others. The
// freed pages stay promised to this table, so that it may grow again.
func (t *Table) Truncate(n int) {
	keep := t.pool.PagesFor(n)
	if keep >= len(t.pages) {
		return
	}
	gone := t.pages[keep:]
	t.pool.Free(gone...)
	t.pool.reserved += len(gone)
	t.promised += len(gone)
	t.pages = t.pages[:keep]
}

// Release frees all pages and takes back the promise. The table is empty
// afterwards and may be used again.
func (t *Table) Release() {
	t.pool.Free(t.pages...)
	t.pool.Unreserve(t.promised)
	t.pages, t.promised = nil, 0
}
