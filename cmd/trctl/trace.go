package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tokenrouter/tokenrouter/api/trace"
	"github.com/tokenrouter/tokenrouter/internal/cluster/operator"
)

type traceCmd struct {
	operatorFlags
	outputFlags
	ID string `arg:"" help:"Id of the answer, such as chatcmpl-0123456789abcdef."`
}

// errForgotten says that nobody remembers a request.
var errForgotten = errors.New("nobody remembers the request: it has not ended, is too long ago, or its worker was started anew")

// Run prints where a request was and what it waited for, as its workers remember it.
func (t *traceCmd) Run(ctx context.Context, p process) error {
	if _, err := trace.ID(t.ID); err != nil {
		return &usageError{err}
	}
	found, err := t.find(ctx)
	if err != nil {
		return err
	}
	for _, name := range found.Silent {
		fmt.Fprintf(p.err, "Worker %s did not answer.\n", name)
	}
	if len(found.Parts) == 0 {
		return &serverError{fmt.Errorf("%s: %w", t.ID, errForgotten)}
	}
	return t.write(p.out, found, func(w io.Writer, wide bool) error { return writeTrace(w, found.Parts, wide) })
}

// find asks the server, or the cluster.
func (t *traceCmd) find(ctx context.Context) (found operator.Trace, err error) {
	ask := func(ctx context.Context, c *operator.Client) error {
		found, err = c.Trace(ctx, t.ID)
		return err
	}
	if isAddress(t.Admin) || t.Admin == "" && !exists(defaultSocket()) && t.hasIdentity() {
		return found, t.operate(ctx, ask)
	}
	err = askServer(ctx, t.Admin, trace.Path+"?id="+url.QueryEscape(t.ID), &found.Parts)
	if errors.Is(err, errInCluster) {
		return found, t.operate(ctx, ask)
	}
	return found, err
}

// askServer reads a JSON answer from the admin socket of a server; errInCluster if it is
// a control node's.
func askServer(ctx context.Context, socket, path string, to any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://admin"+path, nil)
	if err != nil {
		return err
	}
	resp, err := adminClient(socket).Do(req)
	if err != nil {
		return &serverError{fmt.Errorf("%w (does trctl serve run here, or a control node, with this admin socket?)", err)}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAdminAnswer))
	if err != nil {
		return &serverError{fmt.Errorf("read the answer: %w", err)}
	}
	if resp.StatusCode == http.StatusNotFound {
		return errInCluster
	}
	if resp.StatusCode != http.StatusOK {
		return &serverError{fmt.Errorf("the server answers %s", resp.Status)}
	}
	if err := json.Unmarshal(body, to); err != nil {
		return &serverError{fmt.Errorf("read the answer: %w", err)}
	}
	return nil
}

// writeTrace prints the parts of a request for people: for every epoch its visits, and
// what each replica did.
func writeTrace(w io.Writer, parts []trace.Part, wide bool) error {
	for i := range parts {
		if p := &parts[i]; p.Entry {
			writeEntry(w, p, wide)
		}
	}
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "EPOCH\tREPLICA\tMODEL\tTOKENS\tSTEPS\tQUEUED\tWAITED FOR STEPS\tHELD")
	entries := map[uint32]bool{}
	for i := range parts {
		p := &parts[i]
		entries[p.Epoch] = entries[p.Epoch] || p.Entry
		fmt.Fprintf(t, "%d\t%s\t%s\t%d\t%d\t%s\t%s\t%s\n", p.Epoch, p.Replica, p.Model, p.Tokens, p.Steps, milli(p.Queued), milli(p.BatchWait), milli(p.Took))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	last := parts[len(parts)-1].Epoch
	for epoch := uint32(1); epoch <= last; epoch++ {
		if !entries[epoch] {
			fmt.Fprintf(w, "The entry of epoch %d does not remember it: it was lost, or started anew.\n", epoch)
		}
	}
	return nil
}

// fewVisits is how many visits are printed without -o wide.
const fewVisits = 40

// writeEntry prints how a request went in one epoch.
func writeEntry(w io.Writer, p *trace.Part, wide bool) {
	cached := ""
	if p.Cached > 0 {
		cached = fmt.Sprintf(", %d of them cached", p.Cached)
	}
	fmt.Fprintf(w, "epoch %d of %s at %s (%s): %s, began %s\n", p.Epoch, p.Deployment, p.Replica, p.Model, p.End, p.Began.Local().Format("2006-01-02 15:04:05.000"))
	fmt.Fprintf(w, "  %d prompt tokens%s; %d tokens after %s\n", p.Prompt, cached, p.Answer, milli(p.Took))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "  AT\tMODEL\tREPLICA\tHOP\tTOKENS\tTOOK")
	left := 0
	for i, v := range p.Visits {
		if i >= fewVisits && !wide {
			left = len(p.Visits) - i
			break
		}
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%d\t%s\n", milli(v.From), v.Model, v.Replica, hop(&v), v.Tokens, milli(v.Took))
	}
	_ = t.Flush() // the caller's next write fails as well
	if left > 0 {
		fmt.Fprintf(w, "  … %d more visits (-o wide)\n", left)
	}
	if p.Dropped > 0 {
		fmt.Fprintf(w, "  … %d visits were not kept\n", p.Dropped)
	}
}

// hop prints the number of a hand-off, with the try if that is not the first.
func hop(v *trace.Visit) string {
	if v.Try > 0 {
		return fmt.Sprintf("%d of try %d", v.Hop, v.Try+1)
	}
	return fmt.Sprint(v.Hop)
}

// milli prints a duration in milliseconds.
func milli(d time.Duration) string {
	return strings.TrimSuffix(fmt.Sprintf("%.2f", float64(d)/1e6), ".00") + "ms"
}
