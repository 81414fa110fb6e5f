package openai

import (
	"github.com/tokenrouter/tokenrouter/api/routing"
)

// routing takes the extension object trctl: what the request wants of the
// deployment's routing. Its fields are ours alone, so unknown ones are refused.
func (o *object) routing() *routing.Override {
	raw, ok := o.take("trctl")
	if !ok {
		return nil
	}
	x := newObject("trctl.", raw)
	if x == nil {
		o.fail(wrongType("trctl", "an object"))
		return nil
	}
	r := &routing.Override{}
	r.Policy, _ = x.str("policy")
	if len(r.Policy) > routing.MaxPolicy {
		x.fail(invalid("trctl.policy", "'trctl.policy' has more than %d bytes", routing.MaxPolicy))
	}
	if v, ok := x.number("threshold", 0, routing.MaxThreshold); ok {
		r.Threshold = &v
	}
	if v, ok := x.number("max_large_share", 0, 1); ok {
		r.MaxLargeShare = &v
	}
	for _, name := range x.unknown() {
		x.fail(invalid("trctl."+name, "'trctl.%s' is unknown; the fields are policy, threshold and max_large_share", name))
	}
	if x.err != nil {
		o.fail(x.err)
	}
	if r.Empty() {
		return nil
	}
	return r
}
