package choice

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tokenrouter/tokenrouter/gateway/session"
	"github.com/tokenrouter/tokenrouter/policies"
)

// Others lists the policies besides a deployment's own that fit its number of models and
// need no setting of their own, by name.
func Others(own string, models []string) []string {
	return slices.DeleteFunc(policies.Names(), func(name string) bool { return name == own || !fits(name, models) })
}

// fits says that a policy can be made without settings. A router network is none.
func fits(name string, models []string) bool {
	s := policies.Settings{Models: models}
	if policies.Scored(name) {
		s.Net = "any"
	}
	_, err := policies.New(name, len(models), s)
	return err == nil
}

// Of lists what requests to a deployment may choose: its own policy, and the others that
// fit. lacks says what keeps one of these from being chosen, as Lacks does; empty if
// nothing does.
func Of(own string, models []string, lacks func(policy string) string) []session.PolicyChoice {
	var list []session.PolicyChoice
	for _, name := range append(Others(own, models), own) {
		c := session.PolicyChoice{Policy: name}
		c.From, c.To, c.HasThreshold = policies.ThresholdRange(name)
		if name != own {
			c.Lacks = lacks(name)
		}
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b session.PolicyChoice) int { return strings.Compare(a.Policy, b.Policy) })
	return list
}

// Lacks is what an entry model must lack if it has not all that a policy needs.
func Lacks(policy, entry string) string {
	if policies.Scored(policy) {
		return fmt.Sprintf("it needs its router network at %s, which is not there (trctl model convert-router makes one)", entry)
	}
	return fmt.Sprintf("it needs a token </think>, which is not there at %s", entry)
}

// Mapped says that a policy knows ids of one vocabulary, so that it cannot be chosen where
// models have different ones (special_map).
func Mapped(policy string) bool { return policy == "glimp-router" || policy == "rule" }

// LacksMapped is why a policy of which Mapped is true cannot be chosen.
const LacksMapped = "it knows the ids of one vocabulary, and this deployment has several (special_map)"
