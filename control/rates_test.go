package control

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/client"
)

// use is an amount that a gateway let through.
type use struct {
	at time.Time
	n  int64
}

// simulated is a gateway as a client of rates: it asks when it has nothing, uses what
// it has before that ends, and remembers what it holds.
type simulated struct {
	id   string
	have int64
	ends time.Time
	held []use
	told bool
}

// worst is the largest use within a minute.
func worst(uses []use) (most int64) {
	var sum int64
	from := 0
	for _, u := range uses {
		sum += u.n
		for u.at.Sub(uses[from].at) >= time.Minute {
			sum -= uses[from].n
			from++
		}
		most = max(most, sum)
	}
	return most
}

func (g *simulated) step(r *rates, now time.Time, limit, want int64, random *rand.Rand) (used int64) {
	if now.After(g.ends) {
		g.have = 0
	}
	if g.have < want {
		ask := cluster.SliceAsk{Gateway: g.id, Key: "k", Want: cluster.Amount{Requests: want + random.Int64N(5)}}
		if !g.told {
			for _, h := range g.held {
				ask.Held = append(ask.Held, cluster.HeldSlice{Age: now.Sub(h.at), Amount: cluster.Amount{Requests: h.n}})
			}
			g.told = true
		}
		s, err := r.ask(now, cluster.Amount{Requests: limit}, &ask)
		if err != nil {
			panic(err)
		}
		if n := s.Given.Requests; n > 0 {
			// What is left of the last slice ends when that does; to keep it is to use it late.
			g.have, g.ends = n, now.Add(s.Life)
			g.held = append(g.held, use{now, n})
		}
	}
	used = min(g.have, want)
	g.have -= used
	return used
}

// With any number of gateways no minute has more than the rate, and a steady demand
// gets nearly all of it.
func TestRatesBound(t *testing.T) {
	for _, gateways := range []int{1, 3, 20} {
		for _, limit := range []int64{1, 10, 60, 1000} {
			t.Run(fmt.Sprintf("%d gateways, %d a minute", gateways, limit), func(t *testing.T) {
				random := rand.New(rand.NewPCG(uint64(gateways), uint64(limit)))
				r := newRates()
				start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
				r.reset(start.Add(-time.Hour), "l", 1)
				var all []simulated
				for i := range gateways {
					all = append(all, simulated{id: fmt.Sprint(i), told: true})
				}
				var uses []use
				var total int64
				for i := range 10 * 600 {
					now := start.Add(time.Duration(i) * 100 * time.Millisecond)
					if i%1000 > 700 { // a pause, then all at once
						continue
					}
					g := &all[random.IntN(gateways)]
					n := g.step(r, now, limit, 1+random.Int64N(1+limit/100), random)
					uses = append(uses, use{now, n})
					total += n
				}
				if most := worst(uses); most > limit {
					t.Errorf("%d in a minute, %d are allowed", most, limit)
				}
				if total < limit*10/4 {
					t.Errorf("%d in ten minutes, of %d", total, limit*10)
				}
			})
		}
	}
}

// A new leader gives little until the gateways that are there have told what they
// hold; then the minute across the change has at most 5 % too much.
func TestRatesNewLeader(t *testing.T) {
	const limit, gateways = 1000, 4
	for seed := range seeds(4, 20) {
		random := rand.New(rand.NewPCG(seed, 1))
		start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		r := newRates()
		r.reset(start.Add(-time.Hour), "l", 1)
		all := make([]simulated, gateways)
		for i := range all {
			all[i] = simulated{id: fmt.Sprint(i), told: true}
		}
		var uses []use
		change := 20 + random.IntN(300)
		for i := range 1200 {
			now := start.Add(time.Duration(i) * 100 * time.Millisecond)
			if i == change {
				r = newRates()
				r.reset(now, "l", 2)
				for g := range all {
					all[g].told = false
				}
			}
			for g := range all {
				// All gateways ask within a second of the change, some for nothing.
				want := random.Int64N(8)
				if i >= change && !all[g].told && i < change+10 {
					want = max(1, want)
				}
				uses = append(uses, use{now, all[g].step(r, now, limit, want, random)})
			}
		}
		if most := worst(uses); most > limit+limit/20 {
			t.Errorf("seed %d: %d in a minute, %d are allowed", seed, most, limit+limit/20)
		}
	}
}

func TestRatesAsk(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	r := newRates()
	r.reset(now.Add(-time.Hour), "l", 1)
	limit := cluster.Amount{Requests: 10}
	ask := func(want, back cluster.Amount) cluster.Slice {
		t.Helper()
		s, err := r.ask(now, limit, &cluster.SliceAsk{Gateway: "g", Key: "k", Want: want, Back: back})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	// No bound on tokens: all that is wanted.
	if s := ask(cluster.Amount{Requests: 8, Tokens: 1 << 40}, cluster.Amount{}); s.Given != (cluster.Amount{Requests: 8, Tokens: 1 << 40}) || s.Retry != 0 {
		t.Errorf("first %+v", s)
	}
	if s := ask(cluster.Amount{Requests: 8}, cluster.Amount{}); s.Given.Requests != 2 || s.Retry <= 0 || s.Retry > cluster.SliceWindow+cluster.SliceStep {
		t.Errorf("second %+v", s)
	}
	if s := ask(cluster.Amount{Requests: 8}, cluster.Amount{Requests: 5}); s.Given.Requests != 5 {
		t.Errorf("after 5 came back %+v", s)
	}
	if s := ask(cluster.Amount{Requests: 1}, cluster.Amount{}); s.Given.Requests != 0 {
		t.Errorf("with nothing left %+v", s)
	}
	now = now.Add(cluster.SliceWindow + cluster.SliceStep)
	if s := ask(cluster.Amount{Requests: 20}, cluster.Amount{}); s.Given.Requests != 10 {
		t.Errorf("after the window %+v", s)
	}
	if _, err := r.ask(now, limit, &cluster.SliceAsk{Key: "k", Want: cluster.Amount{Requests: -1}}); !errors.Is(err, client.ErrBadRequest) {
		t.Errorf("negative: %v", err)
	}
}

// The leader's own lateness is nobody's silence.
func TestBeats(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	b := newBeats()
	incarnation := uint64(1)
	silent := func(node string, want time.Duration, heard bool) {
		t.Helper()
		if got, ok := b.silence(now, node, incarnation); got != want || ok != heard {
			t.Errorf("%s is silent for %s, heard %v; want %s, %v", node, got, ok, want, heard)
		}
	}
	silent("a", 0, false) // nobody was silent before the first look
	now = now.Add(time.Second)
	silent("a", time.Second, false)
	b.note(now, cluster.Beat{Node: "a", Index: 7})
	now = now.Add(3 * time.Second)
	silent("a", 3*time.Second, true)
	silent("b", 0, false)
	b.forgive(2 * time.Second)
	silent("a", time.Second, true)
	if beat, ok := b.last("a"); !ok || beat.Index != 7 {
		t.Errorf("last %v %v", beat, ok)
	}
	if beat, ok := b.last("b"); ok {
		t.Errorf("last %v of a node that was not heard", beat)
	}
	if all := b.all(now); len(all) != 1 || all["a"].Age != time.Second {
		t.Errorf("all %v", all)
	}
	incarnation = 2
	silent("a", 0, true) // a start
	now = now.Add(time.Second)
	silent("a", time.Second, true)
	b.reset()
	silent("a", 0, false)
}

func TestTries(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	tr := newTries()
	for i := range maxTries {
		if err := tr.allowed(now, "a"); err != nil {
			t.Fatalf("try %d: %v", i, err)
		}
		tr.bad(now, "a")
		now = now.Add(time.Second)
	}
	if err := tr.allowed(now, "a"); !errors.Is(err, client.ErrTooMany) {
		t.Errorf("error %v, want ErrTooMany", err)
	}
	if err := tr.allowed(now, "b"); err != nil {
		t.Errorf("another address: %v", err)
	}
	now = now.Add(tryWindow - 9*time.Second)
	if err := tr.allowed(now, "a"); err != nil {
		t.Errorf("after a minute: %v", err)
	}
	for i := range 2 * maxTriers {
		tr.bad(now, fmt.Sprint(i))
	}
	if len(tr.at) > maxTriers {
		t.Errorf("%d addresses are remembered", len(tr.at))
	}
}
