package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tokenrouter/tokenrouter/engine"
	"github.com/tokenrouter/tokenrouter/internal/cluster/listing"
	"github.com/tokenrouter/tokenrouter/internal/node"
)

// maxAdminAnswer bounds an answer of the admin endpoint.
const maxAdminAnswer = 4 << 20

type getCmd struct {
	Nodes       getNodesCmd       `cmd:"" help:"All nodes of a cluster."`
	Workers     getWorkersCmd     `cmd:"" help:"Its workers, and how busy they are."`
	Gateways    getGatewaysCmd    `cmd:"" help:"Its gateways."`
	Deployments getDeploymentsCmd `cmd:"" help:"Its deployments, and whether they serve."`
	Placements  getPlacementsCmd  `cmd:"" help:"Its replicas: which model runs where."`
	GPUs        getGPUsCmd        `cmd:"" name:"gpus" help:"GPUs of its workers, and which are in quarantine, since when and why."`
	Keys        getKeysCmd        `cmd:"" help:"Its API keys."`
	Tokens      getTokensCmd      `cmd:"" help:"Its join tokens."`
	Thresholds  getThresholdsCmd  `cmd:"" help:"Batching thresholds: what they were solved from, what they promise and what is seen."`
}

type getThresholdsCmd struct {
	getObjects
	AdminSocket string        `placeholder:"PATH" help:"The same as --admin, for a socket."`
	Interval    time.Duration `default:"2s" help:"With --watch, of a server outside a cluster: time between two looks."`
}

// errInCluster says that a control node answers, which knows thresholds in another way
// than a server.
var errInCluster = errors.New("the server is a control node")

// Run asks the server and prints its answer, once or again and again.
func (g *getThresholdsCmd) Run(ctx context.Context, p process) error {
	if g.Watch && g.Interval < 100*time.Millisecond {
		return usagef("--interval is %s, want at least 100ms", g.Interval)
	}
	if g.AdminSocket != "" {
		g.Admin = g.AdminSocket
	}
	if isAddress(g.Admin) || g.Admin == "" && !exists(defaultSocket()) && g.hasIdentity() {
		return g.get(ctx, p, listing.Thresholds)
	}
	err := g.ofServer(ctx, p)
	if errors.Is(err, errInCluster) {
		return g.get(ctx, p, listing.Thresholds)
	}
	return err
}

// ofServer asks a server that belongs to no cluster.
func (g *getThresholdsCmd) ofServer(ctx context.Context, p process) error {
	ctx, stop := untilSignal(ctx)
	defer stop()
	for {
		text, err := g.look(ctx, g.Watch && !isTerminal(p.out))
		switch {
		case g.Watch && ctx.Err() != nil:
			return nil // the way to end it
		case err != nil:
			return err
		}
		if g.Watch && isTerminal(p.out) && (g.Output == "text" || g.Output == "wide") {
			text = clearScreen + time.Now().Format(time.TimeOnly) + "\n" + text
		}
		if _, err := io.WriteString(p.out, text); err != nil {
			return err
		}
		if !g.Watch || !pause(ctx, g.Interval) {
			return nil
		}
	}
}

// clearScreen puts the cursor into the corner of an empty screen.
const clearScreen = "\x1b[H\x1b[2J"

// look asks the server and returns what to print: with brief, one line a deployment.
func (g *getThresholdsCmd) look(ctx context.Context, brief bool) (string, error) {
	var answer node.Thresholds
	if err := askServer(ctx, g.Admin, node.ThresholdsPath, &answer); err != nil {
		return "", err
	}
	if g.Name != "" {
		answer.Deployments = slices.DeleteFunc(answer.Deployments, func(s engine.GroupStatus) bool { return s.Deployment != g.Name })
		if len(answer.Deployments) == 0 {
			return "", &serverError{fmt.Errorf("deployment %q %w, or has one model", g.Name, listing.ErrNotFound)}
		}
	}
	var out strings.Builder
	switch g.Output {
	case "json":
		e := json.NewEncoder(&out)
		if !g.Watch {
			e.SetIndent("", "  ")
		}
		err := e.Encode(answer)
		return out.String(), err
	case "yaml":
		text, err := listing.YAML(answer)
		return string(text), err
	}
	if len(answer.Deployments) == 0 {
		return "The server has no deployment of several models.\n", nil
	}
	for i := range answer.Deployments {
		s := &answer.Deployments[i]
		if brief {
			fmt.Fprintln(&out, time.Now().Format(time.TimeOnly), briefly(s))
		} else if err := writeThresholds(&out, s); err != nil {
			return "", err
		}
	}
	return out.String(), nil
}

// briefly is a deployment in one line.
func briefly(s *engine.GroupStatus) string {
	text := fmt.Sprintf("%s %s for %.1f live requests, observed %.1f tokens/s", s.Deployment, setting(s.B), s.Live, s.Observed)
	if s.Predicted != nil {
		text += fmt.Sprintf(", predicted %.1f", *s.Predicted)
	}
	return text
}

// writeThresholds prints the thresholds of a deployment for people.
func writeThresholds(w io.Writer, s *engine.GroupStatus) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	how := "as configured"
	switch {
	case s.Auto && !s.Solved:
		how = "automatic, not solved yet"
	case s.Auto && !s.TableInUse:
		how = "automatic; the best ones promise no gain over these"
	case s.Auto:
		how = "automatic"
	}
	fmt.Fprintf(t, "deployment\t%s\nschedule\t%s\n", s.Deployment, s.Schedule)
	fmt.Fprintf(t, "thresholds\t%s for %.1f live requests, %s\n", setting(s.B), s.Live, how)
	if s.SolvedAgo != nil {
		fmt.Fprintf(t, "solved\t%.0f s ago, in %.1f s\n", *s.SolvedAgo, s.SolveTime)
	}
	fmt.Fprintf(t, "observed\t%.1f tokens/s\n", s.Observed)
	if s.Predicted != nil {
		fmt.Fprintf(t, "predicted\t%.1f tokens/s\n", *s.Predicted)
	}
	if s.Difference != nil {
		fmt.Fprintf(t, "difference\t%+.1f %%\n", 100**s.Difference)
	}
	routed := make([]uint64, len(s.Models)) // the server has none before its first look
	copy(routed, s.Routed)
	for i, m := range s.Models {
		fmt.Fprintf(t, "%s\t%d routed steps", m, routed[i])
		if in := s.Inputs; in != nil {
			for k, to := range s.Models {
				fmt.Fprintf(t, ", %.1f %% to %s", 100*in.P[i][k], to)
			}
			fmt.Fprintf(t, "; a step takes %s ms", short(in.T[i][0]))
			if n := len(in.T[i]); n > 1 {
				fmt.Fprintf(t, ", %s ms with %d", short(in.T[i][n-1]), n)
			}
			if in.Speed != nil {
				fmt.Fprintf(t, ", %.2f times as long in company", 1/in.Speed[i][len(in.Speed[i])-1])
			}
		}
		fmt.Fprintln(t)
	}
	if len(s.Table) > 0 {
		fmt.Fprintf(t, "table\t%s\n", listing.TableText(s.Table))
	}
	return t.Flush()
}
