package control

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/gateway/quota"
)

// scene is a leader's rates and the gateways that ask it, in false time.
type scene struct {
	t     *testing.T
	limit cluster.Amount
	books []*quota.Book
	// loss is the part of the answers that are lost, and of the asks that come twice.
	loss float64

	mu     sync.Mutex
	random *rand.Rand
	rates  *rates
	term   uint64        // 0 while there is no leader
	change chan struct{} // closed by the next change of leader
	// old says that the leader is of a build that knows no times.
	old bool
	// uses are of tokens, or of requests if there is no bound on tokens.
	uses []use
}

func newScene(t *testing.T, gateways int, limit cluster.Amount) *scene {
	s := &scene{t: t, limit: limit, change: make(chan struct{}), random: rand.New(rand.NewPCG(uint64(gateways), 9))}
	for i := range gateways {
		s.books = append(s.books, quota.NewBook(quota.Config{
			Gateway: fmt.Sprintf("g%d", i), Lessor: s, Gateways: func() int { return gateways },
		}))
	}
	s.lead(1)
	return s
}

// lead begins the reign of another leader; 0 ends the last.
func (s *scene) lead(term uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	began := time.Now()
	if term == 1 {
		began = began.Add(-time.Hour) // nobody has used anything
	}
	s.term, s.rates = term, newRates()
	s.rates.reset(began, "leader", term)
	close(s.change)
	s.change = make(chan struct{})
}

// Slice implements quota.Lessor.
func (s *scene) Slice(_ context.Context, ask cluster.SliceAsk) (cluster.Slice, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.term == 0 {
		return cluster.Slice{}, client.ErrNoLeader
	}
	if s.old {
		ask.Returned, ask.Leader, ask.Term, ask.Need = nil, "", 0, cluster.Amount{}
	}
	out, err := s.rates.ask(time.Now(), s.limit, &ask)
	if err == nil && s.random.Float64() < s.loss {
		again := ask
		again.Want = cluster.Amount{} // by way of another control node, say
		_, err = s.rates.ask(time.Now(), s.limit, &again)
	}
	if err == nil && s.random.Float64() < s.loss {
		return out, client.ErrNoLeader
	}
	if s.old {
		out.Now, out.At, out.Noted, out.Counts, out.Owed = 0, 0, false, nil, cluster.Amount{}
	}
	return out, err
}

// run lets every gateway have requests for a while: they come at random, wait, use a
// part of what they took and give the rest back.
func (s *scene) run(ctx context.Context, seed uint64) {
	var all sync.WaitGroup
	for i, b := range s.books {
		all.Go(func() { s.keep(ctx, b) })
		for j := range 3 {
			random := rand.New(rand.NewPCG(seed, uint64(10*i+j)))
			all.Go(func() {
				for ctx.Err() == nil {
					s.request(ctx, b, random)
				}
			})
		}
	}
	all.Wait()
}

// keep does what a gateway does beside its requests.
func (s *scene) keep(ctx context.Context, b *quota.Book) {
	for ctx.Err() == nil {
		s.mu.Lock()
		change := s.change
		s.mu.Unlock()
		select {
		case <-change:
			b.Tell(ctx)
		case <-time.After(500 * time.Millisecond):
			b.Return(ctx)
		case <-ctx.Done():
		}
	}
}

func (s *scene) request(ctx context.Context, b *quota.Book, random *rand.Rand) {
	tokens := 1 + random.Int64N(max(1, s.limit.Tokens/50))
	settle, refused, ok := b.Account("k", s.limit).Reserve(ctx, tokens)
	if !ok {
		if refused.After <= 0 {
			s.t.Errorf("refused, and to try again after %s", refused.After)
		}
		wait(ctx, min(refused.After, time.Duration(random.Int64N(int64(5*time.Second)))+time.Millisecond))
		return
	}
	taken := time.Now()
	wait(ctx, time.Duration(random.Int64N(int64(20*time.Second))/int64(1+random.IntN(20)))) // the request runs
	used := tokens
	if random.IntN(2) == 0 {
		used = random.Int64N(tokens + 1)
	}
	settle(used)
	if s.limit.Tokens == 0 {
		used = 1
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uses = append(s.uses, use{taken, used})
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// most is the largest use within a minute, all the sum.
func (s *scene) most() (most, all int64) {
	slices.SortFunc(s.uses, func(a, b use) int { return a.at.Compare(b.at) })
	for _, u := range s.uses {
		all += u.n
	}
	return worst(s.uses), all
}

// Gateways that ask the leader stay within the rate together, and use it; also when
// asks come twice and answers are lost, which costs some of it, and also when the leader
// is of a build that knows no times.
func TestGatewaysShareARate(t *testing.T) {
	for _, limit := range []cluster.Amount{{Requests: 6}, {Requests: 300}, {Tokens: 50_000}, {Requests: 300, Tokens: 50_000}} {
		for _, gateways := range []int{1, 4, 12} {
			if testing.Short() && gateways == 12 && min(limit.Requests, limit.Tokens) == 0 && limit.Requests != 6 {
				continue // many gateways have the smallest rate and both rates
			}
			for _, how := range []string{"", "lossy", "old"} {
				t.Run(fmt.Sprintf("%d gateways, %v %s", gateways, limit, how), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						s := newScene(t, gateways, limit)
						s.old = how == "old"
						if how == "lossy" {
							s.loss = 0.02
						}
						ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
						defer cancel()
						s.run(ctx, uint64(gateways))
						rate := max(limit.Requests, limit.Tokens)
						most, all := s.most()
						allowed := rate
						if how == "lossy" {
							// Who gets no answer to two asks gives itself its part for a second.
							allowed += rate * 5 / 100
						}
						if how == "lossy" && limit.Requests > 0 {
							allowed += int64(gateways) // one each, however small the rate is
						}
						if most > allowed {
							t.Errorf("%d in a minute, %d are allowed", most, allowed)
						}
						if how == "" && gateways > 1 && all < 4*rate*95/100 {
							t.Errorf("%d in four minutes, of %d", all, 4*rate)
						}
						t.Logf("%d in four minutes, at most %d in one, of %d", all, most, rate)
					})
				})
			}
		}
	}
}

// A change of leader lets at most 5 % too much through; no leader at all at most the
// rate again, once.
func TestGatewaysAndLeaders(t *testing.T) {
	for seed := range seeds(2, 6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				limit := cluster.Amount{Requests: 600}
				if seed%2 == 1 {
					limit = cluster.Amount{Tokens: 60_000}
				}
				s := newScene(t, 5, limit)
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
				defer cancel()
				var ends sync.WaitGroup
				ends.Go(func() {
					wait(ctx, time.Duration(20+7*seed)*time.Second)
					s.lead(2)
				})
				s.run(ctx, seed)
				ends.Wait()
				rate := max(limit.Requests, limit.Tokens)
				if most, _ := s.most(); most > rate*105/100 {
					t.Errorf("%d in a minute, %d are allowed", most, rate*105/100)
				}
			})
		})
	}
	t.Run("none", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			limit := cluster.Amount{Requests: 600}
			s := newScene(t, 5, limit)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			var ends sync.WaitGroup
			ends.Go(func() {
				wait(ctx, 30*time.Second)
				s.lead(0)
			})
			s.run(ctx, 1)
			ends.Wait()
			most, all := s.most()
			if most > 2*limit.Requests {
				t.Errorf("%d in a minute, %d are allowed", most, 2*limit.Requests)
			}
			if all < 2*limit.Requests {
				t.Errorf("%d in five minutes: without a leader there was nothing", all)
			}
			late := slices.DeleteFunc(slices.Clone(s.uses), func(u use) bool { return u.at.Sub(s.uses[0].at) < 2*time.Minute })
			if most := worst(late); most > limit.Requests {
				t.Errorf("%d in a later minute, %d are allowed", most, limit.Requests)
			}
		})
	})
}

// ledger is the leader's memory written down in full: who was given what and when, and
// what came back of it.
type ledger struct {
	lines []line
}

type line struct {
	at     time.Time
	amount int64
	// stamp is the time under which it may come back.
	stamp time.Duration
}

// within sums what was given less than d ago and did not come back.
func (l *ledger) within(now time.Time, d time.Duration) (sum int64) {
	for _, x := range l.lines {
		if now.Sub(x.at) < d {
			sum += x.amount
		}
	}
	return sum
}

// What comes back is taken off exactly: what the leader takes for given is never less
// than what was given within SliceWindow and did not come back, and never more than what
// was given within two steps more. Asks that come twice change nothing.
func TestReturnsAreExact(t *testing.T) {
	for seed := range seeds(2, 20) {
		random := rand.New(rand.NewPCG(seed, 5))
		const limit = 1000
		start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		r, now := newRates(), start
		r.reset(start.Add(-time.Hour), "l", 7)
		var all ledger
		seq := map[string]uint64{}
		for range 1000 {
			now = now.Add(time.Duration(random.Int64N(int64(300 * time.Millisecond))))
			ask := cluster.SliceAsk{
				Gateway: fmt.Sprintf("g%d", random.IntN(5)), Key: "k", Leader: "l", Term: 7, Want: cluster.Amount{Tokens: random.Int64N(30)},
			}
			told := seq[ask.Gateway] > 0
			for i := range all.lines {
				x := &all.lines[i]
				if told && x.amount > 0 && random.IntN(20) == 0 {
					back := 1 + random.Int64N(x.amount)
					x.amount -= back
					seq[ask.Gateway]++
					ask.Returned = append(ask.Returned, cluster.ReturnedSlice{Seq: seq[ask.Gateway], At: x.stamp, Amount: cluster.Amount{Tokens: back}})
				}
			}
			seq[ask.Gateway] = max(1, seq[ask.Gateway])
			s, err := r.ask(now, cluster.Amount{Tokens: limit}, &ask)
			if err != nil {
				t.Fatal(err)
			}
			if random.IntN(5) == 0 {
				ask.Want = cluster.Amount{}
				if _, err := r.ask(now, cluster.Amount{Tokens: limit}, &ask); err != nil {
					t.Fatal(err)
				}
			}
			all.lines = append(all.lines, line{at: now, amount: s.Given.Tokens, stamp: s.At})
			all.lines = slices.DeleteFunc(all.lines, func(x line) bool { return now.Sub(x.at) > 2*cluster.SliceWindow })
			low, high := all.within(now, cluster.SliceWindow), all.within(now, cluster.SliceWindow+2*cluster.SliceStep)
			if got := r.keys["k"].sum.Tokens; got < low || got > high || got > limit {
				t.Fatalf("seed %d, at %s: %d count, want %d to %d", seed, now.Sub(start), got, low, high)
			}
		}
	}
}

// What is returned to another leader, in another term or by a gateway that was not
// heard, and what is nonsense, changes nothing.
func TestReturnsThatDoNotCount(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, change := range map[string]func(*cluster.SliceAsk){
		"another leader":  func(a *cluster.SliceAsk) { a.Leader = "x" },
		"another term":    func(a *cluster.SliceAsk) { a.Term = 6 },
		"another gateway": func(a *cluster.SliceAsk) { a.Gateway = "h" },
		"no such time":    func(a *cluster.SliceAsk) { a.Returned[0].At += cluster.SliceStep },
		"a time before":   func(a *cluster.SliceAsk) { a.Returned[0].At = 0 },
		"negative":        func(a *cluster.SliceAsk) { a.Returned[0].Amount.Tokens = -5 },
		"no amount":       func(a *cluster.SliceAsk) { a.Returned[0].Amount.Tokens = 0 },
	} {
		r := newRates()
		r.reset(now.Add(-time.Hour), "l", 7)
		limit := cluster.Amount{Tokens: 100}
		first, err := r.ask(now, limit, &cluster.SliceAsk{Gateway: "g", Key: "k", Want: cluster.Amount{Tokens: 60}})
		if err != nil || !first.Noted || first.Now == 0 {
			t.Fatalf("%+v, %v", first, err)
		}
		ask := cluster.SliceAsk{
			Gateway: "g", Key: "k", Leader: "l", Term: 7,
			Returned: []cluster.ReturnedSlice{{Seq: 1, At: first.At, Amount: cluster.Amount{Tokens: 50}}},
		}
		change(&ask)
		if _, err := r.ask(now, limit, &ask); err != nil && !errors.Is(err, client.ErrBadRequest) {
			t.Fatal(err)
		}
		if sum := r.keys["k"].sum.Tokens; sum != 60 {
			t.Errorf("%s: %d count, want 60", name, sum)
		}
	}
}
