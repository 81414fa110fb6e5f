package timeline

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/cuda/kernels"
)

// stamp is a block that began, was ready and ended at times after 1000.
func stamp(block, blocks, sm uint32, began, ready, ended uint64) kernels.BlockStamp {
	return kernels.BlockStamp{Began: 1000 + began, Ended: 1000 + ended, Waited: uint32(ready - began), Block: block, Blocks: blocks, SM: sm}
}

// whole is a module all of whose blocks have stamps.
func whole(stamps ...kernels.BlockStamp) Module { return Module{Stamps: stamps, Blocks: len(stamps)} }

func norm(layer int) Launch { return Launch{"norm", layer, 0, "rmsnorm", 2} }
func product(layer, blocks int) Launch {
	return Launch{"product", layer, 1, "band", blocks}
}

func library(layer int) Launch { return Launch{Op: "o product", Layer: layer, Module: Library} }

// times are what a span says of itself.
type times struct{ began, ready, ended, gap, work, seen int }

func TestCut(t *testing.T) {
	for _, tc := range []struct {
		name     string
		launches []Launch
		modules  []Module
		want     []times
		lost     int
		tick     time.Duration
	}{
		{
			"two kernels, the second waits for the first", []Launch{norm(0), product(0, 2)},
			[]Module{whole(stamp(0, 2, 0, 0, 2, 10), stamp(1, 2, 1, 1, 2, 14)), whole(stamp(1, 2, 0, 5, 18, 30), stamp(0, 2, 0, 6, 17, 40))},
			[]times{{0, 2, 14, 2, 12, 2}, {5, 17, 40, 3, 23, 2}}, 0, 1,
		},
		{
			// The second launch begins while the last block of the first runs, and is noted before one of its blocks.
			"launches of one kernel overlap", []Launch{product(0, 2), product(1, 2)},
			[]Module{{}, whole(stamp(0, 2, 0, 0, 4, 20), stamp(0, 2, 0, 10, 32, 40), stamp(1, 2, 1, 8, 8, 28), stamp(1, 2, 1, 12, 36, 44))},
			[]times{{0, 4, 28, 4, 24, 2}, {10, 32, 44, 4, 12, 2}}, 0, 2,
		},
		{
			"one kernel with two grids", []Launch{product(0, 1), product(0, 2), product(1, 1)},
			[]Module{{}, whole(stamp(0, 1, 0, 0, 0, 10), stamp(0, 2, 0, 10, 10, 20), stamp(1, 2, 0, 10, 10, 20), stamp(0, 1, 0, 20, 20, 30))},
			[]times{{0, 0, 10, 0, 10, 1}, {10, 10, 20, 0, 10, 2}, {20, 20, 30, 0, 10, 1}}, 0, 10,
		},
		{
			"all times are the same", []Launch{product(0, 1), product(1, 1)},
			[]Module{{}, whole(stamp(0, 1, 3, 0, 0, 0), stamp(0, 1, 4, 0, 0, 0))},
			[]times{{0, 0, 0, 0, 0, 1}, {0, 0, 0, 0, 0, 1}}, 0, 0,
		},
		{
			"the library between two kernels", []Launch{norm(0), library(0), norm(1), library(1), library(1)},
			[]Module{whole(stamp(0, 2, 0, 0, 0, 10), stamp(1, 2, 0, 0, 0, 10), stamp(0, 2, 0, 50, 60, 70), stamp(1, 2, 0, 55, 60, 80))},
			[]times{{0, 0, 10, 0, 10, 2}, {10, 10, 60, 0, 50, 0}, {50, 60, 80, 0, 20, 2}, {80, 80, 80, 0, 0, 0}, {80, 80, 80, 0, 0, 0}}, 0, 5,
		},
		{
			"two operations of the library, and it comes first", []Launch{library(0), library(1), norm(1)},
			[]Module{whole(stamp(0, 2, 0, 0, 8, 16), stamp(1, 2, 0, 0, 8, 16))},
			[]times{{0, 0, 8, 0, 8, 0}, {8, 8, 8, 0, 0, 0}, {0, 8, 16, 0, 8, 2}}, 0, 8,
		},
		{
			"a full buffer", []Launch{norm(0), product(0, 2), norm(1), product(1, 2), norm(2)},
			[]Module{
				{Stamps: []kernels.BlockStamp{stamp(0, 2, 0, 0, 0, 10), stamp(1, 2, 0, 0, 0, 10), stamp(1, 2, 0, 30, 30, 40)}, Blocks: 6},
				whole(stamp(0, 2, 0, 12, 12, 20), stamp(1, 2, 0, 12, 12, 20), stamp(0, 2, 0, 42, 42, 50), stamp(1, 2, 0, 42, 42, 50)),
			},
			[]times{{0, 0, 10, 0, 10, 2}, {12, 12, 20, 2, 8, 2}, {30, 30, 40, 10, 10, 1}, {42, 42, 50, 2, 8, 2}, {50, 50, 50, 0, 0, 0}}, 3, 2,
		},
		{"nothing", []Launch{library(0)}, nil, []times{{}}, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, err := Cut(tc.launches, tc.modules)
			if err != nil {
				t.Fatal(err)
			}
			var got []times
			for _, sp := range s.Spans {
				got = append(got, times{int(sp.Began), int(sp.Ready), int(sp.Ended), int(sp.Gap), int(sp.Work), sp.Seen})
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("spans %v, want %v", got, tc.want)
			}
			if s.Lost != tc.lost || s.Tick != tc.tick {
				t.Errorf("%d lost, tick %d; want %d, %d", s.Lost, s.Tick, tc.lost, tc.tick)
			}
			adds(t, s)
		})
	}
}

// adds checks that a step's time is the sum of its parts, none of which is negative.
func adds(t *testing.T, s *Step) {
	t.Helper()
	var all time.Duration
	for i, sp := range s.Spans {
		if sp.Gap < 0 || sp.Work < 0 || sp.Waited() < 0 {
			t.Errorf("span %d: %+v", i, sp)
		}
		all += sp.Gap + sp.Work
	}
	if all != s.Length {
		t.Errorf("parts of %v make a step of %v", all, s.Length)
	}
}

func TestCutRefuses(t *testing.T) {
	one := stamp(0, 1, 0, 0, 0, 10)
	for name, tc := range map[string]struct {
		launches []Launch
		modules  []Module
	}{
		"a block is missing":       {[]Launch{product(0, 2)}, []Module{{}, whole(stamp(0, 2, 0, 0, 0, 1))}},
		"no block at all":          {[]Launch{product(0, 2)}, []Module{{}, {}}},
		"a launch too many":        {[]Launch{product(0, 1)}, []Module{{}, whole(one, one)}},
		"another grid":             {[]Launch{product(0, 1)}, []Module{{}, whole(stamp(0, 3, 0, 0, 0, 1))}},
		"a block beyond its grid":  {[]Launch{product(0, 1)}, []Module{{}, whole(stamp(1, 1, 0, 0, 0, 1))}},
		"an unknown module":        {[]Launch{{"x", 0, 2, "x", 1}}, []Module{{}, {}}},
		"a negative module":        {[]Launch{{"x", 0, -2, "x", 1}}, []Module{{}}},
		"an empty grid":            {[]Launch{{"x", 0, 0, "x", 0}}, []Module{{}}},
		"fewer blocks than stamps": {[]Launch{product(0, 1)}, []Module{{}, {Stamps: []kernels.BlockStamp{one}}}},
	} {
		if s, err := Cut(tc.launches, tc.modules); !errors.Is(err, ErrStamps) {
			t.Errorf("%s: %v, error %v, want ErrStamps", name, s, err)
		}
	}
}

// play makes up a run of launches on a stream whose kernels may begin early, with a clock that advances by tick and room for so many
// stamps a module. It returns the modules and, for each launch, its stamps as they are.
func play(r *rand.Rand, launches []Launch, tick uint64, room int) ([]Module, [][]kernels.BlockStamp) {
	type noted struct {
		kernels.BlockStamp
		at     uint64 // of the begin, without ticks
		launch int
	}
	modules := make([]Module, 3)
	var all []noted
	at, ended, begun := uint64(1)<<40, uint64(0), uint64(0) // when the next may begin; when the last one ended, and its last block began
	for i, l := range launches {
		if l.Module == Library {
			ended += r.Uint64N(3000)
			at = ended
			continue
		}
		began := at + r.Uint64N(300)
		if r.IntN(3) == 0 {
			began = max(began, ended) // not early
		}
		last, lastBegun := uint64(0), uint64(0)
		for b := range l.Blocks {
			from := began + r.Uint64N(400)
			ready := max(from, ended+r.Uint64N(900))
			to := ready + r.Uint64N(2000)
			last, lastBegun = max(last, to), max(lastBegun, from)
			down := func(v uint64) uint64 { return v / tick * tick }
			all = append(all, noted{kernels.BlockStamp{
				Began: down(from), Ended: down(to), Waited: uint32(down(ready) - down(from)), Block: uint32(b), Blocks: uint32(l.Blocks), SM: uint32(r.IntN(4)),
			}, from, i})
		}
		ended, begun = max(last, ended), lastBegun
		at = begun + 1 // the next one begins when all blocks of this have begun
	}
	// Places are taken about in the order of begins: those of two blocks at the same time may be either way.
	slices.SortStableFunc(all, func(a, b noted) int { return cmp.Compare(a.at, b.at) })
	truth := make([][]kernels.BlockStamp, len(launches))
	for _, n := range all {
		m := &modules[launches[n.launch].Module]
		m.Blocks++
		if len(m.Stamps) < room {
			m.Stamps = append(m.Stamps, n.BlockStamp)
			truth[n.launch] = append(truth[n.launch], n.BlockStamp)
		}
	}
	return modules, truth
}

// cutSlowly takes for each launch in turn and each block the first stamp that is left.
func cutSlowly(launches []Launch, modules []Module) [][]kernels.BlockStamp {
	out := make([][]kernels.BlockStamp, len(launches))
	used := map[[2]int]bool{}
	for i, l := range launches {
		for b := range l.Blocks {
			if l.Module == Library {
				continue
			}
			best := -1
			for j, s := range modules[l.Module].Stamps {
				if !used[[2]int{l.Module, j}] && int(s.Blocks) == l.Blocks && int(s.Block) == b && (best < 0 || s.Began < modules[l.Module].Stamps[best].Began) {
					best = j
				}
			}
			if best >= 0 {
				used[[2]int{l.Module, best}] = true
				out[i] = append(out[i], modules[l.Module].Stamps[best])
			}
		}
	}
	return out
}

// byBlock sorts stamps by block.
func byBlock(list []kernels.BlockStamp) []kernels.BlockStamp {
	out := slices.Clone(list)
	slices.SortFunc(out, func(a, b kernels.BlockStamp) int { return cmp.Compare(a.Block, b.Block) })
	return out
}

func TestCutFindsTheTruth(t *testing.T) {
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 7))
		grids := [][]int{{1, 3}, {2, 2, 5}, {4}}
		var launches []Launch
		for i := range 1 + r.IntN(25) {
			m := r.IntN(4) - 1
			l := Launch{Op: fmt.Sprint("op ", m), Layer: i, Module: m}
			if m != Library {
				l.Blocks = grids[m][r.IntN(len(grids[m]))]
			}
			launches = append(launches, l)
		}
		room := 1000
		if seed%4 == 3 {
			room = 1 + r.IntN(20)
		}
		modules, truth := play(r, launches, []uint64{1, 32, 1000}[seed%3], room)
		s, err := Cut(launches, modules)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		adds(t, s)
		slow := cutSlowly(launches, modules)
		for i := range launches {
			got := byBlock(s.Spans[i].Stamps)
			if !reflect.DeepEqual(got, byBlock(truth[i])) || !reflect.DeepEqual(got, byBlock(slow[i])) {
				t.Fatalf("seed %d, launch %d: %v, truth %v, slowly %v", seed, i, got, truth[i], slow[i])
			}
		}
	}
}
