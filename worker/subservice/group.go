package subservice

import (
	"cmp"
	"maps"
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
	// main is the deployment whose thresholds count: of those with several models the one
	// that the replica has most to do for, and before there is anything to do the one
	// with the most models.
	main *deployment
	// busiest says that main was chosen by what there is to do; routed are the steps that
	// were routed by judged, by deployment.
	busiest bool
	routed  map[string]uint64
	judged  time.Duration
	// tables are the thresholds by live requests, by deployment; without one that
	// counts, main's own.
	tables *map[string]*Thresholds
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
	return group{
		served: map[string]int32{}, told: map[string]groupNews{}, heard: map[string]groupNews{}, routed: map[string]uint64{}, changed: true,
	}
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
	if tables := s.thresholds.Load(); tables != g.tables {
		g.tables, g.changed = tables, true
	}
	s.chooseMain()
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
	if g.tables != nil {
		if t := (*g.tables)[g.main.Name]; t != nil && len(t.B) > 0 {
			b = t.B[min(n, len(t.B))-1]
		}
	}
	if len(b) != len(g.main.Models) {
		return 0
	}
	return threshold.Clamp(b, n)[g.main.Self]
}

// SetThresholds gives the replica a table of thresholds for a deployment, from the next
// step on. The table must not change any more. One without rows goes back to the
// configured ones. Any goroutine may call it.
func (s *Subservice) SetThresholds(t *Thresholds) {
	for {
		old := s.thresholds.Load()
		next := map[string]*Thresholds{}
		if old != nil {
			if (*old)[t.Deployment] == t {
				return
			}
			maps.Copy(next, *old)
		}
		next[t.Deployment] = t
		if s.thresholds.CompareAndSwap(old, &next) {
			s.in.poke()
			return
		}
	}
}

const (
	// mainEvery is how often it is looked which deployment has the most to do.
	mainEvery = time.Second
	// mainFactor is how many times as much as the present one another must have.
	mainFactor = 2
)

// chooseMain lets the thresholds of another deployment count if that has had much more to
// do since the last look. Tables of two deployments that share replicas in part may then
// meet in one group for a while; the longest wait bounds what comes of that.
func (s *Subservice) chooseMain() {
	g, r := &s.group, s.present
	if r == nil || g.main == nil || len(r.names) < 2 {
		return
	}
	now := s.now()
	if now < g.judged+mainEvery {
		return
	}
	g.judged = now
	best, most, own := g.main, uint64(0), uint64(0)
	for _, name := range r.names {
		d := r.newest(name)
		if len(d.Models) < 2 {
			continue
		}
		n, before := d.routing.n, g.routed[name]
		g.routed[name] = n
		if n >= before { // else it is another version, which counts from 0
			n -= before
		}
		if d == g.main {
			own = n
		}
		if n > most {
			best, most = d, n
		}
	}
	if best != g.main && most > mainFactor*own {
		s.log.Info("the thresholds of another deployment count from now on", "deployment", best.Name, "before", g.main.Name)
		s.setMain(best)
		g.busiest = true
	}
}

// setMain lets a deployment's thresholds and longest wait count; nil for none.
func (s *Subservice) setMain(d *deployment) {
	s.group.main, s.group.changed = d, true
	if d != nil {
		s.sched.SetLongestWait(cmp.Or(s.settings(d).LongestWait, s.cfg.Scheduler.LongestWait))
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
