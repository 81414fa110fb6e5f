package listing

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// Deployment is a deployment as operators see it.
type Deployment struct {
	Name   string   `json:"name"`
	Models []string `json:"models"`
	// State is ready; degraded if some wanted replica is missing; waiting if some model
	// has none that serves; faulty if its models cannot write together.
	State string   `json:"state"`
	Why   []string `json:"why,omitempty"`
	// Ready and Wanted count the replicas of each model.
	Ready        []int            `json:"ready"`
	Wanted       []int            `json:"wanted"`
	Policy       string           `json:"policy"`
	Settings     json.RawMessage  `json:"settings,omitempty"`
	Thresholds   []int            `json:"thresholds,omitempty"`
	LongestWait  string           `json:"longest_wait"`
	MaxInFlight  int              `json:"max_in_flight,omitempty"`
	Fallback     cluster.Fallback `json:"fallback"`
	FallbackWait string           `json:"fallback_wait,omitempty"`
	// Default deployments were made by the cluster for models that belong together.
	Default bool   `json:"default,omitempty"`
	Version uint64 `json:"version"`
}

// States of deployments besides ready.
const (
	degraded = "degraded"
	waiting  = "waiting"
	faulty   = "faulty"
)

// DefaultFallbackWait is how long a request waits for a collaborator if its deployment
// does not say.
const DefaultFallbackWait = 10 * time.Second

// Deployment is one of the cluster's deployments.
func (f *Facts) Deployment(d *cluster.Deployment) Deployment {
	out := Deployment{
		Name: d.Name, Models: d.Models, State: ready, Policy: d.Policy, Settings: d.Settings, Thresholds: d.Thresholds,
		LongestWait: "auto", MaxInFlight: d.MaxInFlight, Fallback: d.Fallback, Default: d.Default, Version: d.Version,
	}
	if d.LongestWait > 0 {
		out.LongestWait = d.LongestWait.String()
	}
	if out.Fallback == "" {
		out.Fallback = cluster.FallbackWait
	}
	if out.Fallback == cluster.FallbackWait {
		out.FallbackWait = DefaultFallbackWait.String()
		if d.FallbackWait > 0 {
			out.FallbackWait = d.FallbackWait.String()
		}
	}
	for i, model := range d.Models {
		ready, pinned := 0, 0
		for _, r := range f.State.ReplicasOf(model) {
			if r.Pinned {
				pinned++
			}
			if f.State.Serving(&r) && !r.LeavesOut(d.Name) {
				ready++
			}
		}
		wanted := max(1, pinned)
		if i < len(d.Replicas) && d.Replicas[i] > 0 {
			wanted = max(d.Replicas[i], pinned)
		}
		out.Ready, out.Wanted = append(out.Ready, ready), append(out.Wanted, wanted)
		switch {
		case ready == 0:
			out.State = waiting
		case ready < wanted && out.State == "ready":
			out.State = degraded
		}
	}
	why, wrong := f.whyDeployment(&out)
	if out.Why = why; wrong {
		out.State = faulty
	}
	return out
}

func (f *Facts) deployments() Table {
	var list []Deployment
	for _, d := range f.State.AllDeployments() {
		list = append(list, f.Deployment(&d))
	}
	type c = column[Deployment]
	return table(Deployments, list, []c{
		{title: "NAME", text: func(d *Deployment) string { return d.Name }},
		{title: "STATE", text: func(d *Deployment) string { return d.State }},
		{title: "MODELS", text: func(d *Deployment) string { return strings.Join(d.Models, ",") }},
		{title: "READY", text: func(d *Deployment) string {
			parts := make([]string, len(d.Ready))
			for i := range parts {
				parts[i] = fmt.Sprintf("%d/%d", d.Ready[i], d.Wanted[i])
			}
			return strings.Join(parts, ",")
		}},
		{title: "POLICY", text: func(d *Deployment) string { return d.Policy }},
		{title: "SETTINGS", wide: true, text: func(d *Deployment) string { return dash(compact(d.Settings)) }},
		{title: "THRESHOLDS", text: func(d *Deployment) string {
			if d.Thresholds == nil {
				return "auto"
			}
			return setting(d.Thresholds)
		}},
		{title: "FALLBACK", wide: true, text: func(d *Deployment) string { return strings.TrimSpace(string(d.Fallback) + " " + d.FallbackWait) }},
		{title: "VERSION", text: func(d *Deployment) string {
			text := strconv.FormatUint(d.Version, 10)
			if d.Default {
				text += " (default)"
			}
			return text
		}},
		{title: "WHY", wide: true, text: func(d *Deployment) string { return dash(strings.Join(d.Why, "; ")) }},
	})
}

func compact(text json.RawMessage) string {
	if string(text) == "null" {
		return ""
	}
	// The encoder's way with <, > and &, which are common in special maps, is for web pages.
	return strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&").Replace(string(text))
}

// setting is thresholds as people write them.
func setting(b []int) string {
	words := make([]string, len(b))
	for i, v := range b {
		words[i] = strconv.Itoa(v)
	}
	return "(" + strings.Join(words, ",") + ")"
}

// Placement is a replica as operators see it.
type Placement struct {
	Name  string        `json:"name"`
	Model string        `json:"model"`
	Node  string        `json:"node"`
	Phase cluster.Phase `json:"phase"`
	// Why says more if it does not serve.
	Why      string `json:"why,omitempty"`
	Pinned   bool   `json:"pinned,omitempty"`
	Draining bool   `json:"draining,omitempty"`
	// Quarantined says that its GPU must not be used.
	Quarantined bool          `json:"quarantined,omitempty"`
	TP          int           `json:"tp"`
	GPUs        []int         `json:"gpus,omitempty"`
	Source      string        `json:"source"`
	Generation  uint64        `json:"generation"`
	Facts       cluster.Facts `json:"facts,omitzero"`
	Load        *Load         `json:"load,omitempty"`
}

func (f *Facts) placement(r *cluster.Replica) Placement {
	p := Placement{
		Name: r.ID, Model: r.Model, Node: r.Node, Phase: r.Phase, Why: f.whyReplica(r), Pinned: r.Pinned, Draining: r.Draining,
		TP: r.TP, GPUs: r.GPUs, Source: r.Source, Generation: r.Generation, Facts: r.Facts,
	}
	_, p.Quarantined = f.State.Barred(r)
	if heard, ok := f.Loads[r.Node]; ok {
		if l, ok := heard.Beat.Loads[r.ID]; ok {
			p.Load = &Load{l.Live, l.Waiting, l.KV}
		}
	}
	return p
}

func (f *Facts) placements() Table {
	var list []Placement
	for _, r := range f.State.AllReplicas() {
		list = append(list, f.placement(&r))
	}
	type c = column[Placement]
	return table(Placements, list, []c{
		{title: "NAME", text: func(p *Placement) string { return p.Name }},
		{title: "MODEL", text: func(p *Placement) string { return p.Model }},
		{title: "NODE", text: func(p *Placement) string { return p.Node }},
		{title: "PHASE", text: func(p *Placement) string {
			phase := string(p.Phase) // what the node said last
			if n, _ := f.State.Node(p.Node); n.Lost {
				phase = lost
			}
			if p.Draining {
				phase += ",draining"
			}
			if p.Quarantined {
				phase += "," + quarantined
			}
			return phase
		}},
		{title: "PINNED", text: func(p *Placement) string { return yes(p.Pinned) }},
		{title: "GPUS", text: func(p *Placement) string {
			if len(p.GPUs) == 0 {
				return "-"
			}
			return strings.Trim(strings.Join(strings.Fields(fmt.Sprint(p.GPUs)), ","), "[]")
		}},
		{title: "LIVE", live: true, text: func(p *Placement) string { return p.Load.text(func(l *Load) string { return strconv.Itoa(l.Live) }) }},
		{title: "KV", live: true, text: func(p *Placement) string { return p.Load.text(func(l *Load) string { return percent(l.KV) }) }},
		{title: "GENERATION", text: func(p *Placement) string { return strconv.FormatUint(p.Generation, 10) }},
		{title: "BACKEND", wide: true, text: func(p *Placement) string { return dash(p.Facts.Backend) }},
		{title: "CONTEXT", wide: true, text: func(p *Placement) string { return number(p.Facts.MaxContext) }},
		{title: "KV-TOKENS", wide: true, text: func(p *Placement) string { return number(p.Facts.KVTokens) }},
		{title: "SOURCE", wide: true, text: func(p *Placement) string { return p.Source }},
		{title: "WHY", wide: true, text: func(p *Placement) string { return dash(p.Why) }},
	})
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "-"
}

func number(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

// Threshold is the batching thresholds of a deployment as operators see them.
type Threshold struct {
	Deployment string   `json:"deployment"`
	Models     []string `json:"models"`
	// How is fixed (by the operator), solved (by the leader), or unsolved.
	How string `json:"how"`
	// B has the thresholds of all models at n = 1, 2, … live requests; one row that is
	// fixed holds for all n.
	B         [][]int         `json:"b,omitempty"`
	Inputs    json.RawMessage `json:"inputs,omitempty"`
	Solved    *time.Time      `json:"solved,omitempty"`
	Predicted float64         `json:"predicted_tokens_per_s,omitempty"`
}

func (f *Facts) thresholds() Table {
	var list []Threshold
	for name, d := range f.State.AllDeployments() {
		t := Threshold{Deployment: name, Models: d.Models, How: "unsolved"}
		solved, ok := f.State.Table(name)
		switch {
		case d.Thresholds != nil:
			t.How, t.B = "fixed", [][]int{d.Thresholds}
		case ok:
			t.How, t.B, t.Inputs, t.Solved, t.Predicted = "solved", solved.B, solved.Inputs, &solved.Solved, solved.Predicted
		}
		list = append(list, t)
	}
	type c = column[Threshold]
	return table(Thresholds, list, []c{
		{title: "DEPLOYMENT", text: func(t *Threshold) string { return t.Deployment }},
		{title: "HOW", text: func(t *Threshold) string { return t.How }},
		{title: "SOLVED", live: true, text: func(t *Threshold) string {
			if t.Solved == nil {
				return "-"
			}
			return f.ago(*t.Solved)
		}},
		{title: "PREDICTED", text: func(t *Threshold) string {
			if t.Predicted == 0 {
				return "-"
			}
			return fmt.Sprintf("%.1f tok/s", t.Predicted)
		}},
		{title: "TABLE", text: func(t *Threshold) string {
			switch t.How {
			case "fixed":
				return setting(t.B[0])
			case "solved":
				return TableText(t.B)
			}
			return "-"
		}},
	})
}

// TableText has thresholds by number of live requests, with equal ones together.
func TableText(table [][]int) string {
	var parts []string
	for from := 0; from < len(table); {
		to := from
		for to+1 < len(table) && slices.Equal(table[to+1], table[from]) {
			to++
		}
		live := strconv.Itoa(from + 1)
		if to > from {
			live += "-" + strconv.Itoa(to+1)
		}
		parts, from = append(parts, live+": "+setting(table[from])), to+1
	}
	return strings.Join(parts, ", ")
}
