package schedule

import (
	"errors"
	"fmt"
	"strings"
)

// Rule says when models start their steps. The zero value is Delayed.
type Rule uint8

// The rules; see the package's description.
const (
	Delayed Rule = iota
	Adaptive
	Eager
	ModelSync
	StepSync
	Lockstep
)

// ErrUnknown says that no rule has the name.
var ErrUnknown = errors.New("unknown schedule")

var names = [...]string{"delayed", "adaptive", "eager", "model-sync", "step-sync", "lockstep"}

// Names lists the rules' names, the default first.
func Names() []string { return append([]string(nil), names[:]...) }

// String returns the rule's name.
func (r Rule) String() string {
	if int(r) < len(names) {
		return names[r]
	}
	return fmt.Sprintf("rule(%d)", uint8(r))
}

// Parse returns the rule of a name; the empty name means Delayed.
func Parse(name string) (Rule, error) {
	if name == "" {
		return Delayed, nil
	}
	for r, n := range names {
		if n == name {
			return Rule(r), nil
		}
	}
	return 0, fmt.Errorf("%w %q; there are %s", ErrUnknown, name, strings.Join(names[:], ", "))
}

// MarshalText implements encoding.TextMarshaler.
func (r Rule) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *Rule) UnmarshalText(text []byte) (err error) {
	*r, err = Parse(string(text))
	return err
}

// barrier says that steps start in rounds, for all members together.
func (r Rule) barrier() bool { return r == ModelSync || r == StepSync || r == Lockstep }

// Overlaps says that a member may launch its next step before it knows the results
// of the one in flight: nobody has a say in when it starts.
func (r Rule) Overlaps() bool { return r == Eager || r == Delayed }
