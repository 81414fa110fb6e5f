package gatewaynode

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/engine"
	"github.com/tokenrouter/tokenrouter/internal/cluster/clustertest"
	"github.com/tokenrouter/tokenrouter/internal/node"
	"github.com/tokenrouter/tokenrouter/models"
	"github.com/tokenrouter/tokenrouter/worker/model/modeltest"
)

// pairs are of the tokens that have other ids in the renumbered large model; two of them
// are named by id.
func pairs() []string {
	return []string{"<|endoftext|>=<|endoftext|>", "<|im_start|>=<|im_start|>", "746=747", "<think>=<think>", "748=744"}
}

// asked are questions to a deployment, with what is translated on the way: stop ids, the
// end, biases, penalties.
func (s *server) asked(deployment string) []reply {
	s.t.Helper()
	var out []reply
	for i, question := range []string{"What is 17 + 25?", "Is 9 larger than 12?", "Count from 3 to 8.", "What is 6 * 7?"} {
		for _, more := range []map[string]any{
			{"max_tokens": 120}, {"max_tokens": 9},
			{"logit_bias": map[string]int{"748": -5, "747": 1}, "frequency_penalty": 0.5},
			{"stop_token_ids": []int{748}, "ignore_eos": i%2 == 0, "trctl": map[string]any{"policy": "random", "threshold": 0.5}},
		} {
			r := s.chat(deployment, question, more)
			if r.status != 200 {
				s.t.Fatalf("%s: %d %s", deployment, r.status, r.body)
			}
			out = append(out, r)
		}
	}
	return out
}

// A large model whose added tokens have other ids writes the same text under a special
// map, in one process and with each model on a worker of its own.
func TestSpecialMap(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	files, _ := models.FS("tiny-l")
	dir := modeltest.Renumber(t, files, "renumbered", map[int]int{744: 745, 745: 746, 746: 747, 747: 748, 748: 744}, 747)
	other := engine.Model{Name: "other", Dir: dir}
	special := map[string][]string{"other": pairs()}
	threshold := engine.TrioThreshold("r-stitch")
	alone := &server{t: t, http: r.http, url: served(t, func(c *node.Config) {
		plain := c.Deployments[0]
		plain.AllowOverride = true
		mapped := plain
		mapped.Name, mapped.Models, mapped.SpecialMap = "mapped", []string{"tiny-s", "other"}, special
		m := c.Models[1]
		m.Name, m.Dir = other.Name, other.Dir
		c.Models = append(c.Models, m)
		c.Deployments = []node.Deployment{plain, mapped}
	})}
	want := alone.asked("tiny")
	large, ends := 0, map[string]int{}
	for i := range want {
		if want[i].Trctl.Tokens["tiny-l"] > 0 {
			large++
		}
		ends[want[i].Choices[0].Finish]++
	}
	if large < len(want)/2 || ends["stop"] == 0 || ends["length"] == 0 {
		t.Errorf("void: the large model takes part in %d of %d answers, ends %v", large, len(want), ends)
	}
	compare := func(what string, got []reply) {
		t.Helper()
		for i := range want {
			a, b := &got[i], &want[i]
			if a.text() != b.text() || a.Choices[0].Finish != b.Choices[0].Finish || a.Trctl.Tokens["other"] != b.Trctl.Tokens["tiny-l"] {
				t.Errorf("%s, question %d: %q, %s; without a map %q, %s", what, i, a.text(), a.Choices[0].Finish, b.text(), b.Choices[0].Finish)
			}
		}
	}
	compare("one process", alone.asked("mapped"))

	settings, err := (&cluster.PolicySettings{Threshold: threshold, AllowOverride: true, SpecialMap: special}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	r.Propose(r.Leader(), cluster.KindPutDeployment, cluster.Deployment{Name: "mapped", Models: []string{"tiny-s", "other"}, Policy: "r-stitch", Settings: settings})
	r.realWorker("w1", embedded("tiny-s"))
	w2 := r.realWorker("w2", map[string]engine.Model{"other": other})
	g := r.gateway("g1").await()
	key, _ := r.key(nil)
	gate := &server{t: t, http: r.http, url: g.url, key: key}
	clustertest.Await(t, "both models", func() bool { return gate.chat("mapped", "1 + 1?", nil).status == 200 })
	compare("two workers", gate.asked("mapped"))
	if s := w2.State(); len(s.ReplicasOf("other")) != 1 || s.ReplicasOf("other")[0].Facts.Words == nil || s.ReplicasOf("other")[0].Reason != "" {
		t.Errorf("replicas %+v", s.ReplicasOf("other"))
	}
}

// A map that cannot be made is refused with what is wrong: at the start by one process; in
// a cluster by the deployment alone, to clients and to operators.
func TestSpecialMapRefused(t *testing.T) {
	t.Parallel()
	files, _ := models.FS("tiny-l")
	same := engine.Model{Name: "same", Dir: modeltest.Renumber(t, files, "same", map[int]int{747: 748, 748: 747}, 746)}
	swapped := engine.Model{Name: "swapped", Dir: modeltest.Renumber(t, files, "swapped", nil, 746)}
	modeltest.EditJSON(t, filepath.Join(swapped.Dir, "tokenizer.json"), func(words map[string]any) {
		vocab := words["model"].(map[string]any)["vocab"].(map[string]any)
		vocab["Ġknows"], vocab["Ġlarge"] = vocab["Ġlarge"], vocab["Ġknows"]
	})
	think := []string{"<think>=<think>", "</think>=</think>"}
	cases := map[string]struct {
		model engine.Model
		pairs []string
		says  string
	}{
		"unknown": {same, []string{"<think>=<thunk>"}, `the other model has no token "<thunk>"`},
		"twice":   {same, []string{"747=748", "748=748"}, "both to 748"},
		"words":   {swapped, think, "vocabularies differ beyond their added tokens"},
	}
	r := newRig(t, 1)
	r.realWorker("w1", embedded("tiny-s"))
	w2 := r.realWorker("w2", map[string]engine.Model{"same": same, "swapped": swapped})
	g := r.gateway("g1")
	key, _ := r.key(nil)
	for name, c := range cases {
		cfg := node.Defaults()
		cfg.Listen = ""
		onCPU(&cfg.Config)
		m := c.model
		m.Threshold = 1
		cfg.Models = []node.Model{cfg.Models[0], m}
		cfg.Deployments = []node.Deployment{{
			Name: name, Models: []string{"tiny-s", m.Name}, Policy: node.Policy{Name: "me"}, SpecialMap: map[string][]string{m.Name: c.pairs},
		}}
		if _, err := node.New(cfg); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: one process says %v, want %s", name, err, c.says)
		}
		settings, err := (&cluster.PolicySettings{SpecialMap: cfg.Deployments[0].SpecialMap}).Encode()
		if err != nil {
			t.Fatal(err)
		}
		r.Propose(r.Leader(), cluster.KindPutDeployment, cluster.Deployment{Name: name, Models: cfg.Deployments[0].Models, Policy: "me", Settings: settings})
	}
	g.await()
	gate := &server{t: t, http: r.http, url: g.url, key: key}
	for name, c := range cases {
		clustertest.Await(t, "the refusal of "+name, func() bool {
			a := gate.chat(name, "1 + 1?", nil)
			return a.status == 503 && strings.Contains(a.Error.Message, c.says)
		})
		clustertest.Await(t, "what operators hear of "+name, func() bool {
			replica := w2.State().ReplicasOf("tiny-s")[0]
			return replica.LeavesOut(name) && strings.Contains(replica.Reason, c.says)
		})
	}
}
