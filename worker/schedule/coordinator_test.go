package schedule

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/policies/threshold"
)

const ms = time.Millisecond

// crew is members that note when they are woken.
type crew struct {
	c     *Coordinator
	all   []*Member
	woken []int
}

func newCrew(rule Rule, models ...int) *crew {
	w := &crew{c: New(rule), woken: make([]int, len(models))}
	for i, model := range models {
		w.all = append(w.all, w.c.Join(model, string(rune('a'+model)), func() { w.woken[i]++ }))
	}
	return w
}

func (w *crew) offer(t *testing.T, i int, now time.Duration, o Offer, want bool) Answer {
	t.Helper()
	o.Round = w.all[i].Round()
	if o.LongestWait == 0 {
		o.LongestWait = time.Hour
	}
	a := w.all[i].Offer(now, o)
	if a.Start != want {
		t.Fatalf("member %d with %d ready at %s: start %t, want %t", i, o.Ready, now, a.Start, want)
	}
	return a
}

func TestNames(t *testing.T) {
	for _, name := range Names() {
		r, err := Parse(name)
		if err != nil || r.String() != name {
			t.Errorf("%s: %v, %v", name, r, err)
		}
	}
	if r, err := Parse(""); r != Delayed || err != nil {
		t.Errorf("empty name: %v, %v", r, err)
	}
	if _, err := Parse("hasty"); err == nil {
		t.Error("hasty is a schedule")
	}
}

// A round of step-sync begins once nobody runs, decides or is about to receive.
func TestStepSyncRound(t *testing.T) {
	w := newCrew(StepSync, 0, 1)
	w.offer(t, 0, 0, Offer{Ready: 3}, false) // the other one has not said anything yet
	w.offer(t, 1, 0, Offer{}, false)
	if w.woken[0] == 0 {
		t.Fatal("the first member was not woken")
	}
	w.offer(t, 0, 0, Offer{Ready: 3}, true)
	w.all[0].Sent(ms, 7, true)
	w.all[0].Ended(ms)
	w.offer(t, 0, ms, Offer{Ready: 2}, false) // request 7 is on its way
	w.all[1].Arrived(ms, 7)
	w.offer(t, 0, ms, Offer{Ready: 2}, false) // and its new owner has not offered it
	w.offer(t, 1, ms, Offer{Ready: 1}, true)
	w.offer(t, 0, ms, Offer{Ready: 2}, true)
	w.all[0].Ended(2 * ms)
	w.offer(t, 0, 2*ms, Offer{Ready: 2}, false) // the slow one still runs
	w.all[1].Ended(5 * ms)
	w.offer(t, 1, 5*ms, Offer{}, false)
	w.offer(t, 0, 5*ms, Offer{Ready: 2}, true)
}

// Nobody waits for a hand-off that was lost, or for a member that left.
func TestLostAndLeft(t *testing.T) {
	w := newCrew(ModelSync, 0, 1)
	w.offer(t, 1, 0, Offer{}, false)
	w.offer(t, 0, 0, Offer{Ready: 2}, true)
	w.all[0].Sent(0, 7, false)
	w.all[0].Ended(ms)
	a := w.offer(t, 0, ms, Offer{Ready: 1}, false)
	if !a.Again || a.Wake != TransitWait {
		t.Fatalf("asks again at %s (%t), want %s", a.Wake, a.Again, TransitWait)
	}
	w.offer(t, 0, TransitWait, Offer{Ready: 1}, true)
	w.all[0].Ended(TransitWait + ms)
	w.offer(t, 1, TransitWait+ms, Offer{Ready: 1}, false)
	w.all[0].Leave(TransitWait + ms)
	w.offer(t, 1, TransitWait+ms, Offer{Ready: 1}, true)
}

// In a round of lockstep the models run one after the other, and a request that
// has made its token waits for the next round.
func TestLockstepRound(t *testing.T) {
	w := newCrew(Lockstep, 0, 1)
	w.offer(t, 1, 0, Offer{}, false)
	w.offer(t, 0, 0, Offer{Ready: 3}, true)
	first := w.all[0].Round()
	w.all[0].Sent(ms, 7, true)
	w.all[0].Sent(ms, 8, false)
	w.all[0].Ended(ms)
	if _, deferred := w.all[1].Arrived(ms, 7); !deferred {
		t.Fatal("request 7 has made its token and is not deferred")
	}
	if _, deferred := w.all[1].Arrived(ms, 8); deferred {
		t.Fatal("request 8 has made no token and is deferred")
	}
	w.offer(t, 0, ms, Offer{Ready: 1}, false)
	w.offer(t, 1, ms, Offer{Ready: 1, Deferred: 1}, true)
	w.all[1].Ended(4 * ms)
	old := Offer{Round: first, Ready: 1, Deferred: 1, LongestWait: time.Hour}
	w.all[1].Offer(4*ms, old)
	if w.all[0].Round() == first {
		t.Fatal("the round goes on")
	}
	if !w.all[1].Offer(4*ms, old).Stale {
		t.Fatal("an offer of the old round counts")
	}
	w.offer(t, 1, 4*ms, Offer{Ready: 2}, false)
	w.offer(t, 0, 4*ms, Offer{Ready: 1}, true)
}

// If nothing runs and nothing would start, the longest queue does.
func TestLongestQueueStarts(t *testing.T) {
	w := newCrew(Delayed, 0, 1)
	w.offer(t, 0, 0, Offer{Ready: 1, Threshold: 4}, false)
	w.offer(t, 1, 0, Offer{Ready: 2, Threshold: 4}, true)
	w.offer(t, 0, 0, Offer{Ready: 1, Threshold: 4}, false)
	w.all[1].Ended(ms)
	w.offer(t, 1, ms, Offer{}, false)
	w.offer(t, 0, ms, Offer{Ready: 1, Threshold: 4}, true)
}

// A member that starts by itself leaves the others' queues as they are.
func TestLongestQueueWaitsForOthers(t *testing.T) {
	w := newCrew(Delayed, 0, 1)
	w.offer(t, 1, 0, Offer{}, false)
	w.offer(t, 0, 0, Offer{Ready: 3, Threshold: 1}, true)
	w.offer(t, 1, ms, Offer{Ready: 3, Threshold: 4}, false)
	w.all[0].Ended(ms)
	w.offer(t, 0, ms, Offer{Ready: 1, Threshold: 1}, true)
	w.offer(t, 1, ms, Offer{Ready: 3, Threshold: 4}, false)
}

func TestDelayed(t *testing.T) {
	w := newCrew(Delayed, 0, 1)
	w.offer(t, 1, 0, Offer{}, false)
	w.offer(t, 0, 0, Offer{Ready: 3, Threshold: 1}, true)
	a := w.offer(t, 1, ms, Offer{Ready: 1, Threshold: 2, Since: ms, LongestWait: 5 * ms}, false)
	if !a.Again || a.Wake != 6*ms {
		t.Errorf("asks again at %s", a.Wake)
	}
	w.offer(t, 1, 6*ms, Offer{Ready: 1, Threshold: 2, Since: ms, LongestWait: 5 * ms}, true)
	if share := w.all[1].Ended(10 * ms); share != 1 {
		t.Errorf("the other one ran for %g of the step", share)
	}
	w.offer(t, 1, 10*ms, Offer{Ready: 1, Threshold: 2, Urgent: true}, true)
}

// The look-ahead rule is that of the solver.
func TestAdaptiveIsLookAhead(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	holds := 0
	for range 2000 {
		w := newCrew(Adaptive, 0, 1, 2)
		p := make([][]float64, 3)
		models := []string{"a", "b", "c"}
		for i := range p {
			x, y := rng.Float64(), rng.Float64()
			p[i] = []float64{x * y, x * (1 - y), 1 - x}
		}
		self := rng.IntN(3)
		var list []threshold.Running
		now := 100 * ms
		for i, m := range w.all {
			if i == self || rng.IntN(3) == 0 {
				continue
			}
			batch, due := 1+rng.IntN(6), time.Duration(rng.IntN(30))*ms
			m.state, m.batch, m.due = running, batch, now+due
			m.offer = Offer{To: p[i], Models: models}
			list = append(list, threshold.Running{Model: i, Batch: batch, Due: float64(due)})
		}
		q, step := 1+rng.IntN(5), time.Duration(1+rng.IntN(40))*ms
		rule := threshold.LookAhead{Caution: threshold.DefaultLookAhead, P: p}
		want := rule.Holds(self, q, float64(step), list)
		m := w.all[self]
		m.offer = Offer{Ready: q, Threshold: 1, Since: now, LongestWait: time.Hour, Step: step, Models: models}
		if got := !m.wants(now); got != want {
			t.Fatalf("holds %t, want %t: model %d, %d ready, step %s, running %+v, p %v", got, want, self, q, step, list, p)
		}
		if want {
			holds++
		}
	}
	if holds < 200 {
		t.Errorf("only %d of 2000 hold", holds)
	}
}

// Members are kept in the order of their models.
func TestOrderOfMembers(t *testing.T) {
	w := newCrew(Delayed, 2, 0, 1, 0, 2)
	var order []int
	for _, m := range w.c.members {
		order = append(order, m.model)
	}
	if !slices.IsSorted(order) || w.c.members[0] != w.all[1] || w.c.members[1] != w.all[3] {
		t.Errorf("order %v", order)
	}
}

// A member whose next step was launched ahead runs on without an offer, and the
// others see it running.
func TestBegan(t *testing.T) {
	w := newCrew(Delayed, 0, 1)
	w.offer(t, 0, 0, Offer{Ready: 1, Threshold: 1}, true)
	w.all[0].Ended(2 * ms)
	w.all[0].Began(2*ms, 1, 2*ms)
	w.offer(t, 1, 3*ms, Offer{Ready: 1, Threshold: 5, LongestWait: time.Hour}, false) // the process is not idle
	if others := w.all[0].Ended(4 * ms); others != 0 {
		t.Errorf("others ran for %v of the step", others)
	}
	for _, r := range []Rule{Delayed, Adaptive, Eager, ModelSync, StepSync, Lockstep} {
		if r.Overlaps() && (r.barrier() || r == Adaptive) {
			t.Errorf("%s: a step is launched ahead of others' say", r)
		}
	}
}
