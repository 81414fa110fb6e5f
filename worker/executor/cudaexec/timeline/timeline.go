package timeline

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tokenrouter/tokenrouter/cuda/kernels"
)

// ErrStamps says that blocks do not fit the launches: the device ran something else than was enqueued.
var ErrStamps = errors.New("timeline: blocks do not fit the launches")

// Library is the Module of an operation whose kernels leave no stamps.
const Library = -1

// Launch is one kernel, or one operation of a library, in the order of the queue.
type Launch struct {
	// Op is the operation and Layer where it belongs, -1 for none.
	Op    string
	Layer int
	// Module is the index of the kernel's module, or Library; Kernel its name, and Blocks its grid.
	Module int
	Kernel string
	Blocks int
}

// Module is what the kernel of one module left behind.
type Module struct {
	// Stamps are those of the blocks that began first, about in that order.
	Stamps []kernels.BlockStamp
	// Blocks is how many there were, with those that found no place.
	Blocks int
}

// Span is a launch on the device. Times are since the step began. The step's time is the sum of all Gap and Work.
type Span struct {
	Launch
	// Began is when the first block began, Ready when the first one's wait for the kernels before it was over, and Ended when the
	// last one ended. Without stamps Began and Ready are the end of the launch before, and Ended is Ready of the one after.
	Began, Ready, Ended time.Duration
	// Gap is from the end of the launch before to Ready, Work from there to Ended. Where the launch before has no stamps, Gap is in its
	// Work and 0 here, and Hidden.
	Gap, Work time.Duration
	Hidden    bool
	// Seen is how many blocks have stamps, and SMs on how many multiprocessors those were.
	Seen, SMs int
	// Stamps are the blocks, in the order in which they began.
	Stamps []kernels.BlockStamp
}

// Waited is how long the kernel was there before it could begin its work.
func (s *Span) Waited() time.Duration { return s.Ready - s.Began }

// Step is where the time of one step went.
type Step struct {
	Spans []Span
	// Length is from the first block's begin to the last one's end; Began the first on the device's clock, in nanoseconds.
	Length time.Duration
	Began  uint64
	// Tick is the smallest difference between two times seen: how finely the device's clock advances, 0 if all are the same.
	Tick time.Duration
	// Lost blocks found no place. Of the launches last in their module, some or all are missing.
	Lost int
}

// Cut assigns the blocks of each module to its launches.
//
// Block b of a grid runs once in each launch of that grid, and launches of one module begin in the order of the queue: on a
// stream a kernel begins only when all blocks of the one before have begun. So the blocks of a number and a grid, in the order of
// their begins, belong to the launches of that grid in their order, also where launches overlap.
func Cut(launches []Launch, modules []Module) (*Step, error) {
	s := &Step{Spans: make([]Span, len(launches))}
	of := map[grid][]int{}
	for i, l := range launches {
		s.Spans[i].Launch = l
		if l.Module == Library {
			continue
		}
		if l.Module < 0 || l.Module >= len(modules) || l.Blocks < 1 {
			return nil, fmt.Errorf("%w: launch %d of %s: %d blocks in module %d of %d", ErrStamps, i, l.Op, l.Blocks, l.Module, len(modules))
		}
		g := grid{l.Module, l.Blocks}
		of[g] = append(of[g], i)
	}
	for m := range modules {
		if err := s.assign(of, m, &modules[m]); err != nil {
			return nil, err
		}
	}
	for i := range s.Spans {
		sp := &s.Spans[i]
		sp.Seen = len(sp.Stamps)
		if sp.Module != Library && sp.Seen < sp.Blocks && modules[sp.Module].Blocks == len(modules[sp.Module].Stamps) {
			return nil, fmt.Errorf("%w: %s of layer %d: %d of %d blocks", ErrStamps, sp.Op, sp.Layer, sp.Seen, sp.Blocks)
		}
	}
	s.settle()
	return s, nil
}

// grid is a module and a number of blocks.
type grid struct{ module, blocks int }

// assign gives the stamps of a module to its launches.
func (s *Step) assign(of map[grid][]int, module int, m *Module) error {
	if m.Blocks < len(m.Stamps) {
		return fmt.Errorf("%w: module %d has %d stamps of %d blocks", ErrStamps, module, len(m.Stamps), m.Blocks)
	}
	s.Lost += m.Blocks - len(m.Stamps)
	stamps := slices.Clone(m.Stamps)
	slices.SortStableFunc(stamps, func(a, b kernels.BlockStamp) int { return cmp.Compare(a.Began, b.Began) })
	seen := map[grid][]int32{}
	for _, b := range stamps {
		g := grid{module, int(b.Blocks)}
		list := of[g]
		if b.Block >= b.Blocks || len(list) == 0 {
			return fmt.Errorf("%w: module %d ran block %d of %d and was not launched so", ErrStamps, module, b.Block, b.Blocks)
		}
		if seen[g] == nil {
			seen[g] = make([]int32, b.Blocks)
		}
		n := seen[g][b.Block]
		if int(n) >= len(list) {
			return fmt.Errorf("%w: %s ran block %d of %d more than %d times", ErrStamps, s.Spans[list[0]].Kernel, b.Block, b.Blocks, len(list))
		}
		seen[g][b.Block]++
		sp := &s.Spans[list[n]]
		sp.Stamps = append(sp.Stamps, b)
	}
	return nil
}

// settle finds the times of the launches whose blocks are known.
func (s *Step) settle() {
	var times []uint64
	for i := range s.Spans {
		for _, b := range s.Spans[i].Stamps {
			times = append(times, b.Began, b.Began+uint64(b.Waited), b.Ended)
		}
	}
	if len(times) == 0 {
		return
	}
	slices.Sort(times)
	s.Began = times[0]
	for i := 1; i < len(times); i++ {
		if d := time.Duration(times[i] - times[i-1]); d > 0 && (s.Tick == 0 || d < s.Tick) {
			s.Tick = d
		}
	}
	var at time.Duration // how far the step is told
	var open []int       // launches without stamps since
	for i := range s.Spans {
		sp := &s.Spans[i]
		if sp.Seen == 0 {
			sp.Began, sp.Ready, sp.Ended = at, at, at
			open = append(open, i)
			continue
		}
		sp.measure(s.Began)
		sp.Ready, sp.Ended = max(sp.Ready, at), max(sp.Ended, sp.Ready, at)
		sp.Gap, sp.Work = sp.Ready-at, sp.Ended-sp.Ready
		if len(open) > 0 { // the first one has it all
			first := &s.Spans[open[0]]
			first.Work, first.Ended, sp.Gap, sp.Hidden = sp.Gap, sp.Ready, 0, true
			for _, j := range open[1:] {
				s.Spans[j].Began, s.Spans[j].Ready, s.Spans[j].Ended = sp.Ready, sp.Ready, sp.Ready
			}
			open = open[:0]
		}
		at = sp.Ended
	}
	s.Length = at
}

// measure reads the times of a launch from its blocks.
func (s *Span) measure(zero uint64) {
	sms := map[uint32]bool{}
	for i, b := range s.Stamps {
		began, ready, ended := time.Duration(b.Began-zero), time.Duration(b.Began-zero)+time.Duration(b.Waited), time.Duration(b.Ended-zero)
		if i == 0 {
			s.Began, s.Ready = began, ready
		}
		s.Began, s.Ready, s.Ended = min(s.Began, began), min(s.Ready, ready), max(s.Ended, ended)
		sms[b.SM] = true
	}
	s.SMs = len(sms)
}
