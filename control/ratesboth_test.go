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
	"github.com/tokenrouter/tokenrouter/control/state"
)

// scene is a leader's rates and the gateways that ask it, in false time.
type scene struct {
	t        *testing.T
	limit    cluster.Amount
	views    []*client.View
	gateways []*client.Rates

	mu    sync.Mutex
	rates *rates
	term  uint64 // 0 while there is no leader
	// uses are of tokens, or of requests if there is no bound on tokens.
	uses []use
}

func newScene(t *testing.T, gateways int, limit cluster.Amount) *scene {
	s := &scene{t: t, limit: limit}
	for i := range gateways {
		view := client.NewView()
		id := fmt.Sprintf("g%d", i)
		s.views = append(s.views, view)
		s.gateways = append(s.gateways, client.NewRates(id, view, s.ask))
	}
	known := new(state.State)
	for i := range gateways {
		next, err := state.Follow(known, []state.Object{{
			Kind: state.KindNode, Name: fmt.Sprintf("g%d", i), Value: fmt.Appendf(nil, `{"id":"g%d","role":"gateway"}`, i),
		}}, uint64(i+1))
		if err != nil {
			t.Fatal(err)
		}
		known = next
	}
	for _, v := range s.views {
		v.Publish(known)
	}
	s.lead(1)
	return s
}

// lead begins the reign of another leader; 0 ends the last.
func (s *scene) lead(term uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.term, s.rates = term, newRates()
	s.rates.reset(time.Now())
	if term == 1 {
		s.rates.reset(time.Now().Add(-time.Hour)) // nobody has used anything
	}
	for _, v := range s.views {
		if term > 0 {
			v.Confirm("leader", term)
		}
	}
}

func (s *scene) ask(_ context.Context, ask cluster.SliceAsk) (cluster.Slice, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.term == 0 {
		return cluster.Slice{}, client.ErrNoLeader
	}
	out, err := s.rates.ask(time.Now(), s.limit, &ask)
	out.Leader, out.Term = "leader", s.term
	return out, err
}

// run lets every gateway have requests for a while: they come at random, wait, use a
// part of what they took and give the rest back.
func (s *scene) run(ctx context.Context, seed uint64) {
	key := &cluster.Key{ID: "k", RequestsPerMinute: s.limit.Requests, TokensPerMinute: s.limit.Tokens}
	var all sync.WaitGroup
	for i, g := range s.gateways {
		all.Go(func() {
			if err := g.Run(ctx, 250*time.Millisecond); err == nil {
				s.t.Error("Run ended without a reason")
			}
		})
		for j := range 3 {
			random := rand.New(rand.NewPCG(seed, uint64(10*i+j)))
			all.Go(func() {
				for ctx.Err() == nil {
					s.request(ctx, g, key, random)
				}
			})
		}
	}
	all.Wait()
}

func (s *scene) request(ctx context.Context, g *client.Rates, key *cluster.Key, random *rand.Rand) {
	want := cluster.Amount{Requests: 1, Tokens: 1 + random.Int64N(max(1, s.limit.Tokens/50))}
	taken := time.Now()
	retry, err := g.Take(ctx, key, want)
	switch {
	case errors.Is(err, client.ErrRate):
		if retry <= 0 {
			s.t.Errorf("refused, and to try again after %s", retry)
		}
		wait(ctx, min(retry, time.Duration(random.Int64N(int64(5*time.Second)))+time.Millisecond))
		return
	case err != nil:
		if ctx.Err() == nil {
			s.t.Error(err)
		}
		return
	}
	used := want
	wait(ctx, time.Duration(random.Int64N(int64(time.Second)))) // the request runs
	if s.limit.Tokens > 0 && random.IntN(2) == 0 {
		used.Tokens = random.Int64N(want.Tokens + 1)
		g.Back(key, cluster.Amount{Tokens: want.Tokens - used.Tokens}, taken)
	}
	n := used.Requests
	if s.limit.Tokens > 0 {
		n = used.Tokens
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uses = append(s.uses, use{taken, n})
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

// Gateways that ask the leader stay within the rate together, and use it.
func TestGatewaysShareARate(t *testing.T) {
	for _, limit := range []cluster.Amount{{Requests: 6}, {Requests: 300}, {Tokens: 50_000}} {
		for _, gateways := range []int{1, 4, 12} {
			t.Run(fmt.Sprintf("%d gateways, %v", gateways, limit), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newScene(t, gateways, limit)
					ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
					defer cancel()
					s.run(ctx, uint64(gateways))
					rate := max(limit.Requests, limit.Tokens)
					most, all := s.most()
					if most > rate {
						t.Errorf("%d in a minute, %d are allowed", most, rate)
					}
					if all < 4*rate/3 {
						t.Errorf("%d in four minutes, of %d", all, 4*rate)
					}
				})
			})
		}
	}
}

// A change of leader lets at most 5 % too much through; no leader at all at most the
// rate again, once.
func TestGatewaysAndLeaders(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				limit := cluster.Amount{Requests: 600}
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
				if most, _ := s.most(); most > limit.Requests*105/100 {
					t.Errorf("%d in a minute, %d are allowed", most, limit.Requests*105/100)
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
