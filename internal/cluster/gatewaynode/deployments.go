package gatewaynode

import (
	"slices"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/gateway/session"
	"github.com/tokenrouter/tokenrouter/internal/choice"
	"github.com/tokenrouter/tokenrouter/policies"
)

// facts is what is known of models by name. They outlive their replicas: a model whose
// last replica is gone is still checked as it was, and then has no capacity.
type facts map[string]cluster.Facts

// learn takes what a state's replicas have reported.
func (f facts) learn(s *state.State) {
	fresh := facts{}
	for _, r := range s.AllReplicas() {
		if r.Facts.MaxContext == 0 {
			continue // it has not loaded the model yet
		}
		known, ok := fresh[r.Model]
		if !ok {
			known = r.Facts
			known.Policies = offered(&r.Facts)
			fresh[r.Model] = known
			continue
		}
		// Replicas of one model differ in what they have room for, and in the router
		// networks that their workers have. A request may move to any of them.
		known.MaxContext = min(known.MaxContext, r.Facts.MaxContext)
		own := offered(&r.Facts)
		known.Policies = slices.DeleteFunc(known.Policies, func(name string) bool { return !slices.Contains(own, name) })
		fresh[r.Model] = known
	}
	for model, known := range fresh {
		f[model] = known
	}
}

// offered are the policies that requests may choose at an entry. A worker that does not
// tell is taken to have no router networks.
func offered(f *cluster.Facts) []string {
	if f.Policies != nil {
		return slices.Clone(f.Policies)
	}
	return slices.DeleteFunc(policies.Names(), policies.Scored)
}

// choices are what requests to a deployment may choose; nil if it allows none.
func (f facts) choices(d *cluster.Deployment) []session.PolicyChoice {
	settings, err := d.PolicySettings()
	if err != nil || !settings.AllowOverride {
		return nil // the workers say what is wrong with the settings
	}
	entry := d.Models[0]
	known, ok := f[entry]
	return choice.Of(d.Policy, d.Models, func(policy string) string {
		switch {
		case len(settings.SpecialMap) > 0 && choice.Mapped(policy):
			return choice.LacksMapped
		case ok && !slices.Contains(known.Policies, policy):
			return choice.Lacks(policy, "every replica of "+entry)
		}
		return ""
	})
}

// Bounds of a deployment of which nothing is known yet: nothing is refused for them.
// It has no entry that a request could go to.
const (
	unknownContext = generate.MaxIDs
	unknownVocab   = 1<<31 - 1
)

// deployment is what clients see of a deployment, but for its entries.
func (f facts) deployment(d *cluster.Deployment) session.Deployment {
	out := session.Deployment{
		Name: d.Name, Models: d.Models, Policy: d.Policy, Overrides: f.choices(d), MaxContext: unknownContext, Vocab: unknownVocab,
	}
	for i, model := range d.Models {
		known, ok := f[model]
		if !ok {
			continue
		}
		out.MaxContext = min(out.MaxContext, known.MaxContext)
		if i == 0 {
			out.Vocab = max(1, known.Vocab)
			out.Defaults = defaults(&known)
		}
	}
	return out
}

// defaults are the checkpoint's own sampling parameters, where they make sense: they
// come from a worker.
func defaults(f *cluster.Facts) session.Defaults {
	var d session.Defaults
	if f.Temperature >= 0 && f.Temperature <= 2 {
		d.Temperature = f.Temperature
	}
	if f.TopP >= 0 && f.TopP <= 1 {
		d.TopP = f.TopP
	}
	if f.TopK > 0 {
		d.TopK = f.TopK
	}
	return d
}

// entriesOf are the replicas that requests to a deployment may go to. Those that leave it
// out are among them only if all do: then clients hear from them why.
func entriesOf(s *state.State, d *cluster.Deployment) []cluster.Replica {
	var able, unable []cluster.Replica
	for _, r := range s.ReplicasOf(d.Models[0]) {
		switch _, ok := s.Node(r.Node); {
		case !ok || !s.Serving(&r):
		case r.LeavesOut(d.Name):
			unable = append(unable, r)
		default:
			able = append(able, r)
		}
	}
	if len(able) == 0 {
		return unable
	}
	return able
}

// doubtfulOf are the replicas of a deployment that did not serve when a leader was last
// heard, because their workers were lost, were leaving or had just started, and that may
// serve by now.
func doubtfulOf(s *state.State, d *cluster.Deployment) (out []cluster.Replica) {
	for _, r := range s.ReplicasOf(d.Models[0]) {
		_, ok := s.Node(r.Node)
		_, barred := s.Barred(&r)
		if ok && !barred && !s.Serving(&r) && !r.Draining && r.Phase != cluster.Failed && !r.LeavesOut(d.Name) {
			out = append(out, r)
		}
	}
	return out
}

// serve is what a state lets this gateway serve. In doubt, when nobody can say how the
// workers are now, those that did not serve then are the last resort. It says whether any
// deployment has an entry.
func (n *Node) serve(s *state.State, doubt bool) (list []session.Deployment, some bool) {
	n.facts.learn(s)
	for _, d := range s.AllDeployments() {
		out := n.facts.deployment(&d)
		add := func(replicas []cluster.Replica, last bool) {
			for _, r := range replicas {
				worker, _ := s.Node(r.Node)
				e, err := n.entries.of(&r, &worker)
				if err != nil {
					n.cfg.Log.Warn("replica cannot be used", "replica", r.ID, "err", err)
					continue
				}
				e.last.Store(last)
				out.Entries = append(out.Entries, e)
			}
		}
		add(entriesOf(s, &d), false)
		if doubt {
			add(doubtfulOf(s, &d), true)
		}
		if err := session.CheckDeployments([]session.Deployment{out}); err != nil {
			// One that is wrong must not keep the others from being served.
			n.cfg.Log.Error("deployment cannot be served", "deployment", d.Name, "err", err)
			continue
		}
		list = append(list, out)
		some = some || len(out.Entries) > 0
	}
	return list, some
}
