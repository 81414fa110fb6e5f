package policies

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// ErrUnknown says that no policy has the name asked for.
var ErrUnknown = errors.New("unknown policy")

// Set is a configured policy for all models of one deployment.
type Set struct {
	Name string
	// Threshold is the value in force; 0 for policies without one.
	Threshold float64
	build     func(self ModelID) Policy
}

// For returns a new instance for one model of the deployment. It obeys the
// requests' own bounds on the large share.
func (s *Set) For(self ModelID) Policy { return newBounded(s.build(self), self) }

// Named makes a policy of one's own for a deployment: build returns the instance
// for each of its models.
func Named(name string, build func(self ModelID) Policy) *Set {
	return &Set{Name: name, build: build}
}

// kind is a policy that New knows.
type kind struct {
	name string
	// models is the number of models that it is for, 0 for any.
	models int
	// scale is the range of its threshold; zero if it has none.
	scale interval
	// scored says that it needs a router network.
	scored bool
	// reads are the settings that it uses.
	reads []string
	build func(k *kind, set *Set, models int, s *Settings) error
}

// kinds lists the policies, by name.
func kinds() []kind {
	nats := interval{0, 100}
	return []kind{
		{name: "citer", models: 2, scale: unit, scored: true, reads: []string{"threshold", "router"}, build: buildScored},
		{name: "co-llm", models: 2, scale: unit, scored: true, reads: []string{"threshold", "router", "mode", "warmup", "warmup_shape"}, build: buildCoLLM},
		{name: "entropy", models: 2, scale: nats, reads: []string{"threshold"}, build: buildEntropy},
		{name: "glimp-router", models: 2, scale: interval{0, math.Log(glimpTop)}, reads: []string{"threshold", "step_tokens", "think_tokens"}, build: buildGlimp},
		{name: "immediate", models: 2, scale: interval{0, math.Log(immediateTop)}, reads: []string{"threshold", "epistemic", "entropy"}, build: buildImmediate},
		{name: "me", reads: []string{"weights"}, build: buildEnsemble},
		{name: "r-stitch", models: 2, scale: unit, reads: []string{"threshold"}, build: buildRStitch},
		{name: "r-stitch+", models: 2, scale: unit, scored: true, reads: []string{"threshold", "router", "router_threshold"}, build: buildRStitch},
		{name: "r2r", models: 2, scale: unit, scored: true, reads: []string{"threshold", "router"}, build: buildScored},
		{name: "random", models: 2, scale: unit, reads: []string{"threshold"}, build: buildRandom},
		{name: "request-level", models: 2, scale: unit, reads: []string{"threshold"}, build: buildRequestLevel},
		{name: "rule", reads: []string{"rule", "return_rule", "router"}, build: buildRule},
		{name: "single", build: buildSingle},
		{name: "trace", reads: []string{"trace"}, build: buildTrace},
	}
}

func find(name string) *kind {
	for _, k := range kinds() {
		if k.name == name {
			return &k
		}
	}
	return nil
}

// Names are the policies that New knows.
func Names() []string {
	var names []string
	for _, k := range kinds() {
		names = append(names, k.name)
	}
	return names
}

// Scored says that the named policy needs a router network.
func Scored(name string) bool {
	k := find(name)
	return k != nil && k.scored
}

// ThresholdRange is the range of the named policy's threshold; ok is false if it has none.
func ThresholdRange(name string) (from, to float64, ok bool) {
	k := find(name)
	if k == nil || k.scale == (interval{}) {
		return 0, 0, false
	}
	return k.scale.from, k.scale.to, true
}

// New configures the named policy for a deployment of the given number of models.
func New(name string, models int, s Settings) (*Set, error) {
	if models < 1 || models > MaxModels {
		return nil, fmt.Errorf("policy %s: %d models, want 1 to %d", name, models, MaxModels)
	}
	k := find(name)
	if k == nil {
		return nil, fmt.Errorf("policy %s: %w %q; known: %s", name, ErrUnknown, name, strings.Join(Names(), ", "))
	}
	if k.models != 0 && models != k.models {
		return nil, fmt.Errorf("policy %s: %d models, want %d", name, models, k.models)
	}
	set := &Set{Name: name}
	if err := k.build(k, set, models, &s); err != nil {
		return nil, fmt.Errorf("policy %s: %w", name, err)
	}
	return set, nil
}

func buildSingle(_ *kind, set *Set, _ int, _ *Settings) error {
	set.build = func(self ModelID) Policy { return &single{defaults{self}} }
	return nil
}

func buildRandom(k *kind, set *Set, _ int, s *Settings) (err error) {
	set.Threshold, err = k.scale.pick("threshold", DefaultRandomThreshold, s.Threshold)
	set.build = func(self ModelID) Policy { return &random{defaults{self}, set.Threshold} }
	return err
}

func buildRequestLevel(k *kind, set *Set, _ int, s *Settings) (err error) {
	set.Threshold, err = k.scale.pick("threshold", DefaultRequestThreshold, s.Threshold)
	set.build = func(self ModelID) Policy {
		return &requestLevel{defaults{self}, set.Threshold, newDecisions(maxSticky)}
	}
	return err
}

func buildEnsemble(_ *kind, set *Set, models int, s *Settings) error {
	upTo, err := cumulative(s.Weights, models)
	set.build = func(self ModelID) Policy { return &ensemble{defaults{self}, upTo} }
	return err
}

func buildTrace(_ *kind, set *Set, models int, s *Settings) error {
	list, err := parseTrace(s.Trace, models)
	set.build = func(self ModelID) Policy { return &trace{defaults{self}, list} }
	return err
}

// oneOf refuses a word that is not among those known.
func oneOf(setting, word string, known ...string) error {
	if slices.Contains(known, word) {
		return nil
	}
	return fmt.Errorf("%s: %q is not one of %s", setting, word, strings.Join(known, ", "))
}
