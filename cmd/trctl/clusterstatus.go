package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	controlclient "github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/internal/cluster/listing"
	"github.com/tokenrouter/tokenrouter/internal/cluster/operator"
)

type clusterStatusCmd struct {
	operatorFlags
	outputFlags
}

// clusterStatus is what `trctl cluster status` knows.
type clusterStatus struct {
	Cluster string    `json:"cluster"`
	Name    string    `json:"name"`
	Created time.Time `json:"created"`
	// Consensus is the leader's view, or without one that of the node that was asked.
	Consensus   cluster.Status `json:"consensus"`
	Majority    int            `json:"majority"`
	Nodes       []any          `json:"nodes"`
	Deployments []any          `json:"deployments"`
	// Quarantined are the GPUs in quarantine.
	Quarantined []any `json:"quarantined_gpus"`

	nodes, deployments, quarantined listing.Table
}

// Run prints how the cluster is. Without a leader it prints what is known, and fails.
func (s *clusterStatusCmd) Run(ctx context.Context, p process) error {
	return s.operate(ctx, func(ctx context.Context, c *operator.Client) error {
		known, err := facts(ctx, c)
		if err != nil {
			return err
		}
		var out clusterStatus
		if out.Consensus, err = c.Status(ctx); err != nil {
			return err
		}
		own, _ := known.State.Cluster()
		out.Cluster, out.Name, out.Created = own.ID, own.Name, own.Created
		_, out.Majority = listing.Voters(out.Consensus.Servers)
		if out.nodes, err = known.List(listing.Nodes, ""); err != nil {
			return err
		}
		if out.deployments, err = known.List(listing.Deployments, ""); err != nil {
			return err
		}
		out.quarantined = known.Quarantined()
		out.Nodes, out.Deployments, out.Quarantined = out.nodes.Objects(), out.deployments.Objects(), out.quarantined.Objects()
		if err := s.write(p.out, &out, out.write); err != nil {
			return err
		}
		if out.Consensus.Leader == "" {
			return controlclient.ErrNoLeader
		}
		return nil
	})
}

// write prints the status for people.
func (s *clusterStatus) write(w io.Writer, wide bool) error {
	c := &s.Consensus
	voters, majority := listing.Voters(c.Servers)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "cluster\t%s (%s)\n", s.Name, s.Cluster)
	leader := c.Leader + fmt.Sprintf(" in term %d", c.Term)
	if c.Leader == "" {
		leader = fmt.Sprintf("none in term %d: nothing can be changed until %d of %d control nodes run; serving goes on", c.Term, majority, voters)
	}
	if len(c.Refused) > 0 {
		leader = fmt.Sprintf("none: %s refuse the certificate of %s; if `trctl cluster status` there does not list it, it was removed; else clocks differ, or CAs", strings.Join(c.Refused, ", "), c.Node)
	}
	fmt.Fprintf(t, "leader\t%s\n", leader)
	fmt.Fprintf(t, "log\t%d written, %d committed, %d applied by %s\n", c.Index, c.Commit, c.Applied, c.Node)
	spare := ""
	if c.Leader != "" {
		if spare = ", so that none may fail"; voters > majority {
			spare = fmt.Sprintf(", so that %d may fail", voters-majority)
		}
	}
	fmt.Fprintf(t, "voters\t%d%s\n", voters, spare)
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	t = tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "CONTROL NODE\tVOTES\tBEHIND\tADDRESS")
	for _, server := range c.Servers {
		votes, behind := "yes", "-"
		if !server.Voter {
			votes = "not yet"
		}
		if server.Lag >= 0 {
			behind = fmt.Sprint(server.Lag)
		}
		name := server.Node
		if name == c.Leader {
			name += " (leader)"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", name, votes, behind, server.Addr)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	tables := []*listing.Table{&s.nodes, &s.deployments}
	if len(s.Quarantined) > 0 {
		tables = append(tables, &s.quarantined)
	}
	for _, table := range tables {
		fmt.Fprintln(w)
		if err := table.Write(w, wide); err != nil {
			return err
		}
	}
	return nil
}
