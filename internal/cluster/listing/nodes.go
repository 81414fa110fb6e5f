package listing

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/api/protocol"
)

// Node is a node as operators see it.
type Node struct {
	Name string       `json:"name"`
	Role cluster.Role `json:"role"`
	// State is ready, draining or lost; Why says more if it is not ready.
	State  string `json:"state"`
	Why    string `json:"why,omitempty"`
	Addr   string `json:"addr"`
	Gossip string `json:"gossip,omitempty"`
	Public string `json:"public,omitempty"`
	Build  string `json:"build"`
	// Protocol and MinProtocol are the newest and the oldest version of the cluster's
	// protocol that it speaks.
	Protocol    int       `json:"protocol"`
	MinProtocol int       `json:"min_protocol"`
	Joined      time.Time `json:"joined"`
	// Starts counts its processes so far.
	Starts uint64 `json:"starts"`
	// Heard is the time since its last heartbeat in seconds; nil if that is not known.
	Heard *float64      `json:"heard_seconds_ago,omitempty"`
	GPUs  []cluster.GPU `json:"gpus,omitempty"`
	// Quarantined are those of its GPUs that it must not use.
	Quarantined []Quarantine  `json:"quarantined_gpus,omitempty"`
	Pins        []cluster.Pin `json:"pins,omitempty"`
	Replicas    []string      `json:"replicas,omitempty"`
	// Ready counts the replicas that serve.
	Ready int `json:"ready"`
	// Load is that of all its replicas together; nil if it is not known.
	Load *Load `json:"load,omitempty"`
}

// Load is how busy a node or a replica is.
type Load struct {
	Live    int     `json:"live"`
	Waiting int     `json:"waiting"`
	KV      float32 `json:"kv"`
}

// States of nodes.
const (
	ready    = "ready"
	draining = "draining"
	lost     = "lost"
)

func (f *Facts) node(n *cluster.Node) Node {
	out := Node{
		Name: n.ID, Role: n.Role, State: ready, Addr: n.Addr, Gossip: n.Gossip, Public: n.Public, Build: n.Build, Protocol: n.Protocol, MinProtocol: n.Speaks().Oldest,
		Joined: n.Joined, Starts: n.Incarnation, GPUs: n.GPUs, Quarantined: f.ofNode(n), Pins: n.Pins,
	}
	switch since := f.ago(n.Since); {
	case n.Lost:
		out.State, out.Why = lost, "it was not heard for "+since
	case n.Draining:
		out.State, out.Why = draining, "it gets no new work since "+since
	}
	for id, r := range f.State.AllReplicas() {
		if r.Node != n.ID {
			continue
		}
		out.Replicas = append(out.Replicas, id)
		if _, barred := f.State.Barred(&r); r.Phase == cluster.Ready && !n.Lost && !barred {
			out.Ready++
		}
	}
	heard, ok := f.Loads[n.ID]
	if !ok {
		return out
	}
	seconds := heard.Age.Round(time.Millisecond).Seconds()
	out.Heard = &seconds
	if n.Role != cluster.Worker {
		return out
	}
	out.Load = new(Load)
	for _, l := range heard.Beat.Loads {
		out.Load.Live += l.Live
		out.Load.Waiting += l.Waiting
		out.Load.KV = max(out.Load.KV, l.KV)
	}
	return out
}

func (f *Facts) nodes(kind Kind, role cluster.Role) Table {
	var list []Node
	for _, n := range f.State.AllNodes() {
		if role == "" || n.Role == role {
			list = append(list, f.node(&n))
		}
	}
	columns := []column[Node]{{title: "NAME", text: func(n *Node) string { return n.Name }}}
	add := func(c ...column[Node]) { columns = append(columns, c...) }
	if role == "" {
		add(column[Node]{title: "ROLE", text: func(n *Node) string { return string(n.Role) }})
	}
	add(
		column[Node]{title: "STATE", text: func(n *Node) string { return n.State }},
		column[Node]{title: "HEARD", live: true, text: func(n *Node) string { return heard(n.Heard) }},
	)
	if role != cluster.Gateway {
		add(column[Node]{title: "REPLICAS", text: func(n *Node) string {
			if n.Role != cluster.Worker {
				return "-"
			}
			return fmt.Sprintf("%d/%d", n.Ready, len(n.Replicas))
		}})
	}
	if role == cluster.Worker {
		add(
			column[Node]{title: "LIVE", live: true, text: func(n *Node) string { return n.Load.text(func(l *Load) string { return strconv.Itoa(l.Live) }) }},
			column[Node]{title: "WAITING", live: true, text: func(n *Node) string { return n.Load.text(func(l *Load) string { return strconv.Itoa(l.Waiting) }) }},
			column[Node]{title: "KV", live: true, text: func(n *Node) string { return n.Load.text(func(l *Load) string { return percent(l.KV) }) }},
			column[Node]{title: "GPUS", text: func(n *Node) string {
				if len(n.Quarantined) == 0 {
					return strconv.Itoa(len(n.GPUs))
				}
				return fmt.Sprintf("%d (%d quarantined)", len(n.GPUs), len(n.Quarantined))
			}},
			column[Node]{title: "PINS", wide: true, text: func(n *Node) string { return pins(n.Pins) }},
		)
	}
	if role != cluster.Worker {
		add(column[Node]{title: "PUBLIC", wide: role == "", text: func(n *Node) string { return dash(n.Public) }})
	}
	add(
		column[Node]{title: "ADDRESS", text: func(n *Node) string { return dash(n.Addr) }},
		column[Node]{title: "GOSSIP", wide: true, text: func(n *Node) string { return dash(n.Gossip) }},
		column[Node]{title: "AGE", live: true, text: func(n *Node) string { return f.ago(n.Joined) }},
		column[Node]{title: "STARTS", wide: true, text: func(n *Node) string { return strconv.FormatUint(n.Starts, 10) }},
		column[Node]{title: "PROTOCOL", wide: true, text: func(n *Node) string {
			return protocol.Range{Oldest: n.MinProtocol, Newest: n.Protocol}.String()
		}},
		column[Node]{title: "BUILD", text: func(n *Node) string { return n.Build }},
	)
	return table(kind, list, columns)
}

// text is a fact of a load, or a dash.
func (l *Load) text(of func(*Load) string) string {
	if l == nil {
		return "-"
	}
	return of(l)
}

func percent(share float32) string { return fmt.Sprintf("%.0f%%", 100*share) }

func heard(seconds *float64) string {
	if seconds == nil {
		return "-"
	}
	return span(time.Duration(*seconds * float64(time.Second)))
}

func pins(list []cluster.Pin) string {
	var out []string
	for _, p := range list {
		text := p.Model
		if p.TP > 1 {
			text += fmt.Sprintf(",tp=%d", p.TP)
		}
		out = append(out, text)
	}
	return dash(strings.Join(out, " "))
}

func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// ago is the time since t, in few letters.
func (f *Facts) ago(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return span(f.Now.Sub(t))
}

// span is a duration in one unit.
func span(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
