package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// PolicySettings are the parameters of a deployment's policy. Which of them a policy
// has, and what they mean, is said in package policies; one that is absent is the
// policy's own default.
type PolicySettings struct {
	Threshold *float64  `json:"threshold,omitempty"`
	Weights   []float64 `json:"weights,omitempty"`
	Trace     string    `json:"trace,omitempty"`
	// Router names a router network: an embedded one, or a file on every worker.
	Router          string   `json:"router,omitempty"`
	RouterThreshold *float64 `json:"router_threshold,omitempty"`
	Mode            string   `json:"mode,omitempty"`
	Warmup          int      `json:"warmup,omitempty"`
	WarmupShape     string   `json:"warmup_shape,omitempty"`
	Epistemic       *float64 `json:"epistemic,omitempty"`
	Entropy         *float64 `json:"entropy,omitempty"`
	StepTokens      int      `json:"step_tokens,omitempty"`
	ThinkTokens     int      `json:"think_tokens,omitempty"`
	Rule            string   `json:"rule,omitempty"`
	ReturnRule      string   `json:"return_rule,omitempty"`
	// AllowOverride lets requests choose another policy or threshold, and bound the
	// share of tokens that the entry model does not write.
	AllowOverride bool `json:"allow_policy_override,omitempty"`
	// SpecialMap has, by model, pairs ENTRY=OTHER of added tokens that mean the same on
	// the entry model and on that one, by text or id. A model without pairs must have the
	// entry model's vocabulary.
	SpecialMap map[string][]string `json:"special_map,omitempty"`
}

// PolicySettings reads Settings. Unknown fields are refused, and so is a special map that
// is malformed.
func (d *Deployment) PolicySettings() (PolicySettings, error) {
	var s PolicySettings
	if len(d.Settings) == 0 || bytes.Equal(d.Settings, []byte("null")) {
		return s, nil
	}
	if err := strict(d.Settings, &s); err != nil {
		return s, fmt.Errorf("settings: %w", err)
	}
	return s, checkSpecialMap(s.SpecialMap, d.Models)
}

// Encode is the form of s in Deployment.Settings; nil if nothing is set.
func (s *PolicySettings) Encode() (json.RawMessage, error) {
	b, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("%w: settings: %w", ErrCommand, err)
	}
	if string(b) == "{}" {
		return nil, nil
	}
	return b, nil
}
