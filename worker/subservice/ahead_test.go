package subservice

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/worker/schedule"
)

// aheadCounts adds up what became of steps launched ahead.
func (w *world) aheadCounts() (used, wasted uint64) {
	for _, a := range w.hosts {
		s := a.driver.Stats()
		used += s.AheadUsed
		wasted += s.AheadWasted
	}
	return used, wasted
}

// Launching steps ahead changes no token: every policy, page sizes down to one
// slot, pools for few requests, in random orders of steps and deliveries.
func TestAheadChangesNothing(t *testing.T) {
	const requests = 10
	seeds := uint64(6)
	if testing.Short() {
		seeds = 3
	}
	var used, wasted uint64
	for name, l := range layouts() {
		t.Run(name, func(t *testing.T) {
			for seed := range seeds {
				l.pageSize = 1 + int(seed*3%8)
				l.pages = 2*70/l.pageSize + 4
				for _, l.ahead = range []bool{false, true} {
					w := newWorld(t, l, seed, 0)
					w.change = func(req *generate.Request) {
						if req.ID%4 == 1 {
							req.Sampling.FrequencyPenalty = 0.5
						}
						if req.ID%5 == 2 {
							req.Sampling.StopIDs = []int32{50, 100, 150, 200, 250, 300}
						}
					}
					w.play(requests)
					for _, q := range w.talks {
						want := straight(t, l, q.req)
						if len(q.req.Sampling.StopIDs) > 0 {
							n := slices.IndexFunc(want.Tokens, func(t generate.Token) bool { return q.req.Sampling.Stops(t.ID) })
							if n >= 0 {
								want.Tokens = want.Tokens[:n+1]
							}
						}
						if !slices.Equal(q.tokens, want.Tokens) {
							t.Fatalf("seed %d, ahead %t, request %d:\n got %v\nwant %v", seed, l.ahead, q.req.ID, q.tokens, want.Tokens)
						}
					}
					u, v := w.aheadCounts()
					if !l.ahead && u+v > 0 {
						t.Errorf("%d and %d rows ahead with a depth of 1", u, v)
					}
					used, wasted = used+u, wasted+v
				}
			}
		})
	}
	if used < 500 || wasted < 100 {
		t.Errorf("void: %d rows ahead used, %d wasted", used, wasted)
	}
}

// The same under every schedule, with threads: those that wait for all models look
// ahead at nothing.
func TestAheadUnderSchedules(t *testing.T) {
	l := pair("random", 0.2)
	l.thresholds = []int{2, 2}
	var want []outcome
	for _, name := range schedule.Names() {
		rule, err := schedule.Parse(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, l.ahead = range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, ahead %t", name, l.ahead), func(t *testing.T) {
				l.rule = &rule
				got := answersOf(t, l, false)
				if want == nil {
					want = got
				}
				for i := range want {
					if !slices.Equal(got[i].Tokens, want[i].Tokens) || got[i].Text != want[i].Text {
						t.Errorf("request %d:\n got %v\nwant %v", i+1, got[i].Tokens, want[i].Tokens)
					}
				}
			})
		}
	}
}

// The rule weighs the host's time, saved for those that stay, against a step, paid
// by those that join.
func TestAheadPays(t *testing.T) {
	for _, tc := range []struct {
		stays, of int // rows
		host      time.Duration
		step      time.Duration
		want      bool
	}{
		{400, 400, 50 * time.Microsecond, 5 * time.Millisecond, true},
		{396, 400, 50 * time.Microsecond, 5 * time.Millisecond, false}, // 99 to 1 is even
		{380, 400, time.Millisecond, 5 * time.Millisecond, true},
		{320, 400, time.Millisecond, 5 * time.Millisecond, false},
		{settled - 1, settled - 1, time.Millisecond, time.Millisecond, false}, // not known yet
		{400, 400, 0, time.Millisecond, false},
		{0, 400, time.Millisecond, 0, false},
	} {
		var a ahead
		for i := range tc.of {
			// Those that leave are spread evenly.
			a.note((i+1)*(tc.of-tc.stays)/tc.of == i*(tc.of-tc.stays)/tc.of)
		}
		for range 1000 {
			a.worked(tc.host)
		}
		if got := a.pays(tc.step); got != tc.want {
			t.Errorf("%+v: %t with a share of %v", tc, got, a.stay)
		}
	}
}

func TestLookaheadNames(t *testing.T) {
	for i, name := range Lookaheads() {
		l, err := ParseLookahead(name)
		if err != nil || l != Lookahead(i) || l.String() != name {
			t.Errorf("%s: %s, %v", name, l, err)
		}
	}
	if _, err := ParseLookahead("maybe"); err == nil {
		t.Error("no error")
	}
}
