package subservice

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/policies"
)

// The policy's settings change again and again while requests run, each replica hears of
// it at another time, and lines break. Every request is routed by the version that it
// began with, to its end.
func TestVersionsAreKept(t *testing.T) {
	l := layout{policy: "me", replicas: []int{2, 2, 2}, settings: policies.Settings{Weights: []float64{1, 1, 1}}}
	seeds := 12
	if testing.Short() {
		seeds = 2
	}
	used := map[uint64]int{}
	for seed := range uint64(seeds) {
		w := newWorld(t, l, seed, 0)
		w.versions = []policies.Settings{{Weights: []float64{2, 3, 5}}}
		for _, a := range w.hosts {
			a.learn()
		}
		w.faults, w.pace = 6, 400
		w.before = func() {
			if w.rng.IntN(200) == 0 && len(w.versions) < 12 {
				w.versions = append(w.versions, policies.Settings{Weights: []float64{1 + w.rng.Float64(), 1, 1 + w.rng.Float64()}})
			}
			for _, a := range w.hosts {
				if !a.dead && a.version < len(w.versions) && w.rng.IntN(100) == 0 {
					a.learn()
				}
			}
		}
		w.play(6)
		for _, q := range w.talks {
			own := l
			own.settings = w.versions[q.version-1]
			used[q.version]++
			if want := straight(t, own, q.req); !slices.Equal(q.tokens, want.Tokens) || q.finish != want.Finish {
				t.Errorf("seed %d, request %d, version %d of %d:\n got %v\nwant %v", seed, q.req.ID, q.version, len(w.versions), q.tokens, want.Tokens)
			}
		}
		if t.Failed() {
			return
		}
	}
	if len(used) < 3 {
		t.Errorf("void: requests began with the versions %v", used)
	}
}

// A replica that is to be left has nothing new, and those that have something there go on
// elsewhere, with the same tokens.
func TestAvoidedReplicasAreLeft(t *testing.T) {
	l := layout{policy: "me", replicas: []int{1, 2, 2}, settings: policies.Settings{Weights: []float64{2, 3, 5}}}
	for seed := range uint64(6) {
		w := newWorld(t, l, seed, 0)
		avoid := []string{"m1-0", "m2-1"}
		left := map[string]*actor{}
		committed := map[string]uint64{}
		for _, a := range w.hosts {
			left[a.name] = a
		}
		events := 0
		w.before = func() {
			if events++; events != 2500 {
				return
			}
			for _, a := range w.hosts {
				if err := a.driver.s.Set([]Deployment{w.deployment(a.model, 0)}, avoid); err != nil {
					t.Fatal(err)
				}
			}
			for _, name := range avoid {
				committed[name] = left[name].driver.Stats().Committed
			}
		}
		w.play(8)
		for _, q := range w.talks {
			if want := straight(t, l, q.req); !slices.Equal(q.tokens, want.Tokens) {
				t.Errorf("seed %d, request %d:\n got %v\nwant %v", seed, q.req.ID, q.tokens, want.Tokens)
			}
		}
		for _, name := range avoid {
			before, now := committed[name], left[name].driver.Stats().Committed
			if before == 0 {
				t.Errorf("void: %s has written nothing", name)
			}
			// A turn that was there or on its way may still write its token.
			if now-before > 8 {
				t.Errorf("seed %d: %s wrote %d tokens after it was to be left", seed, name, now-before)
			}
		}
	}
}

// Without any replica of the other model a request ends, or goes on alone.
func TestFallback(t *testing.T) {
	for _, fallback := range []Fallback{FallbackWait, FallbackAlone, FallbackFail} {
		t.Run(fmt.Sprint(fallback), func(t *testing.T) {
			l := layout{policy: "me", replicas: []int{1, 1}, fallback: fallback, wait: time.Second}
			w := newWorld(t, l, 7, 0)
			w.broken = true
			events := 0
			w.before = func() {
				if events++; events == 250 {
					w.kill(w.hosts[1])
				}
				if events > 250 {
					w.now += 50 * time.Millisecond
				}
			}
			w.play(6)
			changed := 0
			for _, q := range w.talks {
				want := straight(t, l, q.req)
				n := 0
				for n < len(q.tokens) && n < len(want.Tokens) && q.tokens[n] == want.Tokens[n] {
					n++
				}
				rest := q.tokens[n:]
				switch {
				case q.err != nil && (fallback == FallbackAlone || q.err.Code != generate.CodeUnavailable || len(rest) > 0):
					t.Errorf("request %d: %v after %d tokens", q.req.ID, q.err, len(q.tokens))
				case slices.ContainsFunc(rest, func(tok generate.Token) bool { return tok.Model != 0 }):
					t.Errorf("request %d: %v", q.req.ID, rest)
				case q.alone < len(rest) || q.alone > 0 && fallback != FallbackAlone:
					t.Errorf("request %d: %d tokens are said to be of the entry model alone, %d are", q.req.ID, q.alone, len(rest))
				case q.err != nil, len(rest) > 0:
					changed++
				}
			}
			if changed == 0 {
				t.Error("void: nothing was lost")
			}
		})
	}
}

func TestSetRefuses(t *testing.T) {
	w := newWorld(t, layout{policy: "me", replicas: []int{1, 1}}, 1, 0)
	s := w.hosts[0].driver.s
	good := w.deployment(0, 0)
	short, far := good, good
	short.Replicas, far.Self = short.Replicas[:1], 2
	for name, list := range map[string][]Deployment{"twice": {good, good}, "replicas": {short}, "self": {far}, "no name": {{}}} {
		if err := s.Set(list, nil); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	if s.roster.Load().newest("pair") == nil {
		t.Error("a refused list has changed something")
	}
	other := good
	other.Name = "other"
	if err := s.Set([]Deployment{other}, nil); err != nil {
		t.Fatal(err)
	}
	_, err := s.entered(request(1, 5))
	if err == nil || err.Code != generate.CodeNotFound || !err.Retryable {
		t.Errorf("a withdrawn deployment, or one that is not known here yet: %v", err)
	}
	resumed := request(1, 5)
	resumed.Resume = &generate.Resume{}
	if _, err := s.entered(resumed); err != nil {
		t.Errorf("a request that goes on: %v", err)
	}
	s.Drain()
	if _, err := s.entered(resumed); err == nil || !err.Retryable {
		t.Errorf("while draining: %v", err)
	}
	for _, a := range w.hosts {
		a.driver.Stop()
	}
}
