package policies

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrUnknown says that no policy has the name asked for.
var ErrUnknown = errors.New("unknown policy")

// Settings are what a deployment may set. A nil field is unset: the policy's
// own default holds (order: flag, configuration, checkpoint, default).
type Settings struct {
	// Threshold is τ for r-stitch and request-level and the probability p for
	// random, in [0, 1].
	Threshold *float64
	// Weights are the shares of the models under me, one for each; empty means equal.
	Weights []float64
	// Trace is the decision list of the trace policy (see parseTrace).
	Trace string
}

// Set is a configured policy for all models of one deployment.
type Set struct {
	Name string
	// Threshold is the value in force; 0 for policies without one.
	Threshold float64
	build     func(self ModelID) Policy
}

// For returns a new instance for one model of the deployment.
func (s *Set) For(self ModelID) Policy { return s.build(self) }

// Names are the policies that New knows.
func Names() []string {
	return []string{"me", "r-stitch", "random", "request-level", "single", "trace"}
}

// New configures the named policy for a deployment of the given number of models.
func New(name string, models int, s Settings) (*Set, error) {
	if models < 1 || models > MaxModels {
		return nil, fmt.Errorf("policy %s: %d models, want 1 to %d", name, models, MaxModels)
	}
	if slices.Contains([]string{"r-stitch", "random", "request-level"}, name) && models != 2 {
		return nil, fmt.Errorf("policy %s: %d models, want 2", name, models)
	}
	set := &Set{Name: name}
	var err error
	switch name {
	case "single":
		set.build = func(self ModelID) Policy { return &single{defaults{self}} }
	case "r-stitch":
		set.Threshold, err = threshold(s.Threshold, DefaultRStitchThreshold)
		set.build = func(self ModelID) Policy { return &rStitch{defaults{self}, set.Threshold} }
	case "random":
		set.Threshold, err = threshold(s.Threshold, DefaultRandomThreshold)
		set.build = func(self ModelID) Policy { return &random{defaults{self}, set.Threshold} }
	case "request-level":
		set.Threshold, err = threshold(s.Threshold, DefaultRequestThreshold)
		set.build = func(self ModelID) Policy {
			return &requestLevel{defaults{self}, set.Threshold, newDecisions(maxSticky)}
		}
	case "me":
		var upTo []float64
		upTo, err = cumulative(s.Weights, models)
		set.build = func(self ModelID) Policy { return &ensemble{defaults{self}, upTo} }
	case "trace":
		var list map[traceKey]Decision
		list, err = parseTrace(s.Trace, models)
		set.build = func(self ModelID) Policy { return &trace{defaults{self}, list} }
	default:
		err = fmt.Errorf("%w %q; known: %s", ErrUnknown, name, strings.Join(Names(), ", "))
	}
	if err != nil {
		return nil, fmt.Errorf("policy %s: %w", name, err)
	}
	return set, nil
}

// Check reports a setting that the named policy does not read. New ignores such
// a one; whoever wrote it believes in it.
func (s Settings) Check(name string) error {
	for _, f := range []struct {
		setting string
		given   bool
		readers []string
	}{
		{"threshold", s.Threshold != nil, []string{"r-stitch", "random", "request-level"}},
		{"weights", len(s.Weights) > 0, []string{"me"}},
		{"trace", s.Trace != "", []string{"trace"}},
	} {
		if f.given && slices.Contains(Names(), name) && !slices.Contains(f.readers, name) {
			return fmt.Errorf("policy %s: %s: is a setting of %s", name, f.setting, strings.Join(f.readers, ", "))
		}
	}
	return nil
}

// threshold returns the value in force, which must be in [0, 1] (and is not, if NaN).
func threshold(set *float64, otherwise float64) (float64, error) {
	if set == nil {
		return otherwise, nil
	}
	if !(*set >= 0 && *set <= 1) {
		return 0, fmt.Errorf("threshold: is %v, must be between 0 and 1", *set)
	}
	return *set, nil
}
