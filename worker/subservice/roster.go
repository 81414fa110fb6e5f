package subservice

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tokenrouter/tokenrouter/api/handoff"
	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/tokenizer/idmap"
)

// Fallback says what becomes of a request whose turn no replica can take.
type Fallback uint8

const (
	// FallbackWait waits for one, then ends the request with an error.
	FallbackWait Fallback = iota
	// FallbackAlone lets the entry model write the rest alone.
	FallbackAlone
	// FallbackFail ends the request at once.
	FallbackFail
)

// Deployment is one deployment's routing group as this replica sees it.
type Deployment struct {
	Name string
	// Version names what a request keeps from its begin to its end, wherever it goes:
	// all that stands here down to Lacking. Equal versions of a deployment are equal in
	// these. 0 is for a deployment that never changes.
	Version uint64
	// Self is this model's index; Models are the served names by index.
	Self   policies.ModelID
	Models []string
	// PolicyName is the policy's, for people. It may be empty.
	PolicyName string
	Policy     policies.Policy
	// Others are the policies that a request may choose instead, by name. Nil means
	// that requests may override nothing.
	Others map[string]policies.Policy
	// IDs translates between the entry model's ids, which travel, and this model's. Nil
	// if they are the same.
	IDs *idmap.Map
	// Lacking are the entry model's ids that some other model has no token for.
	Lacking []int32

	// What follows holds for all requests, also for those that began before it was set.

	// Replicas lists the replicas of every model by index, in an order that all
	// replicas agree on.
	Replicas [][]string
	// Thresholds are the batching thresholds of all models, by index. They are used
	// as far as the number of live requests allows. Nil leaves it to Config.Scheduler.
	Thresholds []int
	// Table, if not nil, has thresholds by number of live requests, as Thresholds.B.
	Table [][]int
	// LongestWait overrides thresholds; 0 leaves it to Config.Scheduler.
	LongestWait time.Duration
	// Fallback and FallbackWait are for turns that no replica can take. A wait of 0 is
	// Config.CollaboratorWait.
	Fallback     Fallback
	FallbackWait time.Duration
	// Fault is why new requests are refused, for clients; empty if they are not.
	Fault string
}

// Bounds of what is remembered.
const (
	// keptVersions are the versions of one deployment: requests that began under an older
	// one may come here for the first time.
	keptVersions = 16
	// keptDeployments are those that are wanted no more.
	keptDeployments = 16
)

// deployment is a Deployment's part that requests keep, with what was derived from it.
type deployment struct {
	Deployment
	// own is the deployment's policy, others those that requests may choose; alone keeps
	// every token on the entry model.
	own     *route
	others  map[string]*route
	alone   *route
	routing routing
}

// roster is what the replica takes part in at one time. It never changes.
type roster struct {
	// names are the deployments that are wanted, in order; gone those that were wanted
	// before, the latest first.
	names, gone []string
	// versions are those of every deployment, the newest first.
	versions map[string][]*deployment
	// settings are what holds for all requests, of the deployments that are wanted.
	settings map[string]*Deployment
	// replicas are those of every model; avoid has those that get nothing new if there
	// are others.
	replicas map[string][]string
	avoid    map[string]bool
	// main is the deployment with the most models, whose thresholds count until it is known
	// which one has most to do; nil if there is none.
	main *deployment
}

// newest is the present version of a deployment, nil if it is not wanted.
func (r *roster) newest(name string) *deployment {
	if r.settings[name] == nil {
		return nil
	}
	return r.versions[name][0]
}

// version is a deployment as a request knows it: that version, else the newest there
// is, nil if there is none. known says that it is what the request began with.
func (r *roster) version(name string, version uint64) (d *deployment, known bool) {
	list := r.versions[name]
	i := slices.IndexFunc(list, func(d *deployment) bool { return version == 0 || d.Version == version })
	switch {
	case i >= 0:
		return list[i], true
	case len(list) == 0:
		return nil, false
	}
	return list[0], false
}

// Set replaces the deployments that the replica takes part in, and the replicas that get
// nothing new as long as there are others. Requests keep the version that they began
// with. With an error nothing was changed. One goroutine calls it at a time; any may.
func (s *Subservice) Set(list []Deployment, avoid []string) error {
	old := s.roster.Load()
	next := &roster{
		versions: map[string][]*deployment{}, settings: map[string]*Deployment{}, replicas: map[string][]string{}, avoid: map[string]bool{},
	}
	maps.Copy(next.versions, old.versions)
	for _, d := range list {
		if err := s.enlist(next, d); err != nil {
			return fmt.Errorf("sub-service %s: deployment %s: %w", s.cfg.Replica, d.Name, err)
		}
	}
	for _, name := range avoid {
		next.avoid[name] = true
	}
	for _, name := range slices.Concat(old.names, old.gone) {
		if next.settings[name] != nil {
			continue
		}
		if next.gone = append(next.gone, name); len(next.gone) > keptDeployments {
			next.gone = next.gone[:keptDeployments]
			delete(next.versions, name)
		}
	}
	s.roster.Store(next)
	s.in.poke()
	return nil
}

// Check reports what keeps the replica from taking part in a deployment. Any goroutine
// may call it.
func (s *Subservice) Check(d *Deployment) error {
	if err := s.enlist(&roster{versions: map[string][]*deployment{}, settings: map[string]*Deployment{}, replicas: map[string][]string{}}, *d); err != nil {
		return fmt.Errorf("deployment %s: %w", d.Name, err)
	}
	return nil
}

// enlist adds a deployment to a roster that nobody else sees yet.
func (s *Subservice) enlist(r *roster, d Deployment) error {
	switch {
	case len(d.Name) == 0 || len(d.Name) > handoff.MaxName:
		return fmt.Errorf("its name must have 1 to %d bytes", handoff.MaxName)
	case len(d.Models) > policies.MaxModels || int(d.Self) >= len(d.Models) || len(d.Replicas) != len(d.Models):
		return errors.New("its models, replicas and own index do not agree")
	case r.settings[d.Name] != nil:
		return errors.New("it is listed twice")
	}
	list := r.versions[d.Name]
	i := slices.IndexFunc(list, func(v *deployment) bool {
		return d.Version != 0 && v.Version == d.Version && v.Self == d.Self && slices.Equal(v.Models, d.Models)
	})
	var dep *deployment
	if i >= 0 {
		dep = list[i] // with what its policy remembers
	} else {
		var err error
		if dep, err = newDeployment(d, &s.info); err != nil {
			return err
		}
	}
	newer := []*deployment{dep}
	for _, v := range list {
		if v != dep && len(newer) < keptVersions {
			newer = append(newer, v)
		}
	}
	r.names = append(r.names, d.Name)
	r.versions[d.Name], r.settings[d.Name] = newer, &d
	for k, model := range d.Models {
		r.replicas[model] = d.Replicas[k]
	}
	if r.main == nil || len(d.Models) > len(r.main.Models) {
		r.main = dep
	}
	return nil
}

// linkGrace is how long after a change of the replicas a fallback waits for their
// links to come up.
const linkGrace = 2 * time.Second

// takeRoster takes up what was set last.
func (s *Subservice) takeRoster() {
	r := s.roster.Load()
	if r == s.present {
		return
	}
	old := s.present
	s.present = r
	if old == nil || !maps.EqualFunc(old.replicas, r.replicas, slices.Equal[[]string]) {
		s.linkedBy = s.now() + linkGrace
	}
	main := r.main
	if g := &s.group; g.busiest && g.main != nil {
		if d := r.newest(g.main.Name); d != nil && len(d.Models) > 1 {
			main = d
		}
	}
	s.setMain(main)
	maps.DeleteFunc(s.group.routed, func(name string, _ uint64) bool { return r.settings[name] == nil })
	if len(r.avoid) > 0 {
		s.vacate()
	}
}

// replicas are those of a model of a deployment, in an order that all agree on.
func (s *Subservice) replicas(d *deployment, k policies.ModelID) []string {
	if names, ok := s.present.replicas[d.Models[k]]; ok {
		return names
	}
	return d.Replicas[k] // as they were when the version was set
}

// settings are those that hold for the requests of a deployment.
func (s *Subservice) settings(d *deployment) *Deployment {
	if set := s.present.settings[d.Name]; set != nil {
		return set
	}
	return &d.Deployment
}

// vacate lets go of residents on replicas that are to be left, where others can take
// their place and they do not have the turn. It is the entry's to decide.
func (s *Subservice) vacate() {
	for _, q := range inOrder(s.seqs) {
		if q.entry == nil {
			continue
		}
		for k := range q.dep.Models {
			name := q.replica[k]
			if s.present.avoid[name] && !(q.away && q.entry.holder == name) && s.choose(q, policies.ModelID(k)) != "" {
				s.leave(q, policies.ModelID(k))
			}
		}
	}
}

// leave lets the replica that serves model k for a request forget it.
func (s *Subservice) leave(q *sequence, k policies.ModelID) {
	name := q.replica[k]
	q.replica[k], q.seen[k] = "", 0
	if q.entry == nil {
		return // the entry tells it
	}
	q.entry.dropHolding(name)
	if link := s.links[name]; link != nil {
		s.giveBack(link, &handoff.Frame{
			Request: q.id, Epoch: q.epoch, Hop: q.hop, From: uint8(q.q.Self), To: uint8(k), Code: codeStale,
		})
	}
}

// early is a hand-off of a version that was not heard of yet.
type early struct {
	arrival
	until time.Duration
}

const (
	// versionWait is how long a hand-off waits for the version that it names.
	versionWait = time.Second
	// maxEarly bounds the hand-offs that wait so.
	maxEarly = 1024
)

// awaitVersion keeps a first hand-off whose version may be on its way here.
func (s *Subservice) awaitVersion(m *arrival) bool {
	f := &m.frame
	if s.hurried || len(s.early) == maxEarly {
		return false
	}
	if _, known := s.present.version(f.First.Deployment, f.First.Version); known || f.First.Version == 0 {
		return false
	}
	s.log.Debug("a hand-off waits for its deployment's version", "request", f.Request, "deployment", f.First.Deployment)
	s.early = append(s.early, early{arrival{link: m.link, frame: cloneFrame(f)}, s.now() + versionWait})
	return true
}

// takeEarly applies the hand-offs that have waited long enough.
func (s *Subservice) takeEarly() {
	waiting := s.early
	s.early = nil
	for i := range waiting {
		e := &waiting[i]
		first := e.frame.First
		if _, known := s.present.version(first.Deployment, first.Version); !known && s.now() < e.until {
			s.early = append(s.early, *e)
			continue
		}
		s.hurried = true
		e.apply(s)
		s.hurried = false
	}
}

// dropEarly forgets hand-offs that wait.
func (s *Subservice) dropEarly(which func(*early) bool) {
	s.early = slices.DeleteFunc(s.early, func(e early) bool { return which(&e) })
}
