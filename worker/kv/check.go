package kv

import (
	"errors"
	"fmt"
)

// ErrBroken says that a check found a broken invariant: a bug, never bad input.
var ErrBroken = errors.New("kv: invariant broken")

// Check verifies the invariants in time linear in the pages: free + held +
// cached + quarantined = total, no page twice, an index that finds exactly the
// pages marked so, and promises covered by pages that are not held.
func (p *Pool) Check() error {
	var count [4]int
	for page, s := range p.state {
		count[s]++
		if (p.refs[page] > 0) != (s == pageHeld) || p.refs[page] < 0 {
			return fmt.Errorf("%w: page %d in state %d has %d references", ErrBroken, page, s, p.refs[page])
		}
	}
	want := [4]int{pageFree: len(p.free), pageHeld: p.held, pageCached: p.cache.n, pageQuarantined: len(p.quarantine)}
	if count != want {
		return fmt.Errorf("%w: free, held, cached, quarantined pages %v, but lists have %v", ErrBroken, count, want)
	}
	if int(p.allocs-p.frees) != p.held+p.cache.n {
		return fmt.Errorf("%w: %d pages allocated, %d freed, %d in use", ErrBroken, p.allocs, p.frees, p.held+p.cache.n)
	}
	if err := p.checkLists(); err != nil {
		return err
	}
	if err := p.checkCache(); err != nil {
		return err
	}
	if p.reserved < 0 || p.Coming() < 0 {
		return fmt.Errorf("%w: %d pages promised, %d free, %d cached, %d quarantined",
			ErrBroken, p.reserved, len(p.free), p.cache.n, len(p.quarantine))
	}
	return nil
}

func (p *Pool) checkLists() error {
	seen := make([]bool, len(p.state))
	once := func(page int32, want pageState) error {
		if page < 0 || int(page) >= len(p.state) {
			return fmt.Errorf("%w: page %d of %d", ErrBroken, page, len(p.state))
		}
		if seen[page] || p.state[page] != want {
			return fmt.Errorf("%w: page %d listed twice or in a wrong list", ErrBroken, page)
		}
		seen[page] = true
		return nil
	}
	for _, page := range p.free {
		if err := once(page, pageFree); err != nil {
			return err
		}
	}
	for i, q := range p.quarantine {
		if err := once(q.page, pageQuarantined); err != nil {
			return err
		}
		if q.step <= p.completed || q.step > p.launched || i > 0 && q.step < p.quarantine[i-1].step {
			return fmt.Errorf("%w: page %d quarantined for step %d, launched %d, completed %d",
				ErrBroken, q.page, q.step, p.launched, p.completed)
		}
	}
	n, pinned, last, tag := 0, 0, int32(-1), uint64(0)
	for page := p.cache.front; page >= 0; page = p.cache.pages[page].next {
		if err := once(page, pageCached); err != nil {
			return err
		}
		e := &p.cache.pages[page]
		if e.prev != last || e.tag < tag {
			return fmt.Errorf("%w: cached page %d is linked to %d with tag %d, after %d with tag %d",
				ErrBroken, page, e.prev, e.tag, last, tag)
		}
		if e.tag > p.completed {
			pinned++
		}
		n, last, tag = n+1, page, e.tag
	}
	if n != p.cache.n || pinned != p.cache.pinned || last != p.cache.back {
		return fmt.Errorf("%w: %d cached pages, %d pinned, want %d and %d", ErrBroken, n, pinned, p.cache.n, p.cache.pinned)
	}
	return nil
}

// checkCache verifies that index and pages agree.
func (p *Pool) checkCache() error {
	n := 0
	for i := range p.cache.pages {
		e, state := &p.cache.pages[i], p.state[i]
		if !e.indexed {
			if state == pageCached {
				return fmt.Errorf("%w: cached page %d cannot be found", ErrBroken, i)
			}
			continue
		}
		n++
		if page, ok := p.cache.index[e.key]; !ok || page != int32(i) || state != pageHeld && state != pageCached {
			return fmt.Errorf("%w: page %d in state %d is indexed as %d", ErrBroken, i, state, page)
		}
	}
	if n != len(p.cache.index) {
		return fmt.Errorf("%w: %d pages indexed, %d marked", ErrBroken, len(p.cache.index), n)
	}
	return nil
}
