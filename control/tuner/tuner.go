package tuner

import (
	"bytes"
	"slices"
	"sync"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/policies/threshold"
	"github.com/tokenrouter/tokenrouter/policies/threshold/measured"
)

const (
	// forget is how long a worker's word counts.
	forget = 5 * cluster.MeasureEvery
	// maxNodes bounds the workers that are remembered.
	maxNodes = 4096
	// seenTwice is how often in a row a drift must be seen: once may be chance.
	seenTwice = 2
)

// Tuner is a leader's memory of what was measured. All methods are safe for concurrent use.
type Tuner struct {
	mu    sync.Mutex
	words map[string]word // by worker
	// followed has the deployments whose thresholds are the leader's.
	followed map[string]*followed
}

// word is what a worker has said last.
type word struct {
	at   time.Time
	list []cluster.Measure
}

// followed is what is known of one deployment.
type followed struct {
	// considered is what was solved last, whether that became a table or not; nil for
	// what the table in the state was solved from.
	considered *threshold.Input
	// tabled says that there was a table: if it goes, it was for another routing.
	tabled bool
	drifts int
}

// Job is a deployment whose table is to be solved.
type Job struct {
	Deployment string
	// Version is the deployment's when its measures were pooled.
	Version uint64
	Input   *threshold.Input
	// Live is the number of live requests of its routing groups, at least 1 and at most
	// Input.N.
	Live int
	// Present is the table in use, nil if there is none.
	Present [][]int
}

// New returns a Tuner that knows nothing.
func New() *Tuner {
	t := &Tuner{}
	t.Reset()
	return t
}

// Reset forgets everything, as at the beginning of a reign.
func (t *Tuner) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.words, t.followed = map[string]word{}, map[string]*followed{}
}

// Note remembers a worker's word, which was checked.
func (t *Tuner) Note(now time.Time, m cluster.Measures) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, known := t.words[m.Node]; !known && len(t.words) >= maxNodes {
		return
	}
	t.words[m.Node] = word{now, m.List}
}

// Due lists the deployments to solve. What is in the list is not in the next one, unless
// its inputs move again, or its job is discarded.
func (t *Tuner) Due(now time.Time, s *state.State) (jobs []Job) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for node, w := range t.words {
		if now.Sub(w.at) > forget {
			delete(t.words, node)
		}
	}
	for name := range t.followed {
		if _, ok := s.Deployment(name); !ok {
			delete(t.followed, name)
		}
	}
	for name, d := range s.AllDeployments() {
		if len(d.Models) < 2 || len(d.Models) > threshold.MaxModels || len(d.Thresholds) > 0 {
			delete(t.followed, name)
			continue
		}
		if job, ok := t.due(s, &d); ok {
			jobs = append(jobs, job)
		}
	}
	return jobs
}

// Discard says that nothing came of a job that Due has listed, for another reason than what
// Solve has found: its deployment may be in the next list again.
func (t *Tuner) Discard(j *Job) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if f := t.followed[j.Deployment]; f != nil && f.considered == j.Input {
		f.considered = nil
	}
}

// due looks at one deployment, with t.mu held.
func (t *Tuner) due(s *state.State, d *cluster.Deployment) (Job, bool) {
	f := t.followed[d.Name]
	if f == nil {
		f = &followed{}
		t.followed[d.Name] = f
	}
	table, tabled := s.Table(d.Name)
	if f.tabled && !tabled {
		f.considered, f.drifts = nil, 0
	}
	f.tabled = tabled
	in, live, ok := t.pool(s, d)
	old := f.considered
	if old == nil && tabled {
		old = inputOf(&table)
	}
	if !ok || old != nil && !measured.Moved(old, in) {
		f.drifts = 0
		return Job{}, false
	}
	if f.drifts++; f.drifts < seenTwice && old != nil {
		return Job{}, false
	}
	f.drifts, f.considered = 0, in
	return Job{Deployment: d.Name, Version: d.Version, Input: in, Live: live, Present: table.B}, true
}

// inputOf is what a table was solved from, nil if that cannot be read.
func inputOf(table *cluster.Table) *threshold.Input {
	list, err := threshold.ParseInputs(bytes.NewReader(table.Inputs))
	if err != nil || len(list) != 1 {
		return nil
	}
	return list[0]
}

// pool is what the replicas of a deployment have measured together, and the number of
// live requests that its entry replicas reckon with.
func (t *Tuner) pool(s *state.State, d *cluster.Deployment) (in *threshold.Input, live int, ok bool) {
	of := make([][]measured.Model, len(d.Models))
	var weight, sum float64
	for node, w := range t.words {
		for i := range w.list {
			m := &w.list[i]
			r, known := s.Replica(m.Replica)
			if m.Deployment != d.Name || !known || r.Node != node || len(m.To) != len(d.Models) || d.Models[m.Model] != r.Model {
				continue
			}
			of[m.Model] = append(of[m.Model], modelOf(m))
			if m.Model == 0 {
				weight += float64(m.Routed)
				sum += float64(m.Routed) * float64(m.Live)
			}
		}
	}
	pooled := make([]measured.Model, len(of))
	for i, list := range of {
		pooled[i] = measured.Pool(list)
	}
	if in, ok = measured.Input(pooled, measured.TableSize(len(of)), measured.LeastRouted); !ok {
		return nil, 0, false
	}
	return in, max(1, min(in.N, int(sum/weight+0.5))), true
}

func modelOf(m *cluster.Measure) measured.Model {
	out := measured.Model{Routed: m.Routed, To: slices.Clone(m.To), Kept: slices.Clone(m.Kept), Slowdown: m.Slowdown, Prefill: m.Prefill}
	for _, s := range m.Steps {
		out.Steps = append(out.Steps, measured.Step{N: s.N, MS: s.MS})
	}
	return out
}
