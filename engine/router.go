package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tokenrouter/tokenrouter/internal/choice"
	"github.com/tokenrouter/tokenrouter/models/routers"
	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/router"
)

// ErrNoRouter says that a policy needs a router network that is not there.
var ErrNoRouter = errors.New("no such router network")

// attachRouters opens the router networks of all deployments, each checked against
// its entry model. Executors are planned and built with them.
func (e *Engine) attachRouters() error {
	for _, d := range e.Deployments() {
		entry := e.model(d.Models[0])
		if err := entry.attach(d.Policy.scorer(), d.Policy.net(d.Models[0])); err != nil {
			return fmt.Errorf("deployment %s: policy %s: %w", d.Name, d.Policy.Name, err)
		}
		if !d.AllowOverride {
			continue
		}
		// What requests may choose besides needs no network of its own to be there.
		for _, policy := range d.others(d.Policy.name()) {
			if err := entry.attach(policy, RouterOf(policy, d.Models[0])); err != nil && !errors.Is(err, ErrNoRouter) {
				return fmt.Errorf("deployment %s: policy %s: %w", d.Name, policy, err)
			}
		}
	}
	return nil
}

// net is the router network that a deployment's own policy scores with, or empty.
func (p *Policy) net(entry string) string {
	switch {
	case p.Own != nil:
		return p.Own.For(0).Spec().Net
	case p.Router != "":
		return p.Router
	}
	return RouterOf(p.Name, entry)
}

// scorer is the built-in policy that reads the network's scores, empty for one of one's own.
func (p *Policy) scorer() string {
	if p.Own != nil {
		return ""
	}
	return p.Name
}

// others lists the policies that requests may choose besides the deployment's own, if
// all is there that they need.
func (d *Deployment) others(own string) []string {
	return slices.DeleteFunc(choice.Others(own, d.Models), func(name string) bool { return len(d.SpecialMap) > 0 && choice.Mapped(name) })
}

// name is the policy's name.
func (p *Policy) name() string {
	if p.Own != nil {
		return p.Own.Name
	}
	return p.Name
}

// suits says whether a policy reads the scores of a kind of network the way that they
// are meant: that of r2r is high where the large model is needed, that of citer low. A
// rule and a policy of one's own say themselves which way they read them.
func suits(policy, net string, kind router.Kind) error {
	want := router.Kind(policy)
	switch {
	case !policies.Scored(policy):
		return nil
	case policy == "r-stitch+":
		want = router.CITER
	}
	if kind == want {
		return nil
	}
	return fmt.Errorf("%w: router %s is a network of kind %s, and the policy takes one of kind %s: their scores mean different things", router.ErrBad, net, kind, want)
}

// attach opens a router network for the model and the policy, unless the model has it
// already. An empty name is none.
func (m *loaded) attach(policy, name string) error {
	if name == "" {
		return nil
	}
	if i := slices.IndexFunc(m.nets, func(n *router.Net) bool { return n.Name == name }); i >= 0 {
		return suits(policy, name, m.nets[i].Kind)
	}
	c, err := readRouter(name)
	if err == nil {
		err = suits(policy, name, c.Kind)
	}
	if err != nil {
		return err
	}
	if err := c.Check(m.config.Hidden, m.vocab); err != nil {
		return fmt.Errorf("router %s does not fit %s: %w", name, m.cfg.Name, err)
	}
	if len(m.nets) == executor.MaxNets {
		return fmt.Errorf("router %s: %s has %d routers already", name, m.cfg.Name, len(m.nets))
	}
	net := c.Fold()
	net.Name = name // as the policies know it
	m.nets = append(m.nets, net)
	return nil
}

// routers are the names of the networks that the model has.
func (m *loaded) routers() []string {
	var names []string
	for _, n := range m.nets {
		names = append(names, n.Name)
	}
	slices.Sort(names)
	return names
}

// offers are the policies that requests may choose where this is the entry model, as far
// as it alone decides: it has the router networks and the tokens that they need.
func (m *loaded) offers() []string {
	text := m.text()
	var names []string
	for _, name := range policies.Names() {
		s := policies.Settings{Net: RouterOf(name, m.cfg.Name), Text: text}
		if s.Net != "" && !slices.Contains(m.routers(), s.Net) {
			continue
		}
		// A policy is for one model, for two, or for any number of them.
		if _, err := policies.New(name, 2, s); err != nil {
			if _, err = policies.New(name, 1, s); err != nil {
				continue
			}
		}
		names = append(names, name)
	}
	return names
}

// readRouter opens an embedded network or a file.
func readRouter(name string) (*router.Checkpoint, error) {
	if slices.Contains(routers.Names(), name) {
		return router.ReadFS(routers.FS(), name)
	}
	c, err := router.Read(name)
	if errors.Is(err, fs.ErrNotExist) {
		embedded := strings.Join(routers.Names(), ", ")
		if embedded == "" {
			embedded = "none"
		}
		err = fmt.Errorf("%w: %q is neither embedded (%s) nor a file; name one by router: (--router), "+
			"which trctl model convert-router makes of a published one and models/train trains", ErrNoRouter, name, embedded)
	}
	return c, err
}

// tuned is the threshold that a router network's checkpoint was tuned to, nil if it
// has none or net is empty. The network has been attached, and must suit the policy.
func (m *loaded) tuned(policy, net string) (*float64, error) {
	if net == "" {
		return nil, nil
	}
	for _, n := range m.nets {
		if n.Name == net {
			return n.Threshold, suits(policy, net, n.Kind)
		}
	}
	return nil, fmt.Errorf("%w: %q", ErrNoRouter, net)
}

// tunedElsewhere is tuned for a network that runs in another process, as far as it can
// be known here. Only the entry model's policies use it.
func tunedElsewhere(_, net string) (*float64, error) {
	if net == "" {
		return nil, nil
	}
	files, name := routers.FS(), net
	if !slices.Contains(routers.Names(), net) {
		stem := router.Stem(net)
		files, name = os.DirFS(filepath.Dir(stem)), filepath.Base(stem)
	}
	s, err := router.ReadSidecar(files, name)
	if err != nil {
		return nil, nil // it is a file of the other machine
	}
	return s.Threshold, nil
}
