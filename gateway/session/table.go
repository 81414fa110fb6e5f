package session

import (
	"iter"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tokenrouter/tokenrouter/internal/near"
)

// replica is an entry with what this gateway knows of it.
type replica struct {
	entry Entry
	// inFlight counts this gateway's streams to the entry.
	inFlight atomic.Int64
	// ejectedUntil is a time in Unix nanoseconds before which the entry is
	// picked last, because it failed.
	ejectedUntil atomic.Int64
	// others is nil for an entry that does not know.
	others func() int64
}

func newReplica(e Entry) *replica {
	r := &replica{entry: e}
	if l, ok := e.(Loaded); ok {
		r.others = l.Others
	}
	return r
}

// load is the number of requests at the entry.
func (r *replica) load() int64 {
	n := r.inFlight.Load()
	if r.others != nil {
		n += r.others()
	}
	return n
}

// eject makes an entry the last choice for a while. Refusals that are the
// client's fault never lead here.
func (r *replica) eject(now time.Time, d time.Duration) {
	r.ejectedUntil.Store(now.Add(d).UnixNano())
}

// replicaSet is the replicas of a deployment now. The tables that follow each other
// share it while the deployment has the same models: a request may move to a replica
// that was not there when it began.
type replicaSet struct {
	list atomic.Pointer[[]*replica]
	// superseded is closed once the deployment has other models, or is no more.
	superseded chan struct{}
}

func newReplicaSet(list ...*replica) *replicaSet {
	s := &replicaSet{superseded: make(chan struct{})}
	s.list.Store(&list)
	return s
}

func (s *replicaSet) all() []*replica { return *s.list.Load() }

// Served is a Deployment with what is known of its entries.
type Served struct {
	Deployment
	replicas *replicaSet
	turn     atomic.Uint32
	sticky   *affinity
}

// place returns the replica for a request of a conversation: the one that it
// was at before, as long as that is in service, healthy, not yet tried and not
// clearly more loaded than the least loaded one; else pick's. It returns nil if
// there is none. move says that the conversation is to stay at the new replica:
// a higher load passes, the other reasons do not.
func (d *Served) place(now time.Time, tried []*replica, key uint64) (r *replica, move bool) {
	best := d.pick(now, tried)
	last := d.sticky.replica(key)
	switch {
	case best == nil || last == nil || last == best:
		return best, false
	case !slices.Contains(d.replicas.all(), last), slices.Contains(tried, last), now.UnixNano() < last.ejectedUntil.Load():
		return best, true
	}
	// best is healthy and not tried either, so it is the least loaded of those.
	if last.load() > stickyFactor*best.load()+stickySlack {
		return best, false
	}
	return last, false
}

// pick returns the replica to submit to: one not yet tried before one that was,
// a healthy one before an ejected one, then the least loaded, ties in turn. It
// returns nil if there is none.
func (d *Served) pick(now time.Time, tried []*replica) *replica {
	list := d.replicas.all()
	n := len(list)
	if n == 0 {
		return nil
	}
	start := int(d.turn.Add(1)-1) % n
	var best *replica
	var bestTried, bestEjected bool
	var bestLoad int64
	for i := range n {
		r := list[(start+i)%n]
		wasTried := slices.Contains(tried, r)
		ejected := now.UnixNano() < r.ejectedUntil.Load()
		load := r.load()
		better := best == nil
		switch {
		case better:
		case wasTried != bestTried:
			better = bestTried
		case ejected != bestEjected:
			better = bestEjected
		default:
			better = load < bestLoad
		}
		if better {
			best, bestTried, bestEjected, bestLoad = r, wasTried, ejected, load
		}
	}
	return best
}

// Table is an immutable set of deployments.
type Table struct {
	list   []*Served
	byName map[string]*Served
}

// NewTable builds a table, and keeps what is known of entries that old (nil for
// none) already had. Deployments without a time of creation get created.
// Errors wrap ErrConfig.
func NewTable(list []Deployment, old *Table, created time.Time) (*Table, error) {
	if err := CheckDeployments(list); err != nil {
		return nil, err
	}
	known := make(map[Entry]*replica)
	if old != nil {
		for _, d := range old.list {
			for _, r := range d.replicas.all() {
				known[r.entry] = r
			}
		}
	}
	t := &Table{byName: make(map[string]*Served, len(list))}
	for i := range list {
		d := &Served{Deployment: list[i], sticky: newAffinity(stickyKeys), replicas: newReplicaSet()}
		if old != nil && old.byName[d.Name] != nil {
			before := old.byName[d.Name]
			d.sticky = before.sticky
			if slices.Equal(before.Models, d.Models) {
				d.replicas = before.replicas
			}
		}
		d.Models = slices.Clone(d.Models)
		if d.Defaults.TopP == 0 {
			d.Defaults.TopP = 1
		}
		if d.Created.IsZero() {
			d.Created = created
		}
		var now []*replica
		for _, e := range list[i].Entries {
			r := known[e]
			if r == nil {
				r = newReplica(e)
				known[e] = r
			}
			now = append(now, r)
		}
		d.replicas.list.Store(&now)
		t.list = append(t.list, d)
		t.byName[d.Name] = d
	}
	return t, nil
}

// Supersede lets requests that no entry has admitted yet know which deployments of old
// (nil for none) have other models in t, or are not there: their sessions end with
// ErrChanged instead of an entry's refusal. It is called once for a table, when t is what
// others find.
func (t *Table) Supersede(old *Table) {
	if old == nil {
		return
	}
	for _, d := range old.list {
		if now := t.byName[d.Name]; now == nil || now.replicas != d.replicas {
			close(d.replicas.superseded)
		}
	}
}

// Find returns a deployment by its name, or nil.
func (t *Table) Find(name string) *Served { return t.byName[name] }

// All yields the deployments in order.
func (t *Table) All() iter.Seq[*Served] { return slices.Values(t.list) }

// Near returns up to three names that a client may have meant.
func (t *Table) Near(name string) []string {
	type guess struct {
		name     string
		distance int
	}
	var guesses []guess
	for _, d := range t.list {
		if n := near.Edits(name, d.Name); n <= near.Allowed(d.Name) {
			guesses = append(guesses, guess{d.Name, n})
		}
	}
	slices.SortStableFunc(guesses, func(a, b guess) int { return a.distance - b.distance })
	var out []string
	for _, g := range guesses[:min(3, len(guesses))] {
		out = append(out, g.name)
	}
	return out
}
