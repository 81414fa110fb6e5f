package engine

import (
	"fmt"
	"slices"

	"github.com/tokenrouter/tokenrouter/gateway/session"
	"github.com/tokenrouter/tokenrouter/internal/choice"
	"github.com/tokenrouter/tokenrouter/models"
	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/tokenizer"
)

// Deployment is a group of models that write answers together under a policy.
type Deployment struct {
	Name string
	// Models are names of Config.Models; the first is the entry model.
	Models []string
	Policy Policy
	// SpecialMap has, by model, pairs ENTRY=OTHER of added tokens that mean the same on
	// the entry model and on that one, by text or id. A model without pairs must have
	// the entry model's vocabulary.
	SpecialMap map[string][]string
	// AllowOverride lets requests choose another policy or threshold, and bound the
	// share of tokens that the entry model does not write.
	AllowOverride bool
}

// Policy names a routing policy and its settings. Unset is representable: a nil
// threshold means that of the router network's checkpoint, or the policy's own.
type Policy struct {
	Name      string
	Threshold *float64
	// Weights are the models' shares under me; empty means equal ones.
	Weights []float64
	// Trace is the decision list of the trace policy.
	Trace string
	// Router names the router network of a policy that scores: an embedded one or a
	// file. Empty means RouterOf.
	Router string
	// RouterThreshold is the network's threshold under r-stitch+.
	RouterThreshold *float64
	// Mode, Warmup and WarmupShape are of co-llm.
	Mode        string
	Warmup      int
	WarmupShape string
	// Epistemic and Entropy are further conditions of immediate.
	Epistemic, Entropy *float64
	// StepTokens and ThinkTokens are bounds of glimp-router, 0 for its own.
	StepTokens, ThinkTokens int
	// Rule and ReturnRule are expressions of the policy rule.
	Rule, ReturnRule string
	// Own is a compiled policy of one's own, for two models. It takes the place of all
	// of the above.
	Own *policies.Set
}

// Settings are the policy's settings as package policies takes them, as far as the
// configuration alone says.
func (p *Policy) Settings() policies.Settings {
	return policies.Settings{
		Threshold: p.Threshold, Weights: p.Weights, Trace: p.Trace, Net: p.Router, NetThreshold: p.RouterThreshold,
		Mode: p.Mode, Warmup: p.Warmup, WarmupShape: p.WarmupShape, Epistemic: p.Epistemic, Entropy: p.Entropy,
		StepTokens: p.StepTokens, ThinkTokens: p.ThinkTokens, Rule: p.Rule, ReturnRule: p.ReturnRule,
	}
}

// Set is the configured policy as far as the configuration alone says, to see
// whether it has faults before anything is loaded. served are the models' names.
func (p *Policy) Set(served []string) (*policies.Set, error) {
	if p.Own != nil {
		return p.Own, nil
	}
	s := p.Settings()
	s.Models = served
	return policies.New(p.Name, len(served), s)
}

// RouterOf is the name of the router network that a policy means by default: the
// entry model's name with what the network is.
func RouterOf(policy, entry string) string {
	switch {
	case policy == "r-stitch+":
		return entry + "-citer"
	case policies.Scored(policy):
		return entry + "-" + policy
	}
	return ""
}

// TrioThreshold is a policy's default threshold for the embedded models, which
// are surer of themselves than real ones; nil if the policy's own will do.
func TrioThreshold(policy string) *float64 {
	var tau float64
	switch policy {
	case "r-stitch", "r-stitch+":
		tau = 0.01
	case "request-level":
		tau = 0.0002 // a little above the median of the first token, which is nearly always the same
	case "entropy":
		tau = 0.07 // nats: about r-stitch's
	case "glimp-router":
		tau = 0.005
	case "immediate":
		tau = 2.15
	default:
		return nil
	}
	return &tau
}

// routed is what a deployment's requests can be routed by.
type routed struct {
	set *policies.Set
	// others are what requests may choose besides, by name; nil if they may choose nothing.
	others map[string]*policies.Set
}

// routes builds a deployment's policies, as one of its models sees them that runs here:
// they all have the same vocabulary. entry says that it is the entry model, whose router
// networks score.
func (e *Engine) routes(d Deployment, m *loaded, entry bool) (*routed, error) {
	r := &routed{set: d.Policy.Own}
	text := m.text()
	tuned := m.tuned
	if !entry {
		tuned = tunedElsewhere
	}
	if r.set == nil {
		s := d.Policy.Settings()
		if s.Net == "" {
			s.Net = RouterOf(d.Policy.Name, d.Models[0])
		}
		s.Models, s.Text = d.Models, text
		var err error
		if s.Checkpoint, err = tuned(d.Policy.Name, s.Net); err != nil {
			return nil, fmt.Errorf("policy %s: %w", d.Policy.Name, err)
		}
		if r.set, err = policies.New(d.Policy.Name, len(d.Models), s); err != nil {
			return nil, err
		}
	}
	if !d.AllowOverride {
		return r, nil
	}
	r.others = map[string]*policies.Set{}
	embedded := !slices.ContainsFunc(d.Models, func(name string) bool { return !slices.Contains(models.Names(), name) })
	for _, name := range d.others(r.set.Name) {
		s := policies.Settings{Models: d.Models, Text: text, Net: RouterOf(name, d.Models[0])}
		if embedded {
			s.Threshold = TrioThreshold(name)
		}
		var err error
		if s.Checkpoint, err = tuned(name, s.Net); err != nil {
			continue // it has no network for this policy
		}
		if set, err := policies.New(name, len(d.Models), s); err == nil {
			r.others[name] = set
		}
	}
	return r, nil
}

// For are the policies for one model of the deployment.
func (r *routed) policy(self policies.ModelID) (policies.Policy, map[string]policies.Policy) {
	var others map[string]policies.Policy
	if r.others != nil {
		others = map[string]policies.Policy{}
		for name, set := range r.others {
			others[name] = set.For(self)
		}
	}
	return r.set.For(self), others
}

// choices are what a gateway lets requests choose.
func (r *routed) choices(d *Deployment) []session.PolicyChoice {
	if r.others == nil {
		return nil
	}
	return choice.Of(r.set.Name, d.Models, func(policy string) string {
		switch {
		case r.others[policy] != nil:
			return ""
		case len(d.SpecialMap) > 0 && choice.Mapped(policy):
			return choice.LacksMapped
		}
		return choice.Lacks(policy, d.Models[0])
	})
}

// text is what policies may know of a model's vocabulary.
func (m *loaded) text() *policies.Text {
	t := &policies.Text{Size: m.vocab, ThinkStart: -1, ThinkEnd: -1, Bytes: func(int32) []byte { return nil }}
	if m.tokenizer == nil {
		return t
	}
	t.Bytes = m.tokenizer.TokenBytes
	if id, ok := m.tokenizer.AddedID("<think>"); ok {
		t.ThinkStart = id
	}
	if id, ok := m.tokenizer.AddedID("</think>"); ok {
		t.ThinkEnd = id
		t.Close = m.tokenizer.EncodePrompt(nil, "\n</think>\n\n", tokenizer.ParseAll())
	}
	return t
}
