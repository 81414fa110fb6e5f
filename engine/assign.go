package engine

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/subservice"
)

// Assignment is all that an engine with a Config.Network is to do: which replicas run
// here, and in which deployments models write together, here and elsewhere.
type Assignment struct {
	Placements []Placement
	Groups     []Routing
	// Avoid are replicas, wherever they run, that get nothing new as long as there are others.
	Avoid []string
	// Barred are GPUs that must not be used, by ordinal, with the reason. Placements on them
	// end what they have, and begin again when that is over. The map is not changed any more.
	Barred map[int]string
}

// Placement is a replica that runs here.
type Placement struct {
	// Name is unique among the replicas of all engines.
	Name string
	// Generation is the placement's version: another one starts the replica anew.
	Generation uint64
	// Model is what it serves. Its Replicas and thresholds do not count.
	Model Model
	// GPUs are ordinals; empty takes what Config.Device says. Only one is used.
	GPUs []int
	// Draining lets it end what it has, and then stop.
	Draining bool
	// Hold keeps it from being started anew for a router network that it lacks: others
	// come first, so that some always serve.
	Hold bool
}

// Routing is a deployment whose models may be elsewhere.
type Routing struct {
	Deployment
	// Replicas are those of every model by index, in an order that all engines agree on.
	Replicas [][]string
	// Thresholds, Table, LongestWait, Fallback, FallbackWait and Fault are as in
	// subservice.Deployment.
	Thresholds   []int
	Table        [][]int
	LongestWait  time.Duration
	Fallback     subservice.Fallback
	FallbackWait time.Duration
	Fault        string
	// Vocabularies are what is known of the models' vocabularies, by index; nil for what is
	// not. Only a SpecialMap needs them, and of models without pairs only the entry's.
	Vocabularies []*Vocabulary
}

// version names what requests keep of a deployment. It is the same in all processes, and
// never 0.
func (g *Routing) version() (uint64, error) {
	if g.Policy.Own != nil {
		return 0, fmt.Errorf("deployment %s: %w", g.Name, errNotShared)
	}
	kept := struct {
		Models        []string
		Policy        Policy
		AllowOverride bool
		// Absent where there is no map, so that earlier builds find the same version.
		SpecialMap   map[string][]string `json:",omitempty"`
		Vocabularies []*Vocabulary       `json:",omitempty"`
	}{Models: g.Models, Policy: g.Policy, AllowOverride: g.AllowOverride}
	if len(g.SpecialMap) > 0 {
		kept.SpecialMap, kept.Vocabularies = g.SpecialMap, g.Vocabularies
	}
	text, err := json.Marshal(kept)
	if err != nil {
		return 0, fmt.Errorf("deployment %s: %w", g.Name, err)
	}
	h := sha256.Sum256(text)
	return max(binary.LittleEndian.Uint64(h[:]), 1), nil
}

// Assign says what the engine is to do from now on, in place of what it was told before.
// It returns at once; Reports and Config.Notify tell what becomes of it. The engine must
// have a Config.Network.
func (e *Engine) Assign(a Assignment) {
	e.gpus.setBarred(a.Barred)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.assigned = &a
	e.poke()
}

// Drain lets every replica end what it has, at most for Config.DrainTimeout, and then
// stop. Drained is closed once all have.
func (e *Engine) Drain() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.draining = true
	e.poke()
}

// Drained is closed once no replica runs after a call of Drain, or when Run ends.
func (e *Engine) Drained() <-chan struct{} { return e.drained }

// poke lets the crew look again.
func (e *Engine) poke() {
	select {
	case e.assigning <- struct{}{}:
	default:
	}
}

// part is what a replica takes part in.
type part struct {
	deployments []subservice.Deployment
	avoid       []string
	// neighbours are the replicas that it has a peer link with; dials are those of
	// them that it connects to.
	neighbours, dials []string
}

// partOf is what a replica takes part in under an assignment. What is wrong with a
// deployment keeps that one away, and is in faults.
func (e *Engine) partOf(r *replica, a *Assignment) (p part, faults []error) {
	p.avoid = a.Avoid
	for i := range a.Groups {
		g := &a.Groups[i]
		self := slices.Index(g.Models, r.model.cfg.Name)
		if self < 0 {
			continue
		}
		d, err := e.share(r, g, self)
		if errors.Is(err, ErrNoRouter) {
			d, err = e.meanwhile(r, g, d)
		}
		if err != nil {
			left := (*leftOut)(nil)
			if !errors.As(err, &left) {
				left = &leftOut{cluster.LeftOut{Deployment: g.Name}, err}
			}
			faults = append(faults, left)
			if d.Policy == nil {
				continue
			}
		}
		p.deployments = append(p.deployments, d)
		for k, names := range g.Replicas {
			for _, name := range names {
				if k == self || slices.Contains(p.neighbours, name) {
					continue
				}
				p.neighbours = append(p.neighbours, name)
				if r.name < name { // so that a pair has one link
					p.dials = append(p.dials, name)
				}
			}
		}
	}
	return p, faults
}

// share is a replica's part in one deployment. With an error it has no part, or, where
// there is a policy all the same, one in which new requests are refused for it.
func (e *Engine) share(r *replica, g *Routing, self int) (subservice.Deployment, error) {
	d := subservice.Deployment{
		Name: g.Name, Self: policies.ModelID(self), Models: g.Models, Replicas: g.Replicas,
		Thresholds: g.Thresholds, Table: g.Table, LongestWait: g.LongestWait,
		Fallback: g.Fallback, FallbackWait: g.FallbackWait, Fault: g.Fault,
	}
	if len(g.Replicas) != len(g.Models) {
		return d, fmt.Errorf("deployment %s: replicas of %d models are listed, it has %d", g.Name, len(g.Replicas), len(g.Models))
	}
	var err error
	if d.Version, err = g.version(); err != nil {
		return d, err
	}
	if had := r.had(g.Name, d.Version); had != nil && had.Fault == d.Fault {
		d.PolicyName, d.Policy, d.Others, d.IDs, d.Lacking = had.PolicyName, had.Policy, had.Others, had.IDs, had.Lacking
		return d, nil
	}
	unmapped := r.mapIDs(g, &d)
	if unmapped != nil && self > 0 {
		return d, unmapped
	}
	routes, err := e.routes(g.Deployment, r.model, self == 0)
	if err != nil {
		return d, fmt.Errorf("deployment %s: %w", g.Name, err)
	}
	d.PolicyName = routes.set.Name
	d.Policy, d.Others = routes.policy(d.Self)
	if unmapped != nil {
		d.Fault = unmapped.Error() // so that clients hear why
	}
	return d, unmapped
}
