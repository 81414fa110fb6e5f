package kv

import "fmt"

// Entry is one new entry of a page table: positions
// [Index·pageSize, (Index+1)·pageSize) live in Page.
type Entry struct {
	Index, Page int32
}

// Table is the page table of one sequence. The zero value is not usable; see NewTable.
// Invariant: pages[i] holds positions [i·pageSize, (i+1)·pageSize), with no gap.
// Pages that the cache can find, or that other tables have too, are never
// written: they are full, and Truncate drops those that it would cut.
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

// Gain returns how many pages Release would give back for sure: promises, and
// pages that no other table has.
func (t *Table) Gain() int {
	n := t.promised
	for _, page := range t.pages {
		if t.pool.refs[page] == 1 {
			n++
		}
	}
	return n
}

// Claim fills an empty table with the pages of the longest prefix of keys that
// the cache has, and promises pages for a total of n positions. It returns the
// number of pages found. Either all is done or nothing, with ErrNoPages. The
// keys must name pages of the first n positions. It panics if the table is not
// empty, which is a bug of the caller.
func (t *Table) Claim(keys []Key, n int) (found int, err error) {
	if len(t.pages) > 0 || t.promised > 0 {
		panic("kv: claim by a table that is not empty")
	}
	p := t.pool
	total := p.PagesFor(n)
	keys = keys[:min(len(keys), total)]
	found, held := p.match(keys)
	pinned := 0
	for _, key := range keys[:found] {
		if page := p.cache.index[key]; p.state[page] == pageCached && p.cache.pages[page].tag > p.completed {
			pinned++ // can be read now, though not be written
		}
	}
	need := total - held
	if now := need - pinned; now > 0 && now > p.Available() || need > 0 && need > p.Coming() {
		return 0, fmt.Errorf("%w: want %d, %d available", ErrNoPages, now, p.Available())
	}
	for _, key := range keys[:found] {
		page := p.cache.index[key]
		if p.state[page] == pageCached {
			p.cache.unlink(page, p.completed)
			p.state[page] = pageHeld
			p.held++
		}
		p.refs[page]++
		t.pages = append(t.pages, page)
	}
	t.promised = total - found
	p.reserved += t.promised
	p.cache.queries += uint64(len(keys))
	p.cache.hits += uint64(found)
	return found, nil
}

// Publish makes the first len(keys) pages findable by their keys. They must be
// full, and written by steps that have completed.
func (t *Table) Publish(keys []Key) {
	for i := min(len(keys), len(t.pages)) - 1; i >= 0; i-- {
		t.pool.publish(t.pages[i], keys[i])
	}
}

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
	if usable := len(t.pool.free) + t.pool.cache.evictable(); missing > usable {
		return dst, fmt.Errorf("%w: want %d, %d free or cached", ErrNoPages, missing, usable)
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

// Truncate keeps the pages of the first n positions and drops the others. A
// page that would be cut is dropped too if it must not be written. It returns
// the number of positions whose pages were kept, at most n. Dropped pages stay
// promised to this table, so that it may grow again, except those that other
// tables still have.
func (t *Table) Truncate(n int) (kept int) {
	p := t.pool
	keep := p.PagesFor(n)
	if keep > len(t.pages) {
		return n
	}
	if keep > 0 && n%p.pageSize != 0 && (p.refs[t.pages[keep-1]] > 1 || p.cache.indexed(t.pages[keep-1])) {
		keep--
		n = keep * p.pageSize
	}
	for len(t.pages) > keep {
		page := t.pages[len(t.pages)-1]
		t.pages = t.pages[:len(t.pages)-1]
		if p.drop(page) {
			p.reserved++
			t.promised++
		}
	}
	return max(n, 0)
}

// Release frees all pages and takes back the promise. The table is empty
// afterwards and may be used again.
func (t *Table) Release() { t.Retire(nil) }

// Retire is Publish and Release at once: the first len(keys) pages stay in the
// cache. The last page counts as used longest ago, so that a prefix is evicted
// from its end.
func (t *Table) Retire(keys []Key) {
	for i := len(t.pages) - 1; i >= 0; i-- {
		if i < len(keys) {
			t.pool.publish(t.pages[i], keys[i])
		}
		t.pool.drop(t.pages[i])
	}
	t.pool.Unreserve(t.promised)
	t.pages, t.promised = nil, 0
}
