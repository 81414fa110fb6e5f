package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/internal/cluster/controlnode"
	"github.com/tokenrouter/tokenrouter/internal/cluster/operator"
	"github.com/tokenrouter/tokenrouter/internal/identity"
)

// Tokens that invite makes.
const (
	inviteLife = 24 * time.Hour
	inviteUses = 16
)

// invitation is a join token of a new cluster, which is shown once.
type invitation struct {
	Role    cluster.Role `json:"role"`
	Token   string       `json:"token"`
	Uses    int          `json:"uses"`
	Expires time.Time    `json:"expires"`
	// Command joins with the token in TRCTL_TOKEN.
	Command string `json:"command"`
}

// invite makes a token for each kind of node.
func invite(ctx context.Context, n *controlnode.Node) ([]invitation, error) {
	var out []invitation
	now := time.Now()
	for _, kind := range []struct {
		role    cluster.Role
		command string
	}{
		{cluster.Worker, "trctl worker join --join " + n.Addr()},
		{cluster.Gateway, "trctl gateway join --join " + n.Addr()},
		{cluster.Control, "trctl cluster join " + n.Addr()},
	} {
		request := operator.TokenRequest{Role: kind.role, Life: inviteLife, Uses: inviteUses, Comment: "cluster init"}
		token, object, err := request.Token(n.State(), now)
		if err != nil {
			return nil, err
		}
		command, err := cluster.NewCommand(cluster.KindPutToken, "token/"+token.ID, now, object)
		if err != nil {
			return nil, err
		}
		if _, err := n.Propose(ctx, command); err != nil {
			return nil, fmt.Errorf("make a token for a %s: %w", kind.role, err)
		}
		out = append(out, invitation{kind.role, token.Reveal(), inviteUses, object.Expires, kind.command})
	}
	return out, nil
}

// writeInvitations prints the commands by which others join, for people.
func writeInvitations(w io.Writer, list []invitation) {
	for i, in := range list {
		if i == 0 {
			fmt.Fprintf(w, "To add nodes, until %s and up to %d of each kind:\n", in.Expires.Local().Format(time.DateTime), in.Uses)
		}
		fmt.Fprintf(w, "  TRCTL_TOKEN=%s %s\n", in.Token, in.Command)
	}
	fmt.Fprintln(w, "The tokens are shown this once. `trctl cluster token` lists, makes and revokes them, `trctl key create` makes API keys.")
}

// writeBegun prints as JSON what runs where, and the invitations if there are any.
func writeBegun(w io.Writer, n *controlnode.Node, saved *identity.Saved, admin string, founded bool, list []invitation) error {
	own, _ := n.State().Cluster()
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(struct {
		Cluster string `json:"cluster"`
		Name    string `json:"name"`
		Node    string `json:"node"`
		Addr    string `json:"addr"`
		// Admin is where operators' commands come in; Founded is false when the node goes
		// on with a cluster that was there.
		Admin   string       `json:"admin"`
		Founded bool         `json:"founded"`
		Tokens  []invitation `json:"tokens,omitempty"`
	}{own.ID, own.Name, saved.Node, n.Addr(), admin, founded, list})
}
