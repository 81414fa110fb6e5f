package main

import (
	"strings"

	"github.com/tokenrouter/tokenrouter/api/routing"
	"github.com/tokenrouter/tokenrouter/internal/node"
)

// policyFlags are the routing policy of a deployment and its settings; those of a
// configuration file's policy, one for one.
type policyFlags struct {
	Policy          *string   `placeholder:"NAME" help:"Routing policy of the deployment: ${policies} (r-stitch)."`
	Threshold       *float64  `placeholder:"T" help:"Threshold of the routing policy; for random the probability."`
	Trace           *string   `placeholder:"LIST" help:"Decisions of the policy trace: POSITION[@MODEL] DESTINATION keep|drop, …"`
	Weights         []float64 `placeholder:"W" help:"Shares of the models under the policy me, one each (equal)."`
	Router          *string   `placeholder:"NAME" help:"Router network of a policy that scores: an embedded one, such as tiny-s-r2r, or a file (ENTRY-POLICY)."`
	RouterThreshold *float64  `placeholder:"T" help:"Threshold of the router network under r-stitch+ (what it was tuned to, or 0.5)."`
	Mode            *string   `env:"TRCTL_POLICY_MODE" enum:"defer,compose" placeholder:"MODE" help:"How the other model writes a token under co-llm: defer, by itself, or compose, drawn from both models' distributions (defer)."`
	Warmup          *int      `env:"TRCTL_POLICY_WARMUP" placeholder:"N" help:"Tokens over which the threshold of co-llm falls from 1 to its value (0)."`
	WarmupShape     *string   `env:"TRCTL_POLICY_WARMUP_SHAPE" placeholder:"SHAPE" help:"How it falls: linear, cosine or exponential (linear)."`
	Epistemic       *float64  `env:"TRCTL_POLICY_EPISTEMIC" placeholder:"T" help:"Least epistemic uncertainty at which immediate goes to the other model."`
	Entropy         *float64  `env:"TRCTL_POLICY_ENTROPY" placeholder:"T" help:"Least entropy, in nats, at which immediate goes to the other model."`
	StepTokens      *int      `env:"TRCTL_POLICY_STEP_TOKENS" placeholder:"N" help:"Most tokens of a reasoning step under glimp-router (512)."`
	ThinkTokens     *int      `env:"TRCTL_POLICY_THINK_TOKENS" placeholder:"N" help:"Most tokens of the reasoning under glimp-router (8192)."`
	Rule            *string   `placeholder:"EXPR" help:"Expression of the policy rule, such as 'entropy > 0.02 || margin < 1 && since_hop > 3': true lets the next model write the token."`
	ReturnRule      *string   `placeholder:"EXPR" help:"Expression of the policy rule for the other model's tokens: true returns the turn (after one token)."`
}

// given names the flags that have a value.
func (f *policyFlags) given() []string {
	var names []string
	for _, flag := range []struct {
		name  string
		given bool
	}{
		{"--policy", f.Policy != nil}, {"--threshold", f.Threshold != nil}, {"--trace", f.Trace != nil}, {"--weights", f.Weights != nil},
		{"--router", f.Router != nil}, {"--router-threshold", f.RouterThreshold != nil}, {"--mode", f.Mode != nil},
		{"--warmup", f.Warmup != nil}, {"--warmup-shape", f.WarmupShape != nil}, {"--epistemic", f.Epistemic != nil},
		{"--entropy", f.Entropy != nil}, {"--step-tokens", f.StepTokens != nil}, {"--think-tokens", f.ThinkTokens != nil},
		{"--rule", f.Rule != nil}, {"--return-rule", f.ReturnRule != nil},
	} {
		if flag.given {
			names = append(names, flag.name)
		}
	}
	return names
}

// apply puts the flags that were given over the policy of c's only deployment.
func (f *policyFlags) apply(c *node.Config) error {
	given := f.given()
	if len(given) == 0 {
		return nil
	}
	if len(c.Deployments) != 1 {
		return usagef("%s: exactly one deployment of two or more models is needed, to which it applies; there are %d", strings.Join(given, ", "), len(c.Deployments))
	}
	policy := &c.Deployments[0].Policy
	if f.Policy != nil && *f.Policy != policy.Name {
		*policy = defaultPolicy(*f.Policy, c.Models)
	}
	if f.Threshold != nil {
		policy.Threshold = f.Threshold
	}
	if f.Weights != nil {
		policy.Weights = f.Weights
	}
	if f.RouterThreshold != nil {
		policy.RouterThreshold = f.RouterThreshold
	}
	if f.Epistemic != nil {
		policy.Epistemic = f.Epistemic
	}
	if f.Entropy != nil {
		policy.Entropy = f.Entropy
	}
	overwrite(&policy.Trace, f.Trace)
	overwrite(&policy.Router, f.Router)
	overwrite(&policy.Mode, f.Mode)
	overwrite(&policy.Warmup, f.Warmup)
	overwrite(&policy.WarmupShape, f.WarmupShape)
	overwrite(&policy.StepTokens, f.StepTokens)
	overwrite(&policy.ThinkTokens, f.ThinkTokens)
	overwrite(&policy.Rule, f.Rule)
	overwrite(&policy.ReturnRule, f.ReturnRule)
	return nil
}

// override is what the flags want of a running server, which takes a policy, a threshold
// and a bound of the share of other models with each request; nil for nothing. bound is
// the name of the flag that share comes from.
func (f *policyFlags) override(bound string, share *float64) (*routing.Override, error) {
	for _, name := range f.given() {
		if name != "--policy" && name != "--threshold" {
			return nil, usagef("%s: with --url only --policy, --threshold and %s can be changed; the rest is the server's", name, bound)
		}
	}
	o := &routing.Override{Threshold: f.Threshold, MaxLargeShare: share}
	overwrite(&o.Policy, f.Policy)
	if o.Empty() {
		return nil, nil
	}
	return o, nil
}

// checkShare reports a bound of the share of other models that is out of range.
func checkShare(flag string, share *float64) error {
	if share != nil && !(*share >= 0 && *share <= 1) {
		return usagef("%s: is %v, must be between 0 and 1", flag, *share)
	}
	return nil
}
