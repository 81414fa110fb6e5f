package control

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/gateway/quota"
)

// stage is a leader's rates and the gateways that ask it, on a clock that is set by hand.
type stage struct {
	now   time.Time
	limit cluster.Amount
	rates *rates
	books []*quota.Book
	asked int
	// held and counts are the most amounts of an ask and of an answer.
	held, counts int
	// spent is what requests have: reserved, or used once they have ended.
	spent []*spending
}

// spending is what a request has.
type spending struct {
	at     time.Time
	amount cluster.Amount
	settle func(int64)
}

func newStage(gateways int, limit cluster.Amount) *stage {
	s := &stage{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), limit: limit, rates: newRates()}
	s.rates.reset(s.now.Add(-time.Hour), "l", 1)
	for i := range gateways {
		s.books = append(s.books, quota.NewBook(quota.Config{
			Gateway: fmt.Sprintf("g%d", i), Lessor: s, Gateways: func() int { return gateways }, Now: func() time.Time { return s.now },
		}))
	}
	return s
}

// Slice implements quota.Lessor.
func (s *stage) Slice(_ context.Context, ask cluster.SliceAsk) (cluster.Slice, error) {
	s.asked++
	out, err := s.rates.ask(s.now, s.limit, &ask)
	s.held, s.counts = max(s.held, len(ask.Held)), max(s.counts, len(out.Counts))
	return out, err
}

// reserve asks for one request, and notes it if it is granted.
func (s *stage) reserve(gateway int, tokens int64) (quota.Refusal, bool) {
	settle, refused, ok := s.books[gateway].Account("k", s.limit).Reserve(context.Background(), tokens)
	if ok {
		s.spent = append(s.spent, &spending{s.now, s.amount(tokens), settle})
	}
	return refused, ok
}

// amount is what a request is charged with.
func (s *stage) amount(tokens int64) (a cluster.Amount) {
	if s.limit.Requests > 0 {
		a.Requests = 1
	}
	if s.limit.Tokens > 0 {
		a.Tokens = min(tokens, s.limit.Tokens)
	}
	return a
}

// end settles one of the requests that run, if there are any.
func (s *stage) end(random *rand.Rand, used func(reserved int64) int64) {
	if len(s.spent) == 0 {
		return
	}
	x := s.spent[random.IntN(len(s.spent))]
	if x.settle == nil {
		return
	}
	n := used(x.amount.Tokens)
	x.settle(n)
	x.settle = nil
	if s.limit.Tokens > 0 && s.now.Sub(x.at) < cluster.SliceWindow { // else nothing comes back
		x.amount.Tokens = n
	}
}

// pass lets time pass, in which gateways return what they owe twice a second.
func (s *stage) pass(d time.Duration) {
	for end := s.now.Add(d); s.now.Before(end); {
		next := s.now.Truncate(500 * time.Millisecond).Add(500 * time.Millisecond)
		if next.After(end) {
			s.now = end
			return
		}
		s.now = next
		for _, b := range s.books {
			b.Return(context.Background())
		}
	}
}

// free is what is left for sure: what was spent within the longest time for which the
// leader counts it is taken off.
func (s *stage) free() cluster.Amount {
	a := s.limit
	for _, x := range s.spent {
		if s.now.Sub(x.at) < counted {
			a.Requests, a.Tokens = a.Requests-x.amount.Requests, a.Tokens-x.amount.Tokens
		}
	}
	return a
}

// suffices says that there is enough of the rates that are bounded.
func (s *stage) suffices(free, need cluster.Amount) bool {
	return (s.limit.Requests == 0 || free.Requests >= need.Requests) && (s.limit.Tokens == 0 || free.Tokens >= need.Tokens)
}

// seeds is how many seeds a test tries, or what else it has many of: few in the short form, which is for the race
// detector, as nearly all of these tests have a single goroutine.
func seeds(few, all uint64) uint64 {
	if testing.Short() {
		return few
	}
	return all
}

var outlookLimits = []cluster.Amount{
	{Requests: 1}, {Requests: 7}, {Requests: 300}, {Tokens: 10}, {Tokens: 5000}, {Requests: 12, Tokens: 900}, {Requests: 400, Tokens: 2000},
}

// A request is never refused while there is enough for it, whatever was refused just
// before; and the time that a refusal tells is the earliest one at which it is granted.
func TestRefusalsAreTrue(t *testing.T) {
	for _, limit := range outlookLimits {
		for seed := range seeds(2, 6) {
			random := rand.New(rand.NewPCG(seed, 77))
			s := newStage(1, limit)
			refusals := 0
			for range 600 {
				s.pass(time.Duration(random.Int64N(int64(400 * time.Millisecond))))
				if random.IntN(3) == 0 {
					s.end(random, func(reserved int64) int64 { return random.Int64N(reserved + 1) })
				}
				tokens := 1 + random.Int64N(max(1, limit.Tokens/int64(1+random.IntN(40))))
				need, free := s.amount(tokens), s.free()
				refused, ok := s.reserve(0, tokens)
				if ok {
					continue
				}
				refusals++
				if s.suffices(free, need) {
					t.Fatalf("%v, seed %d: refused %+v of %+v: %+v", limit, seed, need, free, refused)
				}
				if wantRequests := limit.Requests > 0 && free.Requests < need.Requests; refused.Requests && !wantRequests {
					t.Fatalf("%v, seed %d: requests are said to be short, %+v are left: %+v", limit, seed, free, refused)
				}
				if wantTokens := limit.Tokens > 0 && free.Tokens < need.Tokens; refused.Tokens && !wantTokens {
					t.Fatalf("%v, seed %d: tokens are said to be short, %+v are left: %+v", limit, seed, free, refused)
				}
				if refusals%20 != 0 {
					continue
				}
				// Nothing ends meanwhile.
				if refused.After > 2*time.Second {
					s.pass(refused.After - time.Millisecond)
					if again, ok := s.reserve(0, tokens); ok || again.After > 100*time.Millisecond {
						t.Fatalf("%v, seed %d: %v after a refusal for %v: granted %t, %+v", limit, seed, refused.After-time.Millisecond, refused.After, ok, again)
					}
					refused.After = time.Millisecond
				}
				s.pass(refused.After)
				if again, ok := s.reserve(0, tokens); !ok {
					t.Fatalf("%v, seed %d: the wait is over, and it is refused again: %+v", limit, seed, again)
				}
			}
			if limit.Requests+limit.Tokens > 1 && refusals < 10 {
				t.Errorf("%v, seed %d: only %d refusals", limit, seed, refusals)
			}
		}
	}
}

// What one gateway does not use, another gets: after a quiet moment any of them is
// granted all that is left and not kept for another, however many there are and also after
// a change of leader, and the wait that it tells for more is long enough.
func TestNoGatewayStarves(t *testing.T) {
	for _, limit := range outlookLimits {
		for seed := range seeds(1, 3) {
			random := rand.New(rand.NewPCG(seed, 78))
			s := newStage(5, limit)
			for round := range 30 {
				for range 40 {
					s.pass(time.Duration(random.Int64N(int64(200 * time.Millisecond))))
					if random.IntN(2) == 0 {
						s.end(random, func(reserved int64) int64 { return random.Int64N(reserved + 1) })
					}
					s.reserve(random.IntN(5), 1+random.Int64N(max(1, limit.Tokens/20)))
				}
				if round == 15 {
					s.rates.reset(s.now, "m", 2)
					for _, b := range s.books {
						b.Tell(t.Context())
					}
				}
				s.pass(4 * time.Second)
				free := s.free()
				if round >= 15 {
					// Slices of one moment are told to the new leader as given with the last of them.
					s.now = s.now.Add(-time.Second)
					free = s.free()
					s.now = s.now.Add(time.Second)
				}
				gateway := random.IntN(5)
				kept := s.rates.keys["k"].kept(s.now, &cluster.SliceAsk{Gateway: fmt.Sprintf("g%d", gateway), Need: limit}) // at most
				free.Requests, free.Tokens = free.Requests-kept.Requests, free.Tokens-kept.Tokens
				tokens := max(0, free.Tokens)
				if need := s.amount(tokens); s.suffices(free, need) {
					if refused, ok := s.reserve(gateway, tokens); !ok {
						t.Fatalf("%v, seed %d, round %d: %+v of %+v are refused: %+v", limit, seed, round, need, free, refused)
					}
				}
				gateway, tokens = random.IntN(5), 1+random.Int64N(max(1, limit.Tokens))
				refused, ok := s.reserve(gateway, tokens)
				if ok {
					continue
				}
				s.pass(refused.After)
				if again, ok := s.reserve(gateway, tokens); !ok {
					t.Fatalf("%v, seed %d, round %d: after %v it is refused again: %+v", limit, seed, round, refused.After, again)
				}
			}
		}
	}
}

// Clients that do not wait are refused without the leader being asked each time.
func TestAsksOfTheImpatient(t *testing.T) {
	limit := cluster.Amount{Requests: 60, Tokens: 1000}
	s := newStage(1, limit)
	for range 1000 {
		s.reserve(0, 1)
	}
	before := s.asked
	for range 6000 { // a minute
		s.pass(10 * time.Millisecond)
		s.reserve(0, 1)
	}
	if asks := s.asked - before; asks > 130 {
		t.Errorf("the leader was asked %d times for 6000 requests", asks)
	}
}

// What requests use beyond what they reserve is paid for by all gateways: in the long run
// no more is used than the rate, and the wait that is told is long enough, if a little
// too long.
func TestOveruseIsPaid(t *testing.T) {
	for _, limit := range []cluster.Amount{{Tokens: 1000}, {Requests: 50, Tokens: 3000}} {
		for seed := range seeds(1, 8) {
			random := rand.New(rand.NewPCG(seed, 79))
			s := newStage(3, limit)
			start := s.now
			var used int64
			for range 200 {
				gateway, tokens := random.IntN(3), 1+random.Int64N(2*limit.Tokens)
				refused, ok := s.reserve(gateway, tokens)
				if !ok {
					s.pass(refused.After)
					if refused, ok = s.reserve(gateway, tokens); !ok {
						t.Fatalf("%v, seed %d: the wait is over, and it is refused again: %+v", limit, seed, refused)
					}
				}
				s.pass(time.Duration(random.Int64N(int64(3 * time.Second))))
				x := s.spent[len(s.spent)-1]
				n := random.Int64N(5 * x.amount.Tokens)
				x.settle(n)
				used += n
				s.pass(time.Second) // it is told
			}
			windows := int64(s.now.Sub(start)/time.Minute) + 1
			if allowed := windows*limit.Tokens + 5*limit.Tokens; used > allowed {
				t.Errorf("%v, seed %d: %d tokens in %d minutes", limit, seed, used, windows)
			}
			if used < windows*limit.Tokens/2 {
				t.Errorf("%v, seed %d: only %d tokens in %d minutes", limit, seed, used, windows)
			}
		}
	}
}

// All gateways wait for what one of them has used too much of, and the wait is told to
// the moment; a new leader learns of it too.
func TestOveruseOfOtherGateways(t *testing.T) {
	for _, change := range []string{"", "told before", "not told before"} {
		t.Run(change, func(t *testing.T) {
			limit := cluster.Amount{Tokens: 100}
			s := newStage(2, limit)
			if _, ok := s.reserve(0, 10); !ok {
				t.Fatal("the first request is refused")
			}
			s.pass(time.Second)
			s.spent[0].settle(250) // 100 now, 100 when that leaves the window, 50 then
			if change != "not told before" {
				s.pass(time.Second)
			}
			if change != "" {
				s.rates.reset(s.now, "m", 2)
				for _, b := range s.books {
					b.Tell(t.Context())
				}
				s.pass(4 * time.Second)
			}
			refused, ok := s.reserve(1, 50)
			if ok || !refused.Tokens {
				t.Fatalf("granted %t, %+v", ok, refused)
			}
			end := s.now.Add(refused.After).Sub(s.spent[0].at)
			want := 2 * counted // after the first window and the second
			if change == "told before" {
				want = counted // the last leader alone knew what is owed
			}
			if end < want-time.Second || end > want+2*time.Second {
				t.Errorf("all is paid after %v, want %v", end, want)
			}
			s.pass(refused.After - 2*time.Second)
			if _, ok := s.reserve(1, 50); ok {
				t.Error("granted two seconds before its time")
			}
			s.pass(2 * time.Second)
			if again, ok := s.reserve(1, 50); !ok {
				t.Errorf("refused again: %+v", again)
			}
		})
	}
}

// A leader that has just begun gives little, and a refusal tells when that is over. What
// needs less than it gives passes at once.
func TestRefusalOfANewLeader(t *testing.T) {
	s := newStage(1, cluster.Amount{Tokens: 100})
	s.rates.reset(s.now, "l", 1)
	for range 2 {
		refused, ok := s.reserve(0, 50)
		if ok || refused.After != grace || refused.Tokens || refused.Requests {
			t.Errorf("granted %t, %+v", ok, refused)
		}
	}
	if refused, ok := s.reserve(0, 4); !ok {
		t.Errorf("a small request is refused: %+v", refused)
	}
	refused, _ := s.reserve(0, 50)
	s.pass(refused.After)
	if refused, ok := s.reserve(0, 50); !ok || refused.After > 0 {
		t.Errorf("after its wait it is refused: %+v", refused)
	}
}

// A gateway that stops leaves nothing behind that others could use, and one that starts
// again under its name is heard.
func TestGatewayStartsAgain(t *testing.T) {
	limit := cluster.Amount{Requests: 600, Tokens: 60_000}
	s := newStage(2, limit)
	for range 3 {
		for gateway := range 2 {
			if refused, ok := s.reserve(gateway, 1000); !ok {
				t.Fatalf("refused: %+v", refused)
			}
			s.spent[len(s.spent)-1].settle(300)
		}
		s.books[0].Leave(t.Context())
		s.books[0] = quota.NewBook(quota.Config{Gateway: "g0", Lessor: s, Gateways: func() int { return 2 }, Now: func() time.Time { return s.now }})
		s.now = s.now.Add(time.Second)
	}
	s.books[1].Leave(t.Context())
	if sum, want := s.rates.keys["k"].sum, (cluster.Amount{Requests: 6, Tokens: 1800}); sum != want {
		t.Errorf("%+v count, want %+v", sum, want)
	}
}

// However many requests there are, and whatever they use, a gateway keeps a few amounts
// for each second, and so do its asks and the answers.
func TestFewAmountsAreKept(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 80))
	perSecond := int64(seeds(200, 1000))
	s := newStage(1, cluster.Amount{Tokens: 1 << 40 * perSecond / 1000})
	for range 70 * perSecond {
		s.pass(time.Second / time.Duration(perSecond))
		tokens := 1 + random.Int64N(1<<24)
		if random.IntN(100) == 0 {
			tokens <<= 8 // more than a second's worth is asked for, now and then
		}
		if _, ok := s.reserve(0, tokens); ok {
			x := s.spent[0]
			x.settle(random.Int64N(2 * x.amount.Tokens))
			s.spent = s.spent[:0]
		}
	}
	if s.held > 200 || s.counts > 130 {
		t.Errorf("%d amounts are held, %d count", s.held, s.counts)
	}
	if s.held < 60 || s.counts < 60 {
		t.Errorf("%d amounts are held, %d count: too few for the test", s.held, s.counts)
	}
	t.Logf("%d held, %d count, %d asks", s.held, s.counts, s.asked)
}
