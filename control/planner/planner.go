package planner

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/state"
)

// LostGrace is how long a lost worker's replicas are waited for before others take
// their place.
const LostGrace = 10 * time.Second

// Plan returns the change that brings the state in line with its wishes, nil if there
// is none. The change holds for the state that it was made from (Place.From).
func Plan(s *state.State, now time.Time) *cluster.Place {
	p := &plan{s: s, now: now, replicas: map[string]cluster.Replica{}, busy: map[string]int{}}
	for id, r := range s.AllReplicas() {
		p.replicas[id] = r
		p.busy[r.Node]++
	}
	p.pin()
	p.fill()
	p.sweep()
	p.pair()
	if len(p.put)+len(p.drain)+len(p.remove)+len(p.deployments) == 0 {
		return nil
	}
	return &cluster.Place{
		From: s.Placement, Put: p.put, Drain: slices.Sorted(slices.Values(p.drain)),
		Delete: slices.Sorted(slices.Values(p.remove)), Deployments: p.deployments,
	}
}

// plan is one run of Plan.
type plan struct {
	s   *state.State
	now time.Time
	// replicas are those that there will be, by ID; busy counts them by node.
	replicas map[string]cluster.Replica
	busy     map[string]int

	put           []cluster.Replica
	drain, remove []string
	deployments   []cluster.Deployment
}

// gone says that a worker's replicas do not count: it leaves, or does not come back.
func (p *plan) gone(n *cluster.Node) bool {
	return n.Draining || n.Lost && p.now.Sub(n.Since) >= LostGrace
}

// barred says that a replica is on a GPU in quarantine, where it cannot serve.
func (p *plan) barred(r *cluster.Replica) bool {
	_, barred := p.s.Barred(r)
	return barred
}

// healthy are the ordinals of a worker's GPUs that are not in quarantine.
func (p *plan) healthy(n *cluster.Node) (out []int) {
	for _, g := range n.GPUs {
		if _, held := p.s.QuarantineOf(n.ID, g.UUID); !held {
			out = append(out, g.Ordinal)
		}
	}
	return out
}

// of lists the replicas of a model in the order of their IDs, those of a node if node
// is not empty.
func (p *plan) of(model, node string) (out []cluster.Replica) {
	for _, id := range slices.Sorted(maps.Keys(p.replicas)) {
		if r := p.replicas[id]; r.Model == model && (node == "" || r.Node == node) {
			out = append(out, r)
		}
	}
	return out
}

func (p *plan) add(r cluster.Replica) {
	if _, exists := p.replicas[r.ID]; !exists {
		p.busy[r.Node]++
	}
	p.replicas[r.ID] = r
	p.put = append(p.put, r)
}

// drop deletes a replica.
func (p *plan) drop(r *cluster.Replica) {
	p.remove = append(p.remove, r.ID)
	delete(p.replicas, r.ID)
	p.busy[r.Node]--
}

// retire ends a replica that nothing wants: in order if it may have work.
func (p *plan) retire(r *cluster.Replica) {
	n, _ := p.s.Node(r.Node)
	switch {
	case n.Lost, r.Phase != cluster.Ready && r.Phase != cluster.Starting:
		p.drop(r)
	case !r.Draining:
		p.drain = append(p.drain, r.ID)
		drained := *r
		drained.Draining = true
		p.replicas[r.ID] = drained
	}
}

// pin makes every worker's pins its pinned replicas.
func (p *plan) pin() {
	for id, n := range p.s.AllNodes() {
		if n.Role != cluster.Worker {
			continue
		}
		pinned := map[string][]cluster.Replica{}
		for _, rid := range slices.Sorted(maps.Keys(p.replicas)) {
			if r := p.replicas[rid]; r.Node == id && r.Pinned {
				pinned[r.Model] = append(pinned[r.Model], r)
			}
		}
		for _, pin := range n.Pins {
			want := cluster.Replica{
				Model: pin.Model, Node: id, Source: pin.Source, TP: pin.TP, GPUs: pin.GPUs, Pinned: true,
			}
			if have := pinned[pin.Model]; len(have) > 0 {
				pinned[pin.Model] = have[1:]
				want.ID = have[0].ID
				if same(&have[0], &want) {
					continue
				}
			} else {
				want.ID = p.name(pin.Model, id)
			}
			p.add(want)
		}
		for _, model := range slices.Sorted(maps.Keys(pinned)) {
			for _, r := range pinned[model] {
				p.drop(&r) // the worker has started without it
			}
		}
	}
}

// same says that a replica runs as it is wanted.
func same(r, want *cluster.Replica) bool {
	return r.Source == want.Source && r.TP == want.TP && slices.Equal(r.GPUs, want.GPUs) && !r.Draining
}

// wants is how many replicas of each model the deployments want.
func (p *plan) wants() map[string]int {
	out := map[string]int{}
	for _, d := range p.s.AllDeployments() {
		for i, model := range d.Models {
			n := 0
			if i < len(d.Replicas) {
				n = d.Replicas[i]
			}
			if n == 0 {
				n = 1 // or those that are pinned, which stay in any case
			}
			out[model] = max(out[model], n)
		}
	}
	return out
}

// fill brings each model to its number of replicas, by those that are not pinned.
func (p *plan) fill() {
	wants := p.wants()
	models := map[string]bool{}
	for model := range wants {
		models[model] = true
	}
	for _, r := range p.replicas {
		models[r.Model] = true
	}
	for _, model := range slices.Sorted(maps.Keys(models)) {
		want := wants[model]
		var counted, leaving []cluster.Replica
		ready := 0
		for _, r := range p.of(model, "") {
			n, _ := p.s.Node(r.Node)
			switch {
			case p.barred(&r):
				// The worker has stopped it, or is about to. One that is pinned waits for the GPU.
				if !r.Pinned {
					p.retire(&r)
				}
			case p.gone(&n):
				leaving = append(leaving, r)
			case !r.Draining:
				counted = append(counted, r)
				if r.Phase == cluster.Ready {
					ready++
				}
			}
		}
		for len(counted) < want {
			r, ok := p.room(model)
			if !ok {
				break
			}
			p.add(r)
			counted = append(counted, r)
		}
		p.shrink(counted, len(counted)-want, ready-want)
		for _, r := range leaving {
			if !r.Pinned && (ready >= want || want == 0) {
				p.retire(&r)
			}
		}
	}
}

// shrink retires up to n replicas that are not pinned, of which up to ready may be ready, so
// that one serves until another has taken its place: those that are not ready first, then
// those on the busiest workers.
func (p *plan) shrink(counted []cluster.Replica, n, ready int) {
	loose := slices.DeleteFunc(counted, func(r cluster.Replica) bool { return r.Pinned })
	slices.SortFunc(loose, func(a, b cluster.Replica) int {
		return cmp.Or(
			cmp.Compare(score(a), score(b)),
			cmp.Compare(p.busy[b.Node], p.busy[a.Node]),
			cmp.Compare(b.ID, a.ID),
		)
	})
	for i := range loose {
		if i >= n || score(loose[i]) > max(0, ready) {
			break
		}
		ready -= score(loose[i])
		p.retire(&loose[i])
	}
}

func score(r cluster.Replica) int {
	if r.Phase == cluster.Ready {
		return 1
	}
	return 0
}

// room finds a worker for one more replica of a model.
func (p *plan) room(model string) (cluster.Replica, bool) {
	r := cluster.Replica{Model: model, Source: model, TP: 1}
	for _, other := range p.of(model, "") { // as the others of its kind
		r.Source, r.TP = other.Source, other.TP
		break
	}
	best := ""
	for id, n := range p.s.AllNodes() {
		fits := n.Role == cluster.Worker && n.Serves() && len(n.Pins) == 0 && len(p.of(model, id)) == 0 &&
			(r.TP == 1 && len(n.GPUs) == 0 || r.TP <= len(p.healthy(&n)))
		if fits && (best == "" || p.busy[id] < p.busy[best]) {
			best = id
		}
	}
	if best == "" {
		return r, false
	}
	n, _ := p.s.Node(best)
	r.Node, r.ID, r.GPUs = best, p.name(model, best), p.gpus(&n, r.TP)
	return r, true
}

// gpus picks the devices of a worker that the fewest replicas use; none on a CPU, and none
// that is in quarantine.
func (p *plan) gpus(n *cluster.Node, tp int) []int {
	all := p.healthy(n)
	if len(all) < tp {
		return nil
	}
	used := map[int]int{}
	for _, r := range p.replicas {
		if r.Node == n.ID {
			for _, g := range r.GPUs {
				used[g]++
			}
		}
	}
	slices.SortFunc(all, func(a, b int) int { return cmp.Or(cmp.Compare(used[a], used[b]), cmp.Compare(a, b)) })
	return slices.Sorted(slices.Values(all[:tp]))
}

// sweep deletes drained replicas that have stopped.
func (p *plan) sweep() {
	for _, id := range slices.Sorted(maps.Keys(p.replicas)) {
		r := p.replicas[id]
		if !r.Pinned && r.Draining && !slices.Contains(p.drain, id) {
			p.retire(&r)
		}
	}
}

// name makes a free ID for a replica: MODEL-NODE, with a number after it if need be.
func (p *plan) name(model, node string) string {
	stem := clean(model) + "-" + node
	if extra := len(stem) - (cluster.MaxID - 8); extra > 0 {
		stem = stem[:len(stem)-extra]
	}
	stem = strings.Trim(stem, "-._")
	for n := 1; ; n++ {
		id := stem
		if n > 1 {
			id = fmt.Sprintf("%s-%d", stem, n)
		}
		_, planned := p.replicas[id]
		// The ID of a replica that this plan deletes is free with the next one.
		if _, exists := p.s.Replica(id); !planned && !exists {
			return id
		}
	}
}

// clean leaves what may stand in an ID.
func clean(model string) string {
	out := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '-', r == '.', r == '_':
			return r
		}
		return '-'
	}, model)
	if out = strings.TrimLeft(out, "-._"); out == "" {
		return "model"
	}
	return out
}
