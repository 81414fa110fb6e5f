package routing

import (
	"github.com/tokenrouter/tokenrouter/api/sampling"
)

// MaxPolicy bounds the length of a policy's name, in bytes.
const MaxPolicy = 32

// MaxThreshold bounds every policy's threshold. Most have a narrower range.
const MaxThreshold = 1e6

// Override replaces parts of a deployment's routing for one request. An empty
// field leaves that part to the deployment.
type Override struct {
	Policy    string   `json:"policy,omitempty"`
	Threshold *float64 `json:"threshold,omitempty"`
	// MaxLargeShare bounds the share of the tokens that the entry model does not
	// write, in [0, 1]: of no beginning of the answer is it larger.
	MaxLargeShare *float64 `json:"max_large_share,omitempty"`
}

// Empty says that nothing is overridden.
func (o *Override) Empty() bool {
	return o == nil || o.Policy == "" && o.Threshold == nil && o.MaxLargeShare == nil
}

// Equal compares contents.
func (o *Override) Equal(p *Override) bool {
	if o.Empty() || p.Empty() {
		return o.Empty() && p.Empty()
	}
	return o.Policy == p.Policy && same(o.Threshold, p.Threshold) && same(o.MaxLargeShare, p.MaxLargeShare)
}

func same(a, b *float64) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// Check returns a *sampling.FieldError for the first field that is out of range.
// It knows no policies: which of them there are, and their thresholds' ranges, is
// the deployment's.
func (o *Override) Check() error {
	switch {
	case o == nil:
		return nil
	case len(o.Policy) > MaxPolicy:
		return &sampling.FieldError{Field: "trctl.policy", Problem: "the name is too long"}
	case o.Threshold != nil && !(*o.Threshold >= 0 && *o.Threshold <= MaxThreshold):
		return &sampling.FieldError{Field: "trctl.threshold", Problem: "expected a number from 0"}
	case o.MaxLargeShare != nil && !(*o.MaxLargeShare >= 0 && *o.MaxLargeShare <= 1):
		return &sampling.FieldError{Field: "trctl.max_large_share", Problem: "expected 0 to 1"}
	}
	return nil
}
