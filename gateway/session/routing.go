package session

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tokenrouter/tokenrouter/api/routing"
)

// checkRouting reports what a request wants of a deployment's routing and cannot
// have. Errors wrap ErrSettings and name the field.
func (d *Deployment) checkRouting(o *routing.Override) error {
	if o.Empty() {
		return nil
	}
	if len(d.Overrides) == 0 {
		field := "trctl.policy"
		switch {
		case o.Policy != "":
		case o.Threshold != nil:
			field = "trctl.threshold"
		default:
			field = "trctl.max_large_share"
		}
		return badSetting(field, "model %q does not allow requests to change its routing (allow_policy_override of its deployment)", d.Name)
	}
	if err := o.Check(); err != nil {
		return fmt.Errorf("%w: %w", ErrSettings, err)
	}
	name := o.Policy
	if name == "" {
		name = d.Policy
	}
	i := slices.IndexFunc(d.Overrides, func(c PolicyChoice) bool { return c.Policy == name })
	switch {
	case i < 0:
		return badSetting("trctl.policy", "%q is not offered; offered: %s", name, d.offered())
	case d.Overrides[i].Lacks != "":
		return badSetting("trctl.policy", "%s is not offered: %s; offered: %s", name, d.Overrides[i].Lacks, d.offered())
	}
	c := d.Overrides[i]
	switch {
	case o.Threshold == nil:
	case !c.HasThreshold:
		return badSetting("trctl.threshold", "policy %s has no threshold", name)
	case *o.Threshold < c.From || *o.Threshold > c.To:
		return badSetting("trctl.threshold", "expected %g to %g for policy %s, found %g", c.From, c.To, name, *o.Threshold)
	}
	return nil
}

// offered names the policies that requests may choose.
func (d *Deployment) offered() string {
	var names []string
	for _, c := range d.Overrides {
		if c.Lacks == "" {
			names = append(names, c.Policy)
		}
	}
	return strings.Join(names, ", ")
}

// override is what travels with a request: the deployment's own policy needs no name.
func (d *Deployment) override(o *routing.Override) *routing.Override {
	if o.Empty() {
		return nil
	}
	out := *o
	if out.Policy == d.Policy {
		out.Policy = ""
	}
	if out.Empty() {
		return nil
	}
	return &out
}

// PolicyOf is the name of the policy that routes a request.
func (d *Deployment) PolicyOf(o *routing.Override) string {
	if o != nil && o.Policy != "" {
		return o.Policy
	}
	return d.Policy
}
