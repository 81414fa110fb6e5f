package workernode

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/engine"
	"github.com/tokenrouter/tokenrouter/worker/subservice"
)

// MaxTP is the largest number of GPUs that one replica may be spread over.
const MaxTP = 1

// assignment is what a state wants of this node, and what of it cannot be done: the
// reports of replicas that are not even tried.
func (n *Node) assignment(s *state.State) (a engine.Assignment, refused []cluster.ReplicaReport) {
	models := map[string]bool{}
	n.words.learn(s)
	for id, r := range s.AllReplicas() {
		node, _ := s.Node(r.Node)
		if _, barred := s.Barred(&r); r.Draining || node.Draining || barred {
			a.Avoid = append(a.Avoid, id)
		}
		if r.Node != n.name {
			continue
		}
		model, err := n.model(&r)
		if err != nil {
			refused = append(refused, cluster.ReplicaReport{ID: id, Generation: r.Generation, Phase: cluster.Failed, Reason: err.Error()})
			continue
		}
		models[r.Model] = true
		a.Placements = append(a.Placements, engine.Placement{
			Name: id, Generation: r.Generation, Model: model, GPUs: r.GPUs, Draining: r.Draining,
		})
	}
	for name, d := range s.AllDeployments() {
		delete(models, name) // the name means the deployment
		g, err := n.words.routing(s, &d)
		if err != nil {
			n.cfg.Log.Warn("deployment cannot be served", "deployment", name, "err", err)
			continue
		}
		a.Groups = append(a.Groups, g)
	}
	for model := range models {
		g := engine.Routing{Deployment: engine.Alone(model), Replicas: [][]string{names(s, model)}}
		a.Groups = append(a.Groups, g)
	}
	for i := range a.Placements {
		r, _ := s.Replica(a.Placements[i].Name)
		a.Placements[i].Hold = waits(s, &r, a.Groups)
	}
	return a, refused
}

// waits says that it is another replica's turn to be started anew for a router network
// that a deployment has come to need: they go one after the other, in the order of their
// IDs, so that some serve. Those that cannot have the network, or do not serve anyway, are
// not waited for.
func waits(s *state.State, r *cluster.Replica, groups []engine.Routing) bool {
	for i := range groups {
		g := &groups[i]
		net := g.Router()
		if g.Models[0] != r.Model || net == "" || slices.Contains(r.Facts.Routers, net) {
			continue
		}
		for _, other := range s.ReplicasOf(r.Model) {
			if other.ID >= r.ID {
				break
			}
			node, _ := s.Node(other.Node)
			switch {
			case !node.Serves() || other.Draining || other.Facts.Policies == nil:
			case other.Phase == cluster.Starting:
				return true
			case other.Phase == cluster.Ready && !slices.Contains(other.Facts.Routers, net):
				if !other.CannotRoute(g.Name, net) {
					return true
				}
			}
		}
	}
	return false
}

// model finds out what a replica serves.
func (n *Node) model(r *cluster.Replica) (engine.Model, error) {
	if r.TP > MaxTP {
		return engine.Model{}, fmt.Errorf("tp=%d: a replica cannot be spread over several GPUs yet; the largest value is %d", r.TP, MaxTP)
	}
	m, err := n.cfg.Resolve(r.Source)
	if err != nil {
		return m, err
	}
	m.Name = r.Model
	return m, nil
}

// vocabularies is what workers have told of models' vocabularies, by model. It outlives
// their replicas, so that a deployment does not change when one is started anew.
type vocabularies map[string]*engine.Vocabulary

// learn takes what a state's replicas have reported.
func (v vocabularies) learn(s *state.State) {
	for _, r := range s.AllReplicas() {
		if r.Facts.Words == nil {
			continue
		}
		fresh := &engine.Vocabulary{Words: r.Facts.Words, Ends: r.Facts.StopIDs}
		if !reflect.DeepEqual(v[r.Model], fresh) {
			v[r.Model] = fresh
		}
	}
}

// routing is a deployment as the engine needs it.
func (v vocabularies) routing(s *state.State, d *cluster.Deployment) (engine.Routing, error) {
	parsed, err := engine.DeploymentOf(d)
	if err != nil {
		return engine.Routing{}, err
	}
	g := engine.Routing{
		Deployment: parsed, Thresholds: d.Thresholds, LongestWait: d.LongestWait,
		FallbackWait: d.FallbackWait, Fault: disagree(s, d.Models, parsed.SpecialMap),
	}
	switch d.Fallback {
	case cluster.FallbackSmallOnly:
		g.Fallback = subservice.FallbackAlone
	case cluster.FallbackFail:
		g.Fallback = subservice.FallbackFail
	}
	if t, ok := s.Table(d.Name); ok && len(d.Thresholds) == 0 {
		g.Table = t.B
	}
	for i, model := range d.Models {
		g.Replicas = append(g.Replicas, names(s, model))
		if len(parsed.SpecialMap) == 0 {
			continue
		}
		var own *engine.Vocabulary
		if i == 0 || parsed.SpecialMap[model] != nil {
			own = v[model]
		}
		g.Vocabularies = append(g.Vocabularies, own)
	}
	return g, nil
}

// names are the replicas of a model that may answer, in the order of their IDs.
func names(s *state.State, model string) (out []string) {
	for _, r := range s.ReplicasOf(model) {
		if r.Phase != cluster.Stopped {
			out = append(out, r.ID)
		}
	}
	return out
}

// disagree is why models cannot write one answer together, as far as their workers have
// reported; empty if they can. Models with a special map may have another vocabulary than
// the entry model, but all replicas of a model have the same.
func disagree(s *state.State, models []string, mapped map[string][]string) string {
	var first *cluster.Facts
	for _, model := range models {
		against, with := &first, models[0]
		var own *cluster.Facts
		if mapped[model] != nil {
			against, with = &own, "another replica of it"
		}
		for _, r := range s.ReplicasOf(model) {
			f := r.Facts
			switch {
			case f.Fingerprint == "":
			case *against == nil:
				*against = &f
			case f.Fingerprint != (*against).Fingerprint || f.Vocab != (*against).Vocab:
				return fmt.Sprintf("%s and %s cannot write one answer together: their vocabularies differ", with, model)
			}
		}
	}
	return ""
}
