package subservice

import (
	"time"

	"github.com/tokenrouter/tokenrouter/api/handoff"
	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/policies/threshold"
)

// group is what a replica knows of the live requests of its routing group: those
// that it owns as an entry, and those of other entries that may come to it. It
// counts the requests that threshold tables are indexed by.
type group struct {
	// own counts the live requests that this replica owns, served those of them
	// that another replica serves, by its name.
	own    int
	served map[string]int32
	told   map[string]groupNews // by the replica that was told
	heard  map[string]groupNews // by the replica that told
	// changed says that replicas are to be told, or thresholds to be looked up.
	changed bool
	// main is the deployment with the most models: its thresholds count.
	main *deployment
	// tables are the thresholds by live requests; nil or short: main's own.
	table *Thresholds
	// live and step are what was looked up last.
	live int
	step time.Duration
}

// groupNews is the contents of a Group frame.
type groupNews struct {
	live int32
	step time.Duration
}

// Thresholds is a table B(n): entry n−1 are the thresholds of all models of a
// deployment, by index, at n live requests. More requests than entries use the last.
type Thresholds struct {
	Deployment string
	B          [][]int
}

func newGroup() group {
	return group{served: map[string]int32{}, told: map[string]groupNews{}, heard: map[string]groupNews{}, changed: true}
}

// countIn counts a request that this replica owns from now on.
func (s *Subservice) countIn(q *sequence) {
	g := &s.group
	g.own++
	g.changed = true
	q.entry.servedBy = make([]string, len(q.dep.Models))
	for k := range q.dep.Models {
		names := s.replicas(q.dep, policies.ModelID(k))
		if policies.ModelID(k) != q.q.Self && len(names) > 0 {
			g.assign(q, policies.ModelID(k), names[q.id%uint64(len(names))])
		}
	}
}

// assign notes that a replica serves model k for a request that is owned here.
func (g *group) assign(q *sequence, k policies.ModelID, name string) {
	old := q.entry.servedBy[k]
	if old == name {
		return
	}
	if old != "" {
		g.served[old]--
	}
	if name != "" {
		g.served[name]++
	}
	q.entry.servedBy[k] = name
	g.changed = true
}

// ended takes a request out of the count.
func (g *group) ended(q *sequence) {
	if q.entry.servedBy == nil {
		return // it never was admitted
	}
	g.own--
	g.changed = true
	for k := range q.entry.servedBy {
		g.assign(q, policies.ModelID(k), "")
	}
}

// drift says that a step's usual time is far enough from what was told.
func drift(told, now time.Duration) bool { return 4*now < 3*told || 4*now > 5*told }

// regroup tells other replicas what has changed and looks the thresholds up again.
func (s *Subservice) regroup() {
	g := &s.group
	step := s.sched.StepTime()
	if table := s.thresholds.Load(); table != g.table {
		g.table, g.changed = table, true
	}
	if drift(g.step, step) {
		g.step, g.changed = step, true
	}
	if !g.changed {
		return
	}
	g.changed = false
	for _, name := range s.neighbours() {
		news := groupNews{g.served[name], step}
		if told := g.told[name]; told.live == news.live && !drift(told.step, step) {
			continue
		}
		f := handoff.Frame{Kind: handoff.KindGroup, Live: news.live, StepMicros: uint32(min(step.Microseconds(), 1<<31))}
		if err := s.links[name].Send(&f); err != nil {
			g.changed = true // once more, later
			continue
		}
		g.told[name] = news
	}
	g.live = g.own
	var slowest time.Duration
	for _, news := range g.heard {
		g.live += int(news.live)
		slowest = max(slowest, news.step)
	}
	s.sched.ObserveGroup(g.live, s.lookUp(g.live))
	s.sched.ObservePeerStep(slowest)
}

// lookUp returns this model's threshold at n live requests, by the table if there
// is one, else as configured. Thresholds that could deadlock are lowered: whatever
// a table says, Σ(Bᵢ−1) < n.
func (s *Subservice) lookUp(n int) int {
	g := &s.group
	if g.main == nil || n < 1 {
		return 0
	}
	set := s.settings(g.main)
	b := set.Thresholds
	if len(set.Table) > 0 {
		b = set.Table[min(n, len(set.Table))-1]
	}
	if t := g.table; t != nil && t.Deployment == g.main.Name && len(t.B) > 0 {
		b = t.B[min(n, len(t.B))-1]
	}
	if len(b) != len(g.main.Models) {
		return 0
	}
	return threshold.Clamp(b, n)[g.main.Self]
}

// SetThresholds gives the replica a table of thresholds, from the next step on.
// The table must not change any more. Nil goes back to the configured ones. Any
// goroutine may call it.
func (s *Subservice) SetThresholds(t *Thresholds) {
	if s.thresholds.Swap(t) != t {
		s.in.poke()
	}
}

// receiveGroup takes what another replica says of its requests.
func (s *Subservice) receiveGroup(from string, f *handoff.Frame) {
	s.group.heard[from] = groupNews{f.Live, time.Duration(f.StepMicros) * time.Microsecond}
	s.group.changed = true
}

// forgetGroup forgets what a replica said, and what it was told.
func (s *Subservice) forgetGroup(name string) {
	delete(s.group.heard, name)
	delete(s.group.told, name)
	s.group.changed = true
}
