package engine

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/worker/subservice"
)

// Router is the router network that the deployment's own policy scores with, in the steps
// of the entry model; empty if it needs none.
func (d *Deployment) Router() string {
	if len(d.Models) == 0 {
		return ""
	}
	return d.Policy.net(d.Models[0])
}

// missing is the router network that a deployment wants of a replica that has been loaded
// without it; empty if it lacks none. Executors are planned and built with their networks,
// so that the replica has to be started anew, unless the error says why that is no use.
func (e *Engine) missing(r *replica, g *Routing) (net string, err error) {
	net = g.Router()
	if net == "" || g.Models[0] != r.model.cfg.Name || slices.Contains(r.routers, net) {
		return "", nil
	}
	key := renewal{r.name, r.generation, g.Policy.scorer(), net}
	if known, ok := e.renewals[key]; ok {
		return net, known
	}
	c, err := readRouter(net)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrNoRouter) {
		return net, err // it may come
	}
	if err == nil {
		err = cmp.Or(c.Check(r.model.config.Hidden, r.model.vocab), suits(g.Policy.scorer(), net, c.Kind))
	}
	if err != nil {
		err = fmt.Errorf("router %q does not fit %s: %w", net, r.model.cfg.Name, err)
	}
	e.renewals[key] = err
	return net, err
}

// renewal is a router network that a policy wants of a run of a placement.
type renewal struct {
	replica    string
	generation uint64
	policy     string
	net        string
}

// errTried says that a replica was started anew for a router network, and has it not.
var errTried = errors.New("the replica was started anew, and could not take the router network")

// renew lets replicas end what they have and start anew that miss router networks, as far
// as an assignment does not hold them. Only the crew's goroutine calls it.
func (e *Engine) renew(a *Assignment) {
	maps.DeleteFunc(e.renewals, func(k renewal, _ error) bool {
		p := a.placement(k.replica)
		return p == nil || p.Generation != k.generation
	})
	for _, r := range e.list() {
		p := a.placement(r.name)
		if phase, _ := r.phaseNow(); p == nil || p.Hold || p.Draining || r.leaving.Load() || r.renewing.Load() || phase != cluster.Ready {
			continue
		}
		for i := range a.Groups {
			net, err := e.missing(r, &a.Groups[i])
			if net == "" || err != nil {
				continue
			}
			e.renewals[renewal{r.name, r.generation, a.Groups[i].Policy.scorer(), net}] = fmt.Errorf("router %q: %w", net, errTried) // should it be missing again
			r.renewing.Store(true)
			r.setPhase(cluster.Starting, fmt.Sprintf("it is started anew with the router network of deployment %.128s", a.Groups[i].Name))
			e.log.Info("replica is started anew once it has nothing to do", "replica", r.name, "router", net, "deployment", a.Groups[i].Name)
			e.notify()
			r.drain()
			break
		}
	}
}

// meanwhile is a replica's part in a deployment until it has the router network that the
// deployment wants: what it had before. Where it had nothing the error says that it waits,
// and where waiting is no use, why.
func (e *Engine) meanwhile(r *replica, g *Routing, d subservice.Deployment) (subservice.Deployment, error) {
	if net, err := e.missing(r, g); err != nil && !r.renewing.Load() {
		return subservice.Deployment{}, &leftOut{
			cluster.LeftOut{Deployment: g.Name, Router: net}, fmt.Errorf("deployment %s: policy %s: %w", g.Name, g.Policy.Name, err),
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.deployments {
		if had := &r.deployments[i]; had.Name == g.Name && slices.Equal(had.Models, g.Models) && had.Policy != nil {
			d.Version, d.Policy, d.Others, d.IDs, d.Lacking = had.Version, had.Policy, had.Others, had.IDs, had.Lacking
			return d, nil
		}
	}
	return subservice.Deployment{}, fmt.Errorf("deployment %s: the replica will be started anew with its router network", g.Name)
}
