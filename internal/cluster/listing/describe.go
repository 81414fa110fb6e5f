package listing

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// Event is something that is known to have happened to a thing.
type Event struct {
	At   time.Time `json:"at"`
	What string    `json:"what"`
}

// Description is everything that is known of one thing.
type Description struct {
	Kind   Kind   `json:"kind"`
	Name   string `json:"name"`
	Object any    `json:"object"`
	// Related are things that belong to it.
	Related []Table `json:"-"`
	Events  []Event `json:"events,omitempty"`
}

// Describe tells all that is known of one thing, or ErrNotFound.
func (f *Facts) Describe(kind Kind, name string) (*Description, error) {
	row, err := f.Find(kind, name)
	if err != nil {
		return nil, err
	}
	d := &Description{Kind: kind, Name: name, Object: row.Object}
	switch o := d.Object.(type) {
	case Node:
		d.relate(f.placements(), func(o any) bool { p, ok := o.(Placement); return ok && p.Node == name })
		d.nodeEvents(f, name)
	case Deployment:
		d.relate(f.placements(), func(x any) bool { p, ok := x.(Placement); return ok && slices.Contains(o.Models, p.Model) })
		d.relate(f.thresholds(), func(x any) bool { t, ok := x.(Threshold); return ok && t.Deployment == name })
	case Placement:
		d.relate(f.nodes(Nodes, ""), func(x any) bool { n, ok := x.(Node); return ok && n.Name == o.Node })
		d.relate(f.deployments(), func(x any) bool { t, ok := x.(Deployment); return ok && slices.Contains(t.Models, o.Model) })
	case GPU:
		d.relate(f.placements(), func(x any) bool { p, ok := x.(Placement); return ok && slices.Contains(o.Replicas, p.Name) })
		if o.Quarantine != nil {
			d.Events = append(d.Events, Event{o.Quarantine.Since, "put into quarantine: " + o.Quarantine.Why})
		}
	case Threshold:
		if o.Solved != nil {
			d.Events = append(d.Events, Event{*o.Solved, "solved"})
		}
	case Key:
		d.Events = append(d.Events, Event{o.Created, "created"})
		d.ends(f.Now, o.Expires)
	case Operator:
		if !o.Created.IsZero() {
			d.Events = append(d.Events, Event{o.Created, "created"})
		}
		d.ends(f.Now, o.Expires)
	case Token:
		d.Events = append(d.Events, Event{o.Created, "created"})
		d.ends(f.Now, &o.Expires)
	}
	slices.SortStableFunc(d.Events, func(a, b Event) int { return a.At.Compare(b.At) })
	return d, nil
}

func (d *Description) relate(t Table, belongs func(object any) bool) {
	t.Rows = slices.DeleteFunc(t.Rows, func(r Row) bool { return !belongs(r.Object) })
	if len(t.Rows) > 0 {
		d.Related = append(d.Related, t)
	}
}

// nodeEvents are what the state remembers of a node.
func (d *Description) nodeEvents(f *Facts, name string) {
	n, _ := f.State.Node(name)
	d.Events = append(d.Events, Event{n.Joined, "joined as a " + string(n.Role)})
	what := fmt.Sprintf("started (the %s time)", ordinal(n.Incarnation))
	switch {
	case n.Lost:
		what = "lost: it was not heard any more"
	case n.Draining:
		what = "began to drain"
	case n.Incarnation <= 1 && n.Since.Equal(n.Joined):
		return
	case !n.Since.Equal(n.Joined) && n.Incarnation <= 1:
		what = "back"
	}
	d.Events = append(d.Events, Event{n.Since, what})
}

func ordinal(n uint64) string {
	suffix := "th"
	switch {
	case n%100 >= 11 && n%100 <= 13:
	case n%10 == 1:
		suffix = "st"
	case n%10 == 2:
		suffix = "nd"
	case n%10 == 3:
		suffix = "rd"
	}
	return fmt.Sprintf("%d%s", n, suffix)
}

func (d *Description) ends(now time.Time, at *time.Time) {
	switch {
	case at == nil:
	case now.After(*at):
		d.Events = append(d.Events, Event{*at, "expired"})
	default:
		d.Events = append(d.Events, Event{*at, "will expire"})
	}
}

// Write prints a description for people.
func (d *Description) Write(w io.Writer) error {
	text, err := YAML(d.Object)
	if err != nil {
		return err
	}
	if _, err := w.Write(text); err != nil {
		return err
	}
	for i := range d.Related {
		fmt.Fprintf(w, "\n%s:\n", d.Related[i].Kind)
		if err := d.Related[i].Write(w, false); err != nil {
			return err
		}
	}
	if len(d.Events) > 0 {
		fmt.Fprintf(w, "\nEvents:\n")
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, e := range d.Events {
			fmt.Fprintf(t, "  %s\t%s\n", e.At.UTC().Format(time.RFC3339), e.What)
		}
		return t.Flush()
	}
	return nil
}

// YAML is a value's JSON in YAML.
func YAML(v any) ([]byte, error) {
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, fmt.Errorf("listing: %w", err)
	}
	out, err := yaml.JSONToYAML(buf.Bytes())
	if err != nil {
		return nil, fmt.Errorf("listing: %w", err)
	}
	return append([]byte(strings.TrimRight(string(out), "\n")), '\n'), nil
}

// Voters are the control nodes that vote, and how many of them a majority is.
func Voters(servers []cluster.Server) (voters, majority int) {
	for _, s := range servers {
		if s.Voter {
			voters++
		}
	}
	return voters, voters/2 + 1
}
