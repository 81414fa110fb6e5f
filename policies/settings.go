package policies

import (
	"fmt"
	"slices"
	"strings"
)

// Settings are what a deployment may set. A nil or empty field is unset: the
// checkpoint's value holds if a router network has one, else the policy's own
// default. Whoever fills Settings puts a flag's value over a configuration's.
type Settings struct {
	// Threshold is the policy's threshold; docs/policies.md says of what.
	Threshold *float64
	// Weights are the shares of the models under me, one for each; empty means equal.
	Weights []float64
	// Trace is the decision list of the trace policy (see parseTrace).
	Trace string
	// Net names the router network of the entry model, for policies that score.
	Net string
	// NetThreshold is the network's threshold in r-stitch+, whose Threshold is the entropy's.
	NetThreshold *float64
	// Checkpoint is the threshold that the network's checkpoint was tuned to.
	Checkpoint *float64
	// Mode is defer or compose, for co-llm.
	Mode string
	// Warmup is the number of tokens over which co-llm's threshold falls from 1, and
	// WarmupShape how: linear, cosine or exponential.
	Warmup      int
	WarmupShape string
	// Epistemic and Entropy are further conditions of immediate.
	Epistemic, Entropy *float64
	// StepTokens and ThinkTokens bound a reasoning step and the whole reasoning
	// under glimp-router; 0 means the default.
	StepTokens, ThinkTokens int
	// Rule and ReturnRule are the expressions of the policy rule (see compileRule).
	Rule, ReturnRule string
	// Models are the served names, which rules may return. Empty if they are not known.
	Models []string
	// Text is what is known of the models' vocabulary. Nil means that nothing is
	// known yet: New then checks the settings alone.
	Text *Text
}

// Text is what a policy may know of the models' ids.
type Text struct {
	// Size is the number of ids.
	Size int
	// ThinkStart and ThinkEnd are the ids of <think> and </think>, -1 for none.
	ThinkStart, ThinkEnd int32
	// Close are the ids of "\n</think>\n\n".
	Close []int32
	// Bytes returns the text of one id, nil for none.
	Bytes func(id int32) []byte
}

// thinks says that the vocabulary can mark reasoning.
func (t *Text) thinks() bool { return t.ThinkEnd >= 0 }

// setting is one of Settings' fields for Check.
type setting struct {
	name  string
	given bool
}

func (s *Settings) given() []setting {
	return []setting{
		{"threshold", s.Threshold != nil},
		{"weights", len(s.Weights) > 0},
		{"trace", s.Trace != ""},
		{"router", s.Net != ""},
		{"router_threshold", s.NetThreshold != nil},
		{"mode", s.Mode != ""},
		{"warmup", s.Warmup != 0},
		{"warmup_shape", s.WarmupShape != ""},
		{"epistemic", s.Epistemic != nil},
		{"entropy", s.Entropy != nil},
		{"step_tokens", s.StepTokens != 0},
		{"think_tokens", s.ThinkTokens != 0},
		{"rule", s.Rule != ""},
		{"return_rule", s.ReturnRule != ""},
	}
}

// Check reports a setting that the named policy does not read. New ignores such
// a one; whoever wrote it believes in it.
func (s Settings) Check(name string) error {
	own := find(name)
	if own == nil {
		return nil // which New refuses
	}
	for _, f := range s.given() {
		if !f.given || slices.Contains(own.reads, f.name) {
			continue
		}
		var readers []string
		for _, k := range kinds() {
			if slices.Contains(k.reads, f.name) {
				readers = append(readers, k.name)
			}
		}
		return fmt.Errorf("policy %s: %s: is a setting of %s", name, f.name, strings.Join(readers, ", "))
	}
	return nil
}

// interval is the range of a threshold, both ends allowed.
type interval struct{ from, to float64 }

// unit is the range of probabilities, shares and normalised entropies.
var unit = interval{0, 1}

// check returns v's value, which must be in the range (and is not, if NaN).
func (r interval) check(setting string, v float64) error {
	if v >= r.from && v <= r.to {
		return nil
	}
	return fmt.Errorf("%s: is %v, must be between %g and %g", setting, v, r.from, r.to)
}

// pick returns the first value that is set, which must be in the range; else otherwise.
func (r interval) pick(setting string, otherwise float64, values ...*float64) (float64, error) {
	for _, v := range values {
		if v != nil {
			return *v, r.check(setting, *v)
		}
	}
	return otherwise, nil
}
