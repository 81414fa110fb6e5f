package engine

import (
	"slices"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// meanwhile is an error during whose telling something happens.
type meanwhile func()

func (m meanwhile) Error() string { m(); return "not found" }

// A complaint says nothing of how far a replica is: its run may have begun to serve, or have
// failed, while the complaint was made.
func TestComplaintKeepsPhase(t *testing.T) {
	for _, tc := range []struct{ before, after cluster.Phase }{
		{cluster.Starting, cluster.Ready}, {cluster.Ready, cluster.Failed},
	} {
		r := newReplica("a", new(loaded))
		r.setPhase(tc.before, "")
		left := cluster.LeftOut{Deployment: "pair"}
		r.complain(newEngine(Config{}), []error{&leftOut{left, meanwhile(func() { r.setPhase(tc.after, "") })}})
		if phase, why := r.phaseNow(); phase != tc.after || why != "not found" || !slices.Equal(r.left, []cluster.LeftOut{left}) {
			t.Errorf("from %s to %s, and then it is %s %q without %v", tc.before, tc.after, phase, why, r.left)
		}
	}
}

// That there is nothing to complain of any more says nothing of why a replica has failed.
func TestComplaintEnds(t *testing.T) {
	r, e := newReplica("a", new(loaded)), newEngine(Config{})
	for _, tc := range []struct {
		phase cluster.Phase
		want  string
	}{{cluster.Failed, "out of memory"}, {cluster.Ready, ""}} {
		r.complain(e, []error{meanwhile(func() {})})
		r.setPhase(tc.phase, "out of memory")
		r.complain(e, nil)
		if phase, why := r.phaseNow(); phase != tc.phase || why != tc.want {
			t.Errorf("it is %s %q, want %s %q", phase, why, tc.phase, tc.want)
		}
	}
}
