package control

import (
	"errors"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/api/protocol"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/internal/identity"
)

// spoken is a state with control nodes c1, c2, … that speak these versions, which
// commands up to a version have written.
func spoken(t *testing.T, written int, speak ...protocol.Range) *state.State {
	t.Helper()
	s := new(state.State)
	apply := func(c cluster.Command) {
		next, err := state.Apply(s, s.Index+1, c)
		if err != nil {
			t.Fatal(err)
		}
		s = next
	}
	made := func(kind cluster.Kind, body any) cluster.Command {
		c, err := cluster.NewCommand(kind, "", epoch, body)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	apply(made(cluster.KindInit, cluster.Cluster{ID: "c", CAs: []string{"ca"}}))
	for i, r := range speak {
		n := cluster.Node{ID: "c" + string(rune('1'+i)), Role: cluster.Control, Addr: "a:1"}
		n.Speak(r)
		apply(made(cluster.KindPutNode, n))
	}
	if written > 1 {
		c := made(cluster.KindSetCAs, cluster.CAs{CAs: []string{"ca"}})
		c.V = written
		apply(c)
	}
	return s
}

// Which commands may be written while control nodes of several builds are there. c1 is
// the node that is asked.
func TestWritable(t *testing.T) {
	t.Parallel()
	old, both, later := protocol.Range{Oldest: 1, Newest: 1}, protocol.Range{Oldest: 1, Newest: 2}, protocol.Range{Oldest: 2, Newest: 3}
	for name, c := range map[string]struct {
		ours   protocol.Range
		others []protocol.Range // what the state has, c1 first
		v      int
		says   string // of the refusal
	}{
		"all speak it":            {both, []protocol.Range{both, both, both}, 2, ""},
		"one does not":            {both, []protocol.Range{both, old, both}, 2, "has version 2; control node c2 speaks 1; upgrade"},
		"this one does not":       {old, []protocol.Range{old, both}, 2, "control node c1 speaks 1; upgrade"},
		"this one has not said":   {both, []protocol.Range{old, both}, 2, ""},
		"this one was newer":      {old, []protocol.Range{both, both}, 2, "control node c1 speaks 1"},
		"old ones are welcome":    {both, []protocol.Range{both, old}, 1, ""},
		"too old for one":         {both, []protocol.Range{both, later}, 1, "control node c2 speaks 2 to 3"},
		"garbage":                 {both, []protocol.Range{both, both}, -1, "has version -1"},
		"none":                    {both, []protocol.Range{both, both}, 0, "has version 0"},
		"absurd":                  {both, []protocol.Range{both, both}, 1 << 40, "control node c2 speaks 1 to 2"},
		"the state knows no node": {both, nil, 2, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			command, err := cluster.NewCommand(cluster.KindSetCAs, "", epoch, cluster.CAs{CAs: []string{"x"}})
			if err != nil {
				t.Fatal(err)
			}
			command.V = c.v
			err = writable(spoken(t, 1, c.others...), "c1", c.ours, &command)
			if c.says == "" && err != nil || c.says != "" && (!errors.Is(err, client.ErrVersion) || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("error %v, want %q", err, c.says)
			}
		})
	}
}

// Which nodes may join, and start. c1 is the node that is asked.
func TestFits(t *testing.T) {
	t.Parallel()
	old, both, later := protocol.Range{Oldest: 1, Newest: 1}, protocol.Range{Oldest: 1, Newest: 2}, protocol.Range{Oldest: 2, Newest: 3}
	for name, c := range map[string]struct {
		role    cluster.Role
		id      string
		speaks  protocol.Range
		written int
		others  []protocol.Range
		says    string
	}{
		"same build":                    {cluster.Worker, "w", both, 2, []protocol.Range{both, both}, ""},
		"older worker":                  {cluster.Worker, "w", old, 2, []protocol.Range{both, both}, ""},
		"newer gateway":                 {cluster.Gateway, "g", protocol.Range{Oldest: 1, Newest: 7}, 1, []protocol.Range{old, old}, ""},
		"too old":                       {cluster.Worker, "w", old, 1, []protocol.Range{later, later}, "this side speaks 2 to 3, the other 1: the other is too old; upgrade it to a build that speaks 2"},
		"too new":                       {cluster.Worker, "w", later, 1, []protocol.Range{old, old}, "this side speaks 1, the other 2 to 3: the other is too new; upgrade this side first"},
		"too new for one control node":  {cluster.Gateway, "g", later, 1, []protocol.Range{both, old}, "this side speaks 1, the other 2 to 3"},
		"no version":                    {cluster.Worker, "w", protocol.Range{}, 1, []protocol.Range{both}, "no range of versions"},
		"backwards":                     {cluster.Worker, "w", protocol.Range{Oldest: 2, Newest: 1}, 1, []protocol.Range{both}, "no range of versions"},
		"absurd":                        {cluster.Worker, "w", protocol.Range{Oldest: 1, Newest: 1 << 40}, 1, []protocol.Range{both}, "no range of versions"},
		"control, nothing new written":  {cluster.Control, "c3", old, 1, []protocol.Range{both, both, both}, ""},
		"control that cannot read":      {cluster.Control, "c3", old, 2, []protocol.Range{both, both, both}, "speaks 1, and version 2 was written already; use a build that speaks 2"},
		"control, upgraded":             {cluster.Control, "c3", both, 1, []protocol.Range{old, old, old}, ""},
		"control, its old build is not": {cluster.Control, "c3", later, 2, []protocol.Range{both, both, old}, ""},
		"control, itself":               {cluster.Control, "c1", both, 1, []protocol.Range{old, old, old}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := cluster.Node{ID: c.id, Role: c.role, Build: "b", Protocol: c.speaks.Newest, MinProtocol: c.speaks.Oldest}
			ours := c.others[0]
			if c.id == "c1" {
				ours = c.speaks
			}
			err := fits(spoken(t, c.written, c.others...), "c1", ours, &n)
			if c.says == "" && err != nil || c.says != "" && (!errors.Is(err, client.ErrVersion) || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("error %v, want %q", err, c.says)
			}
		})
	}
}

// What this build cannot read is refused for its version, not for who gives it.
func TestAuthoriseVersion(t *testing.T) {
	t.Parallel()
	for _, v := range []int{-1, 0, cluster.Protocol + 1, 1 << 40} {
		for role, want := range map[cluster.Role]error{
			cluster.Admin: client.ErrVersion, cluster.Worker: client.ErrVersion, cluster.Gateway: client.ErrVersion, cluster.Control: nil,
		} {
			err := authorise(identity.Name{Cluster: "c", Role: role, Node: "x"}, &cluster.Command{V: v, Kind: "dance"})
			if !errors.Is(err, want) {
				t.Errorf("a %s with version %d: %v, want %v", role, v, err, want)
			}
		}
	}
	err := authorise(identity.Name{Cluster: "c", Role: cluster.Admin, Node: "x"}, &cluster.Command{V: 1, Kind: "dance"})
	if !errors.Is(err, client.ErrForbidden) {
		t.Errorf("an unknown kind of a known version: %v", err)
	}
}
