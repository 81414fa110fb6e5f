package gatewaynode

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/engine"
	"github.com/tokenrouter/tokenrouter/internal/cluster/clustertest"
	"github.com/tokenrouter/tokenrouter/internal/node"
)

// wish is what a request says about its routing, and what becomes of it.
type wish struct {
	name, deployment, trctl string
	// param and says are of a refusal.
	param, says string
	// policy is what routed, from and to bound the large share.
	policy   string
	from, to float64
}

// wishes are for tiny, which allows overrides, and shut, which does not.
func wishes() []wish {
	const closed = "does not allow requests to change its routing (allow_policy_override"
	return []wish{
		{"nothing", "tiny", `{}`, "", "", "r-stitch", 0, 1},
		{"own by name", "tiny", `{"policy":"r-stitch","threshold":0}`, "", "", "r-stitch", 1, 1},
		{"all", "tiny", `{"policy":"random","threshold":1}`, "", "", "random", 1, 1},
		{"half", "tiny", `{"policy":"random","threshold":1,"max_large_share":0.5}`, "", "", "random", 0.4, 0.5},
		{"small alone", "tiny", `{"policy":"single"}`, "", "", "single", 0, 0},
		{"no share", "tiny", `{"max_large_share":0}`, "", "", "r-stitch", 0, 0},
		{"an embedded network", "tiny", `{"policy":"r2r","threshold":0}`, "", "", "r2r", 1, 1},
		{"unknown", "tiny", `{"policy":"no-such"}`, "trctl.policy", `"no-such" is not offered; offered: citer, co-llm`, "", 0, 0},
		{"needs settings", "tiny", `{"policy":"rule"}`, "trctl.policy", `"rule" is not offered; offered: citer`, "", 0, 0},
		{"threshold out of range", "tiny", `{"threshold":1.5}`, "trctl.threshold", "expected 0 to 1 for policy r-stitch, found 1.5", "", 0, 0},
		{"no threshold", "tiny", `{"policy":"me","threshold":0.5}`, "trctl.threshold", "policy me has no threshold", "", 0, 0},
		{"share out of range", "tiny", `{"max_large_share":2}`, "trctl.max_large_share", "between 0 and 1", "", 0, 0},
		{"no network", "reversed", `{"policy":"r2r"}`, "trctl.policy", "r2r is not offered: it needs its router network at ", "", 0, 0},
		{"what is there", "reversed", `{"policy":"r2r"}`, "trctl.policy", "which is not there (trctl model convert-router makes one); offered: entropy, glimp-router,", "", 0, 0},
		{"policy forbidden", "shut", `{"policy":"me"}`, "trctl.policy", closed, "", 0, 0},
		{"threshold forbidden", "shut", `{"threshold":0.1}`, "trctl.threshold", closed, "", 0, 0},
		{"share forbidden", "shut", `{"max_large_share":0.1}`, "trctl.max_large_share", closed, "", 0, 0},
		{"nothing forbidden", "shut", `{}`, "", "", "r-stitch", 0, 1},
	}
}

// choose asks for all wishes, and returns the answers' texts.
func (s *server) choose() map[string]string {
	s.t.Helper()
	texts := map[string]string{}
	for _, w := range wishes() {
		var trctl any
		if err := json.Unmarshal([]byte(w.trctl), &trctl); err != nil {
			s.t.Fatal(err)
		}
		r := s.chat(w.deployment, "What is 17 + 25?", map[string]any{"trctl": trctl})
		if w.param != "" {
			if r.status != 400 || r.Error.Param != w.param || !strings.Contains(r.Error.Message, w.says) {
				s.t.Errorf("%s: %d %s, want a fault of %s: %s", w.name, r.status, r.body, w.param, w.says)
			}
			continue
		}
		if share := r.share("tiny-s"); r.status != 200 || r.Trctl.Policy != w.policy || share < w.from || share > w.to {
			s.t.Errorf("%s: %d %s: share %.2f, want %g to %g under %s", w.name, r.status, r.body, share, w.from, w.to, w.policy)
		}
		texts[w.name] = r.text()
	}
	return texts
}

// A request's choice of its routing is the same in one process and through a cluster's
// gateway: taken or refused alike, and with the same text.
func TestChoiceOfRequests(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	alone := &server{t: t, http: r.http, url: served(t, func(c *node.Config) {
		c.Deployments[0].AllowOverride = true
		shut, reversed := c.Deployments[0], c.Deployments[0]
		shut.Name, shut.AllowOverride = "shut", false
		reversed.Name, reversed.Models = "reversed", []string{"tiny-l", "tiny-s"}
		c.Deployments = append(c.Deployments, shut, reversed)
	})}
	want := alone.choose()

	r.realWorker("w1", embedded("tiny-s"))
	r.realWorker("w2", embedded("tiny-l"))
	g := r.gateway("g1")
	threshold := engine.TrioThreshold("r-stitch")
	for name, d := range map[string]struct {
		models []string
		allow  bool
	}{"tiny": {[]string{"tiny-s", "tiny-l"}, true}, "shut": {[]string{"tiny-s", "tiny-l"}, false}, "reversed": {[]string{"tiny-l", "tiny-s"}, true}} {
		settings, err := (&cluster.PolicySettings{Threshold: threshold, AllowOverride: d.allow}).Encode()
		if err != nil {
			t.Fatal(err)
		}
		g.seen(r.Propose(r.Leader(), cluster.KindPutDeployment, cluster.Deployment{Name: name, Models: d.models, Policy: "r-stitch", Settings: settings}))
	}
	key, _ := r.key(nil)
	g.await()
	gate := &server{t: t, http: r.http, url: g.url, key: key}
	clustertest.Await(t, "both models", func() bool {
		return gate.chat("reversed", "1 + 1?", nil).status == 200 && gate.chat("tiny", "1 + 1?", nil).status == 200
	})
	for name, text := range gate.choose() {
		if text != want[name] {
			t.Errorf("%s: the cluster writes %q, one process %q", name, text, want[name])
		}
	}
	// A key may narrow the choice.
	narrow, _ := r.key(func(k *cluster.Key) { k.Policies = []string{"r-stitch", "single"} })
	gate.key = narrow
	clustertest.Await(t, "the key", func() bool { return gate.chat("tiny", "1 + 1?", nil).status == 200 })
	for policy, status := range map[string]int{"single": 200, "random": 403} {
		if a := gate.chat("tiny", "1 + 1?", map[string]any{"trctl": map[string]any{"policy": policy}}); a.status != status {
			t.Errorf("a key for r-stitch and single chooses %s: %d %s", policy, a.status, a.body)
		}
	}
}

// What replicas differ in is not offered: a request may move to any of them.
func TestChoiceOfUnequalReplicas(t *testing.T) {
	s := withReplicas(t, map[string]cluster.Facts{
		"s-1":   {MaxContext: 10, Vocab: 5, Policies: []string{"me", "r2r", "random", "single", "glimp-router"}},
		"s-2":   {MaxContext: 10, Vocab: 5, Policies: []string{"citer", "me", "r2r", "random", "single"}},
		"old-1": {MaxContext: 10, Vocab: 5},
	})
	f := facts{}
	f.learn(s)
	lacks := func(entry string, settings string) map[string]string {
		out := map[string]string{}
		for _, c := range f.choices(&cluster.Deployment{Models: []string{entry, "l"}, Policy: "entropy", Settings: json.RawMessage(settings)}) {
			out[c.Policy] = c.Lacks
		}
		return out
	}
	got := lacks("s", `{"allow_policy_override":true}`)
	for policy, offered := range map[string]bool{"entropy": true, "me": true, "r2r": true, "random": true, "citer": false, "glimp-router": false} {
		if why, known := got[policy]; !known || (why == "") != offered {
			t.Errorf("%s: listed %t, lacks %q", policy, known, why)
		}
	}
	got = lacks("old", `{"allow_policy_override":true,"special_map":{"l":["<a>=<b>"]}}`)
	for policy, offered := range map[string]bool{"random": true, "r2r": false, "glimp-router": false} {
		if why, known := got[policy]; !known || (why == "") != offered {
			t.Errorf("an old worker: %s: listed %t, lacks %q", policy, known, why)
		}
	}
	if got := lacks("nobody", `{"allow_policy_override":true}`); got["r2r"] != "" {
		t.Error("what nobody has told of is lacking")
	}
	if got := lacks("s", `{}`); len(got) != 0 {
		t.Errorf("not allowed: %v", got)
	}
}
