package faults

import (
	"cmp"
	"slices"
	"time"

	"github.com/tokenrouter/tokenrouter/cuda/inventory"
)

const (
	// quiet is how often the same fault of the same device is logged at most.
	quiet = time.Minute
	// maxStorm bounds the faults that are told apart within that time.
	maxStorm = 64
)

// occurrence is what makes two faults the same.
type occurrence struct {
	device Device
	kind   inventory.Kind
	code   uint64
}

// repeat is a fault that came again, so often.
type repeat struct {
	occurrence
	times int
}

// storm bounds how often faults are logged: it holds for each fault of the last minute when it was logged, and how often it
// came since.
type storm map[occurrence]*pending

type pending struct {
	logged time.Time
	times  int
}

// first notes a fault and reports whether it is to be logged now. If not, due or rest will have it.
func (s storm) first(o occurrence, now time.Time) bool {
	if p := s[o]; p != nil {
		p.times++
		return false
	}
	if len(s) >= maxStorm {
		o = occurrence{} // what is new beyond that is counted together
		if p := s[o]; p != nil {
			p.times++
			return false
		}
	}
	s[o] = &pending{logged: now}
	return true
}

// due takes the faults that came again and were last logged a minute ago, and forgets those that did not.
func (s storm) due(now time.Time) []repeat {
	return s.take(func(p *pending) bool { return now.Sub(p.logged) >= quiet }, now)
}

// rest takes all faults that came again.
func (s storm) rest() []repeat { return s.take(func(*pending) bool { return true }, time.Time{}) }

func (s storm) take(ready func(*pending) bool, now time.Time) (list []repeat) {
	for o, p := range s {
		switch {
		case !ready(p):
		case p.times > 0:
			list = append(list, repeat{o, p.times})
			p.times, p.logged = 0, now
		default:
			delete(s, o)
		}
	}
	slices.SortFunc(list, func(a, b repeat) int {
		return cmp.Or(cmp.Compare(a.device.Ordinal, b.device.Ordinal), cmp.Compare(a.code, b.code), cmp.Compare(a.kind, b.kind))
	})
	return list
}
