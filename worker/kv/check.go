package kv

import (
	"errors"
	"fmt"
)

// ErrBroken says that a check found a broken invariant: a bug, never bad input.
var ErrBroken = errors.New("kv: invariant broken")

// Check verifies the invariants in time linear in the pages: free + held +
// quarantined = total, no page twice, and promises covered by pages that are
// free or in quarantine.
func (p *Pool) Check() error {
	var count [3]int
	for _, s := range p.state {
		count[s]++
	}
	if count[pageFree] != len(p.free) || count[pageHeld] != p.held || count[pageQuarantined] != len(p.quarantine) {
		return fmt.Errorf("%w: states %v, but %d free, %d held, %d quarantined",
			ErrBroken, count, len(p.free), p.held, len(p.quarantine))
	}
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
	if p.reserved < 0 || p.reserved > len(p.free)+len(p.quarantine) {
		return fmt.Errorf("%w: %d pages promised, %d free, %d quarantined",
			ErrBroken, p.reserved, len(p.free), len(p.quarantine))
	}
	return nil
}
