package control_test

import (
	"errors"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control"
	"github.com/tokenrouter/tokenrouter/control/controltest"
)

// A node whose disk cannot be written ends with an error that says so, and without a
// panic of the library, whatever it is in the consensus. The others go on.
func TestDiskFault(t *testing.T) {
	for _, test := range []struct {
		name string
		of   func(*controltest.Cluster) *controltest.Node
	}{
		{"leader", (*controltest.Cluster).Leader},
		{"follower", (*controltest.Cluster).Follower},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := controltest.New(t, 3, nil)
			c.Propose(c.Leader(), cluster.KindPutDeployment, deployment("one"))
			n := test.of(c)
			if err := control.CloseStore(n.Node); err != nil {
				t.Fatal(err)
			}
			c.Forget(n)
			put, err := cluster.NewCommand(cluster.KindPutDeployment, "two", time.Now(), deployment("two"))
			if err != nil {
				t.Fatal(err)
			}
			other := c.Nodes()[0]
			c.Poll("a change is made by those that are left", func() bool {
				_, err := other.Propose(t.Context(), put) // the first one may find the disk that fails
				return err == nil
			})
			if err := n.Err(); !errors.Is(err, control.ErrDisk) {
				t.Errorf("it ended with %v", err)
			}
			c.Await("deployment two", has("two"))
		})
	}
}

// A node that stands for election cannot write its term: this is where the library panics.
func TestDiskFaultInElection(t *testing.T) {
	t.Parallel()
	c := controltest.New(t, 3, nil)
	leader, n := c.Leader(), c.Follower()
	if err := control.CloseStore(n.Node); err != nil {
		t.Fatal(err)
	}
	c.Forget(n)
	leader.Crash()
	c.Forget(leader)
	if err := n.Err(); !errors.Is(err, control.ErrDisk) {
		t.Errorf("it ended with %v", err)
	}
}
