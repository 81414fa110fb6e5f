package engine

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/sourcegraph/conc"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/policies"
)

// faulty is a policy in which two models take turns. It does something wrong about the
// requests of one seed.
type faulty struct {
	self policies.ModelID
	what string
}

// faultySeed is of the requests that it is wrong about.
const faultySeed = 13

func (faulty) Spec() policies.Spec { return policies.Spec{} }

func (p faulty) Route(b *policies.Batch, _ *policies.Result, out []policies.Decision) {
	for i, q := range b.Reqs {
		out[i] = policies.Decision{To: 1 - p.self, Keep: true}
		if q.Sampling.Seed != faultySeed || len(q.Out) < 3 {
			continue
		}
		switch p.what {
		case "panic in Route":
			panic("here")
		case "no such model":
			out[i].To = 9
		case "drops and stays":
			out[i] = policies.Decision{To: p.self}
		case "no such ids":
			out[i].Inject = []int32{-5}
		case "ids beyond all":
			out[i].Inject = []int32{1 << 30}
		case "too many ids":
			out[i].Inject = make([]int32, policies.MaxInject+1)
		}
	}
}

func (p faulty) Send(q *policies.Req, _ policies.Decision, h *policies.Handoff) {
	if q.Sampling.Seed != faultySeed || len(q.Out) < 3 {
		return
	}
	switch p.what {
	case "panic in Send":
		panic("here")
	case "a large payload":
		h.Blob = make([]byte, policies.MaxBlob+1)
	case "a large state":
		h.State.Len = policies.MaxState + 1
	}
}

func (p faulty) Receive(q *policies.Req, _ *policies.Handoff) (policies.Verdict, policies.ModelID) {
	if q.Sampling.Seed != faultySeed {
		return policies.Run, p.self
	}
	if p.what == "a wild mixture" && p.self == 1 {
		q.Mix = &policies.Mixture{Weight: 0.5, Entries: []policies.TopEntry{{ID: -1}, {ID: 1 << 30}}}
	}
	if len(q.Out) >= 3 {
		switch p.what {
		case "panic in Receive":
			panic("here")
		case "passes on to itself":
			return policies.Bounce, p.self
		case "ends it":
			return policies.Finish, 0
		}
	}
	if p.what == "panic on admission" {
		panic("here")
	}
	if p.what == "ends it on admission" {
		return policies.Finish, 0
	}
	return policies.Run, p.self
}

// What a policy of one's own gets wrong about one request ends that one. The others
// beside it have their answers, undisturbed, and nothing is left of it.
func TestFaultsOfOwnPolicies(t *testing.T) {
	list := questions(6, 24)
	for i := range list {
		seed := uint64(i)
		if i == 3 {
			seed = faultySeed
		}
		list[i].Seed = &seed
	}
	type end struct {
		tokens int // after which it ends well
		fails  string
	}
	faults := map[string]end{
		"panic in Route": {fails: "tiny-l\": Route panicked"}, "no such model": {fails: "tiny-l\": Route: Decision.To"}, "drops and stays": {fails: "tiny-l\": Route: Decision.Keep"},
		"no such ids": {fails: "tiny-l\": Route: Decision.Inject"}, "ids beyond all": {fails: "tiny-l\": Route: Decision.Inject"}, "too many ids": {fails: "tiny-l\": Route: Decision.Inject"},
		"panic in Send": {fails: "tiny-s\": Send panicked"}, "a large payload": {fails: "tiny-s\": Send: Handoff.Blob"}, "a large state": {fails: "tiny-s\": Send: Handoff.State"},
		"panic in Receive": {fails: "tiny-l\": Receive panicked"}, "panic on admission": {fails: "tiny-s\": Receive panicked"}, "passes on to itself": {fails: "tiny-l\": Receive: the turn"},
		"ends it": {tokens: 3}, "ends it on admission": {}, "a wild mixture": {tokens: 24},
	}
	e := start(t, func(c *Config) {
		c.Device, c.Deployments = "cpu", nil
		for _, what := range append(slices.Collect(maps.Keys(faults)), "nothing") {
			own := policies.Named("faulty", func(self policies.ModelID) policies.Policy { return faulty{self, what} })
			c.Deployments = append(c.Deployments, Deployment{Name: what, Models: []string{"tiny-s", "tiny-l"}, Policy: Policy{Own: own}})
		}
	})
	under := func(what string) []Request {
		out := slices.Clone(list)
		for i := range out {
			out[i].Model = what
		}
		return out
	}
	want := answers(t, e, under("nothing"), 6, nil)
	for what, ends := range faults {
		t.Run(what, func(t *testing.T) {
			list := under(what)
			rest := slices.Concat(list[:3], list[4:])
			var bad []said
			var fault error
			var beside conc.WaitGroup
			beside.Go(func() { bad, fault = ask(e, list[3]) })
			got := answers(t, e, rest, len(rest), nil)
			beside.Wait()
			for i, w := range slices.Concat(want[:3], want[4:]) {
				if d := differs(got[i], w); d != "" {
					t.Errorf("a neighbour: %s", d)
				}
				if got[i][0].End.Epoch != 1 {
					t.Errorf("a neighbour has been moved")
				}
			}
			switch err := fault; {
			case ends.fails != "" && (err == nil || !strings.HasPrefix(err.Error(), generate.CodePolicy+": the routing policy \"faulty\" of deployment \""+what+"\" failed at model \""+ends.fails)):
				t.Errorf("it ends with %v, want %s: …%s", err, generate.CodePolicy, ends.fails)
			case ends.fails == "" && (err != nil || len(bad[0].IDs) != ends.tokens):
				t.Errorf("it ends with %v after %v", err, bad)
			}
			awaitIdle(t, e)
		})
	}
}
