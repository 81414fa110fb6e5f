package kv

import (
	"errors"
	"fmt"
)

// Limits of a pool.
const (
	MaxPages    = 1 << 24
	MaxPageSize = 1 << 16 // token slots
)

var (
	// ErrBadPool says that NewPool was given sizes out of range.
	ErrBadPool = errors.New("kv: bad pool size")
	// ErrNoPages says that there are not enough free pages. For a promised page
	// it passes when the steps in flight have completed.
	ErrNoPages = errors.New("kv: not enough free pages")
	// ErrNotReserved says that more pages were asked for than were promised.
	ErrNotReserved = errors.New("kv: beyond the reservation")
)

type pageState uint8

const (
	pageFree pageState = iota
	pageHeld
	pageCached
	pageQuarantined
)

// tagged is a page in quarantine until step has completed.
type tagged struct {
	page int32
	step uint64
}

// Pool has the pages of one model.
// Invariant: free + held + cached + quarantined = total, and every page is in
// one state.
type Pool struct {
	pageSize int
	state    []pageState
	refs     []int32 // tables that have the page; above 0 exactly if it is held
	free     []int32 // last in, first out: the hottest page goes out first
	// quarantine is in order of step, because launched only grows.
	quarantine []tagged
	held       int
	// reserved is the number of pages promised but not allocated.
	reserved int
	// launched and completed are the newest steps told to the pool.
	launched, completed uint64
	allocs, frees       uint64

	cache   cache
	scratch []byte // input of the hash in AppendKeys
}

// Counts is a pool's state in numbers. Allocs, Frees, Queries, Hits and
// Evictions only grow. Allocs - Frees = Held + Cached.
type Counts struct {
	// Allocs are pages handed out for new contents, Frees pages whose contents
	// were given up.
	Allocs, Frees                   uint64
	Free, Held, Cached, Quarantined int
	// Reserved is the number of pages promised but not allocated.
	Reserved int
	Total    int
	// Queries are pages that were looked for in the prefix cache, Hits those found.
	Queries, Hits uint64
	// Evictions are pages that left the cache, Indexed those that it can find
	// now: Cached, and held ones.
	Evictions uint64
	Indexed   int
}

// NewPool makes a pool of free pages, each of pageSize token slots. Pages are
// numbered from 0 and first handed out in ascending order.
func NewPool(pages, pageSize int) (*Pool, error) {
	if pages < 1 || pages > MaxPages {
		return nil, fmt.Errorf("%w: %d pages, want 1 to %d", ErrBadPool, pages, MaxPages)
	}
	if pageSize < 1 || pageSize > MaxPageSize {
		return nil, fmt.Errorf("%w: page size %d, want 1 to %d", ErrBadPool, pageSize, MaxPageSize)
	}
	p := &Pool{
		pageSize: pageSize,
		state:    make([]pageState, pages),
		refs:     make([]int32, pages),
		free:     make([]int32, pages),
		cache:    newCache(),
	}
	for i := range p.free {
		p.free[i] = int32(pages - 1 - i)
	}
	return p, nil
}

// PageSize returns the token slots in a page.
func (p *Pool) PageSize() int { return p.pageSize }

// Total returns the number of pages.
func (p *Pool) Total() int { return len(p.state) }

// PagesFor returns the number of pages that hold the given number of positions.
func (p *Pool) PagesFor(positions int) int {
	if positions <= 0 {
		return 0
	}
	return (positions-1)/p.pageSize + 1
}

// Counts returns the pool's state in numbers.
func (p *Pool) Counts() Counts {
	return Counts{
		Allocs: p.allocs, Frees: p.frees,
		Free: len(p.free), Held: p.held, Cached: p.cache.n, Quarantined: len(p.quarantine),
		Reserved: p.reserved, Total: len(p.state),
		Queries: p.cache.queries, Hits: p.cache.hits, Evictions: p.cache.evictions, Indexed: len(p.cache.index),
	}
}

// Available returns the number of pages that can be promised now: free or
// evictable, less those promised already. It is negative while promised pages
// are in quarantine.
func (p *Pool) Available() int { return len(p.free) + p.cache.evictable() - p.reserved }

// Coming returns what Available will be when the steps in flight have completed.
func (p *Pool) Coming() int { return len(p.free) + p.cache.n + len(p.quarantine) - p.reserved }

// Reserve promises n pages, or none with ErrNoPages. Pages that a step in
// flight may touch are not counted on.
func (p *Pool) Reserve(n int) error {
	if n < 0 || n > 0 && n > p.Available() {
		return fmt.Errorf("%w: want %d, %d free, %d cached, of which %d promised",
			ErrNoPages, n, len(p.free), p.cache.evictable(), p.reserved)
	}
	p.reserved += n
	return nil
}

// Unreserve takes back n promises that were not used.
// It panics if there are fewer, which is a bug of the caller.
func (p *Pool) Unreserve(n int) {
	if n < 0 || n > p.reserved {
		panic(fmt.Sprintf("kv: unreserve %d of %d promised pages", n, p.reserved))
	}
	p.reserved -= n
}

// Alloc turns one promise into one page. When no page is free it evicts the
// cached page that was used longest ago.
func (p *Pool) Alloc() (int32, error) {
	if p.reserved == 0 {
		return 0, ErrNotReserved
	}
	if len(p.free) == 0 && !p.evict() {
		return 0, ErrNoPages
	}
	page := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	p.state[page] = pageHeld
	p.refs[page] = 1
	p.held++
	p.reserved--
	p.allocs++
	return page, nil
}

// Free gives pages back that Alloc returned. While a step is in flight they go
// to quarantine, tagged with the newest launched step. It panics on a page that
// is not held, which is a bug of the caller that would otherwise corrupt
// another sequence.
func (p *Pool) Free(pages ...int32) {
	for _, page := range pages {
		p.drop(page)
	}
}

// drop takes away one reference. It reports whether it was the last: the page
// then is free, cached, or in quarantine.
func (p *Pool) drop(page int32) bool {
	if page < 0 || int(page) >= len(p.state) || p.state[page] != pageHeld {
		panic(fmt.Sprintf("kv: free of page %d, which is not held", page))
	}
	p.refs[page]--
	if p.refs[page] > 0 {
		return false
	}
	p.held--
	if p.cache.indexed(page) {
		p.state[page] = pageCached
		p.cache.push(page, p.launched, p.completed)
		return true
	}
	p.discard(page, p.launched)
	return true
}

// discard gives up a page's contents: into quarantine until step has completed.
func (p *Pool) discard(page int32, step uint64) {
	p.frees++
	if step > p.completed {
		p.state[page] = pageQuarantined
		p.quarantine = append(p.quarantine, tagged{page, step})
		return
	}
	p.state[page] = pageFree
	p.free = append(p.free, page)
}

// Launched says that step has been launched. Steps only grow; an older one is ignored.
func (p *Pool) Launched(step uint64) { p.launched = max(p.launched, step) }

// Completed says that step and all steps before it have completed. Pages
// tagged with them become free, or evictable.
func (p *Pool) Completed(step uint64) {
	p.completed = max(p.completed, step)
	n := 0
	for n < len(p.quarantine) && p.quarantine[n].step <= p.completed {
		page := p.quarantine[n].page
		p.state[page] = pageFree
		p.free = append(p.free, page)
		n++
	}
	p.quarantine = append(p.quarantine[:0], p.quarantine[n:]...)
	p.cache.unpin(p.completed)
}
