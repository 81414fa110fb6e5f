package quota

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// leader is a Lessor that keeps a dumb ledger, with a clock of its own; down makes it
// silent.
type leader struct {
	rates Rates
	now   time.Time
	down  bool
	asked int
	// given is what was given, one entry each, back taken off from the newest.
	given []entry
	told  map[string]bool
	// alone is the last of each gateway's own slices that is known.
	alone map[string]uint64
	// meanwhile, if there is one, is called before an answer.
	meanwhile func()
}

type entry struct {
	at     time.Time
	amount cluster.Amount
}

func (l *leader) Slice(ctx context.Context, a cluster.SliceAsk) (cluster.Slice, error) {
	l.asked++
	if err := ctx.Err(); err != nil {
		return cluster.Slice{}, err
	}
	if l.meanwhile != nil {
		l.meanwhile()
	}
	if l.down {
		return cluster.Slice{}, errors.New("no leader")
	}
	for _, h := range a.Alone {
		if h.Seq > l.alone[a.Gateway] {
			l.alone[a.Gateway] = h.Seq
			if l.told[a.Gateway] {
				l.given = append(l.given, entry{l.now.Add(-h.Age), h.Amount})
			}
		}
	}
	if !l.told[a.Gateway] {
		l.told[a.Gateway] = true
		for _, h := range a.Held {
			l.given = append(l.given, entry{l.now.Add(-h.Age), h.Amount})
		}
	}
	for i := len(l.given) - 1; i >= 0; i-- {
		part := least(l.given[i].amount, a.Back)
		l.given[i].amount, a.Back = minus(l.given[i].amount, part), minus(a.Back, part)
	}
	var sum cluster.Amount
	first := 0
	for i, g := range l.given {
		if l.now.Sub(g.at) >= cluster.SliceWindow {
			first = i + 1
			continue
		}
		sum = plus(sum, g.amount)
	}
	l.given = l.given[first:]
	s := cluster.Slice{Life: cluster.SliceLife, Given: least(a.Want, minus(l.rates, sum))}
	if l.rates.Requests == 0 {
		s.Given.Requests = a.Want.Requests
	}
	if l.rates.Tokens == 0 {
		s.Given.Tokens = a.Want.Tokens
	}
	if s.Given != a.Want {
		s.Retry = 500 * time.Millisecond
		if len(l.given) > 0 {
			s.Retry = max(s.Retry, cluster.SliceWindow-l.now.Sub(l.given[0].at))
		}
	}
	if s.Given != (cluster.Amount{}) {
		l.given = append(l.given, entry{l.now, s.Given})
	}
	return s, nil
}

// change is another leader, which knows nothing.
func (l *leader) change() { l.given, l.told = nil, map[string]bool{} }

// books are some gateways and their leader.
func books(n int, r Rates) (*leader, []*Book) {
	l := &leader{rates: r, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), told: map[string]bool{}, alone: map[string]uint64{}}
	list := make([]*Book, n)
	for i := range list {
		list[i] = NewBook(Config{
			Gateway: fmt.Sprintf("g%d", i), Lessor: l, Gateways: func() int { return n }, Now: func() time.Time { return l.now },
		})
	}
	return l, list
}

// However many gateways there are, a key gets its rate: at most 5 % more in any
// minute, and at least half of it where single requests are large parts of it.
func TestRateOverAllGateways(t *testing.T) {
	for _, c := range []struct {
		name     string
		gateways int
		rates    Rates
		tokens   int64
	}{
		{"requests, one gateway", 1, Rates{Requests: 600}, 10},
		{"requests, seven gateways", 7, Rates{Requests: 600}, 10},
		{"requests, 40 gateways", 40, Rates{Requests: 600}, 10},
		{"tokens, one gateway", 1, Rates{Tokens: 60_000}, 100},
		{"tokens, seven gateways", 7, Rates{Tokens: 60_000}, 100},
		{"both", 3, Rates{Requests: 1200, Tokens: 60_000}, 100},
		{"one request is a quarter of the minute", 3, Rates{Tokens: 60_000}, 15_000},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, gateways := books(c.gateways, c.rates)
			draw := rand.New(rand.NewPCG(1, 2))
			const minutes = 3
			var requests, tokens [minutes]int64
			for ms := 0; ms < minutes*60_000; ms += 10 { // 100 requests a second
				l.now = l.now.Add(10 * time.Millisecond)
				if ms%500 == 0 {
					for _, b := range gateways {
						b.Return(t.Context())
					}
				}
				a := gateways[draw.IntN(len(gateways))].Account("k", c.rates)
				if settle, _, ok := a.Reserve(t.Context(), 2*c.tokens); ok {
					settle(c.tokens) // half of what was asked for
					requests[ms/60_000]++
					tokens[ms/60_000] += c.tokens
				}
			}
			for m := range minutes {
				over := false
				share := 0.0
				if r := c.rates.Requests; r > 0 {
					over = over || float64(requests[m]) > 1.05*float64(r)
					share = max(share, float64(requests[m])/float64(r))
				}
				if r := c.rates.Tokens; r > 0 {
					over = over || float64(tokens[m]) > 1.05*float64(r)
					share = max(share, float64(tokens[m])/float64(r))
				}
				if over || share < 0.5 {
					t.Errorf("minute %d: %d requests, %d tokens, of %+v", m, requests[m], tokens[m], c.rates)
				}
			}
			// 18,000 requests came: the leader is asked when a slice is spent, and when a wait is over.
			if l.asked > 10_000 {
				t.Errorf("the leader was asked %d times", l.asked)
			}
			t.Logf("%v requests, %v tokens a minute, the leader was asked %d times", requests, tokens, l.asked)
		})
	}
}

// Without a leader every gateway has its part, and asks once a second.
func TestNoLeader(t *testing.T) {
	rates := Rates{Requests: 600}
	l, gateways := books(3, rates)
	l.down = true
	var granted int
	for range 6_000 { // a minute
		l.now = l.now.Add(10 * time.Millisecond)
		for _, b := range gateways {
			if _, _, ok := b.Account("k", rates).Reserve(t.Context(), 1); ok {
				granted++
			}
		}
	}
	if granted < 500 || granted > 650 {
		t.Errorf("%d requests in a minute, want about 600", granted)
	}
	if l.asked > 3*61 {
		t.Errorf("the leader was asked %d times", l.asked)
	}
}

// An answer that was longer than expected is paid for by those after it.
func TestDebtIsPaid(t *testing.T) {
	rates := Rates{Tokens: 600}
	l, gateways := books(1, rates)
	a := gateways[0].Account("k", rates)
	settle, _, ok := a.Reserve(t.Context(), 10)
	if !ok {
		t.Fatal("the first request is refused")
	}
	settle(800)
	if _, refused, ok := a.Reserve(t.Context(), 10); ok || refused.After < time.Second || !refused.Tokens || refused.Requests {
		t.Errorf("at once: %t, %+v", ok, refused)
	}
	l.now = l.now.Add(cluster.SliceWindow)
	if _, _, ok := a.Reserve(t.Context(), 10); !ok {
		t.Error("it is refused after a minute too")
	}
}

// A key without rates is not counted, and nobody is asked.
func TestNoRates(t *testing.T) {
	l, gateways := books(1, Rates{})
	for range 100 {
		if _, _, ok := gateways[0].Account("k", Rates{}).Reserve(t.Context(), 1<<40); !ok {
			t.Fatal("refused")
		}
	}
	if l.asked != 0 {
		t.Errorf("the leader was asked %d times", l.asked)
	}
}

// A new leader learns from the gateways what was given before it.
func TestChangeOfLeader(t *testing.T) {
	rates := Rates{Requests: 600}
	l, gateways := books(4, rates)
	total := 0
	use := func() {
		for _, b := range gateways {
			for {
				settle, _, ok := b.Account("k", rates).Reserve(t.Context(), 1)
				if !ok {
					break
				}
				settle(1)
				total++
			}
		}
	}
	use()
	if total != 600 {
		t.Fatalf("%d requests of 600 at once", total)
	}
	l.now = l.now.Add(10 * time.Second)
	l.change()
	for _, b := range gateways {
		b.Tell(t.Context())
	}
	use()
	if total != 600 {
		t.Errorf("%d requests of 600 after a change of leader", total)
	}
	l.now = l.now.Add(cluster.SliceWindow)
	use()
	if total != 1200 {
		t.Errorf("%d requests of 1200 a minute later", total)
	}
}

// What was used within a window is never more than the rate, wherever the window
// begins, while no request takes long.
func TestEveryWindow(t *testing.T) {
	rates := Rates{Tokens: 6000}
	l, gateways := books(3, rates)
	draw := rand.New(rand.NewPCG(3, 4))
	type use struct {
		at     time.Time
		tokens int64
	}
	var uses []use
	for ms := 0; ms < 200_000; ms += 20 {
		l.now = l.now.Add(20 * time.Millisecond)
		for _, b := range gateways {
			if ms%500 == 0 {
				b.Return(t.Context())
			}
		}
		if ms/30_000%2 == 1 {
			continue // nothing for half a minute
		}
		want := draw.Int64N(200) + 1
		if settle, _, ok := gateways[draw.IntN(3)].Account("k", rates).Reserve(t.Context(), want); ok {
			used := draw.Int64N(want + 1)
			settle(used)
			uses = append(uses, use{l.now, used})
		}
	}
	from, sum, most := 0, int64(0), int64(0)
	for _, u := range uses {
		sum += u.tokens
		for u.at.Sub(uses[from].at) >= time.Minute {
			sum -= uses[from].tokens
			from++
		}
		most = max(most, sum)
	}
	if most > rates.Tokens*105/100 || most < rates.Tokens*8/10 {
		t.Errorf("at most %d tokens in a minute, of %d", most, rates.Tokens)
	}
}

// A key that the leader does not know gets nothing, and no own part either.
func TestRefusedKey(t *testing.T) {
	b := NewBook(Config{Gateway: "g", Lessor: refuser{}, Gateways: func() int { return 1 }})
	if _, refused, ok := b.Account("k", Rates{Requests: 60}).Reserve(t.Context(), 1); ok || refused.Requests || refused.Tokens {
		t.Errorf("a request passes, or a rate is used up: %t, %+v", ok, refused)
	}
}

type refuser struct{}

func (refuser) Slice(context.Context, cluster.SliceAsk) (cluster.Slice, error) {
	return cluster.Slice{}, fmt.Errorf("%w: gone", ErrRefused)
}
