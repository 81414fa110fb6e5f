package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// log applies commands one after another.
type log struct {
	t    testing.TB
	s    *State
	now  time.Time
	next uint64
}

func newLog(t testing.TB) *log {
	l := &log{t: t, s: new(State), now: epoch}
	l.must(cluster.KindInit, cluster.Cluster{ID: "c1", Name: "test", CAs: []string{"ca"}})
	return l
}

func (l *log) apply(kind cluster.Kind, request string, body any) error {
	l.t.Helper()
	c, err := cluster.NewCommand(kind, request, l.now, body)
	if err != nil {
		l.t.Fatal(err)
	}
	l.next++
	before, _ := json.Marshal(l.s)
	next, err := Apply(l.s, l.next, c)
	again, errAgain := Apply(l.s, l.next, c)
	if !reflect.DeepEqual(next, again) || fmt.Sprint(err) != fmt.Sprint(errAgain) {
		l.t.Fatalf("%s: the second time gave another result", kind)
	}
	if after, _ := json.Marshal(l.s); string(after) != string(before) {
		l.t.Fatalf("%s changed the state that it was given", kind)
	}
	if err := next.Check(); err != nil {
		l.t.Fatalf("after %s: %v", kind, err)
	}
	l.s = next
	return err
}

func (l *log) must(kind cluster.Kind, body any) {
	l.t.Helper()
	if err := l.apply(kind, "", body); err != nil {
		l.t.Fatalf("%s: %v", kind, err)
	}
}

func worker(id string) cluster.Node {
	return cluster.Node{ID: id, Role: cluster.Worker, Addr: "10.0.0.1:7000", Build: "dev", Protocol: 1}
}

func replica(id, node string) cluster.Replica {
	return cluster.Replica{ID: id, Model: "tiny-s", Node: node, Source: "tiny-s", TP: 1}
}

func deployment(name string) cluster.Deployment {
	return cluster.Deployment{Name: name, Models: []string{"tiny-s", "tiny-l"}, Policy: "r-stitch"}
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		name string
		kind cluster.Kind
		body any
		want error
		text string
	}{
		{"second init", cluster.KindInit, cluster.Cluster{ID: "c2"}, ErrExists, "cluster"},
		{"node without a role", cluster.KindPutNode, cluster.Node{ID: "x", Addr: "a:1", Protocol: 1}, ErrInvalid, "role"},
		{"node of the role admin", cluster.KindPutNode, cluster.Node{ID: "x", Role: "admin", Addr: "a:1", Protocol: 1}, ErrInvalid, "role"},
		{"node with a slash", cluster.KindPutNode, cluster.Node{ID: "x/y", Role: "worker", Addr: "a:1", Protocol: 1}, ErrInvalid, "letters"},
		{"node without a port", cluster.KindPutNode, cluster.Node{ID: "x", Role: "worker", Addr: "a", Protocol: 1}, ErrInvalid, "host:port"},
		{"node of an old build", cluster.KindPutNode, cluster.Node{ID: "x", Role: "worker", Addr: "a:1"}, ErrInvalid, "protocol 1 to 0"},
		{"node of versions backwards", cluster.KindPutNode, cluster.Node{ID: "x", Role: "worker", Addr: "a:1", Protocol: 1, MinProtocol: 2}, ErrInvalid, "protocol 2 to 1"},
		{"node of absurd versions", cluster.KindPutNode, cluster.Node{ID: "x", Role: "worker", Addr: "a:1", Protocol: 1 << 40}, ErrInvalid, "protocol 1 to 1099511627776"},
		{"worker becomes a gateway", cluster.KindPutNode, cluster.Node{ID: "w1", Role: "gateway", Addr: "a:1", Protocol: 1}, ErrInvalid, "cannot become"},
		{"removed node comes back", cluster.KindPutNode, worker("gone"), ErrInvalid, "removed"},
		{"state of nobody", cluster.KindNodeState, cluster.NodeState{ID: "nobody"}, ErrNotFound, "nobody"},
		{"remove nobody", cluster.KindRemoveNode, cluster.Name{Name: "nobody"}, ErrNotFound, "nobody"},
		{"remove the only control node", cluster.KindRemoveNode, cluster.Name{Name: "c1"}, ErrInvalid, "only control node"},
		{"stale plan", cluster.KindPlace, cluster.Place{From: 1}, ErrConflict, "placement 1"},
		{"report of nobody", cluster.KindReport, cluster.Report{Node: "nobody"}, ErrNotFound, "nobody"},
		{"report with a strange phase", cluster.KindReport, cluster.Report{Node: "w1", Replicas: []cluster.ReplicaReport{{ID: "r1", Phase: "fine"}}}, ErrInvalid, "phase"},
		{"deployment without models", cluster.KindPutDeployment, cluster.Deployment{Name: "d", Policy: "single"}, ErrInvalid, "models"},
		{"deployment with a model twice", cluster.KindPutDeployment, cluster.Deployment{Name: "d", Policy: "me", Models: []string{"a", "a"}}, ErrInvalid, "twice"},
		{"deployment without a policy", cluster.KindPutDeployment, cluster.Deployment{Name: "d", Models: []string{"a"}}, ErrInvalid, "policy"},
		{"thresholds of another number", cluster.KindPutDeployment, cluster.Deployment{Name: "d", Policy: "single", Models: []string{"a"}, Thresholds: []int{1, 2}}, ErrInvalid, "thresholds"},
		{"fallback unknown", cluster.KindPutDeployment, cluster.Deployment{Name: "d", Policy: "single", Models: []string{"a"}, Fallback: "hope"}, ErrInvalid, "fallback"},
		{"settings that no policy has", cluster.KindPutDeployment, cluster.Deployment{Name: "d", Policy: "single", Models: []string{"a"}, Settings: json.RawMessage(`{"treshold":1}`)}, ErrInvalid, "treshold"},
		{"admin with a node's name", cluster.KindRemoveNode, cluster.RemoveNode{Name: "w1", Role: cluster.Admin}, ErrInvalid, "a node has that name"},
		{"remove a worker as a gateway", cluster.KindRemoveNode, cluster.RemoveNode{Name: "w1", Role: cluster.Gateway}, ErrInvalid, "it is a worker"},
		{"delete no deployment", cluster.KindDeleteDeployment, cluster.Name{Name: "d"}, ErrNotFound, "d"},
		{"table of no deployment", cluster.KindPutTable, cluster.Table{Deployment: "d"}, ErrNotFound, "d"},
		{"infeasible table", cluster.KindPutTable, cluster.Table{Deployment: "pair", B: [][]int{{1, 2}}}, ErrInvalid, "sums to less than 1"},
		{"key without a mac", cluster.KindPutKey, cluster.Key{ID: "k"}, ErrInvalid, "mac"},
		{"revoke no key", cluster.KindRevokeKey, cluster.Name{Name: "k"}, ErrNotFound, "k"},
		{"token without a hash", cluster.KindPutToken, cluster.Token{ID: "t", Role: "worker", Uses: 1}, ErrInvalid, "hash"},
		{"use of an unknown token", cluster.KindUseToken, cluster.UseToken{ID: "t"}, ErrToken, "not known"},
		{"use of a used token", cluster.KindUseToken, cluster.UseToken{ID: "used"}, ErrToken, "used already"},
		{"use of a revoked token", cluster.KindUseToken, cluster.UseToken{ID: "revoked"}, ErrToken, "revoked"},
		{"use of an expired token", cluster.KindUseToken, cluster.UseToken{ID: "expired"}, ErrToken, "expired"},
		{"unknown kind", "dance", cluster.Name{}, ErrInvalid, "dance"},
		{"unknown field", cluster.KindRevokeKey, map[string]string{"nom": "k"}, cluster.ErrCommand, "nom"},
		{"no CA", cluster.KindSetCAs, cluster.CAs{}, ErrInvalid, "empty"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLog(t)
			l.must(cluster.KindPutNode, cluster.Node{ID: "c1", Role: cluster.Control, Addr: "a:1", Protocol: 1})
			l.must(cluster.KindPutNode, worker("w1"))
			l.must(cluster.KindPutNode, worker("gone"))
			l.must(cluster.KindRemoveNode, cluster.Name{Name: "gone"})
			l.must(cluster.KindPutDeployment, deployment("pair"))
			hash := make([]byte, hashLength)
			for id, life := range map[string]time.Duration{"used": time.Hour, "revoked": time.Hour, "expired": time.Minute} {
				l.must(cluster.KindPutToken, cluster.Token{ID: id, Role: cluster.Worker, Hash: hash, Uses: 1, Expires: l.now.Add(life)})
			}
			l.must(cluster.KindUseToken, cluster.UseToken{ID: "used"})
			l.must(cluster.KindRevokeToken, cluster.Name{Name: "revoked"})
			l.now = l.now.Add(2 * time.Minute)
			before := *l.s
			err := l.apply(c.kind, "", c.body)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("error %v, want %v with %q", err, c.want, c.text)
			}
			before.Index, before.Time = l.s.Index, l.s.Time
			if !reflect.DeepEqual(&before, l.s) {
				t.Error("the refused command changed the state")
			}
		})
	}
}

func TestNothingBeforeInit(t *testing.T) {
	l := &log{t: t, s: new(State), now: epoch}
	if err := l.apply(cluster.KindPutNode, "", worker("w")); !errors.Is(err, ErrNotFound) {
		t.Errorf("error %v, want ErrNotFound", err)
	}
}

// A worker's words are about one placement, and a start makes them void.
func TestReports(t *testing.T) {
	l := newLog(t)
	l.must(cluster.KindPutNode, worker("w1"))
	l.must(cluster.KindPutNode, worker("w2"))
	l.must(cluster.KindPlace, cluster.Place{From: l.s.Placement, Put: []cluster.Replica{replica("r", "w1")}})
	r, _ := l.s.Replica("r")
	ready := func(node string, generation uint64) cluster.Report {
		return cluster.Report{Node: node, Replicas: []cluster.ReplicaReport{{ID: "r", Generation: generation, Phase: cluster.Ready}}}
	}
	for _, stale := range []cluster.Report{ready("w2", r.Generation), ready("w1", r.Generation-1), ready("w1", r.Generation+1)} {
		l.must(cluster.KindReport, stale)
		if r, _ := l.s.Replica("r"); r.Phase != cluster.Placed {
			t.Fatalf("a report of %s about generation %d made it %s", stale.Node, stale.Replicas[0].Generation, r.Phase)
		}
	}
	l.must(cluster.KindReport, ready("w1", r.Generation))
	if r, _ := l.s.Replica("r"); r.Phase != cluster.Ready || !l.s.Serving(&r) {
		t.Errorf("after the report: %+v", r)
	}
	drain := true
	l.must(cluster.KindNodeState, cluster.NodeState{ID: "w1", Draining: &drain})
	if r, _ := l.s.Replica("r"); l.s.Serving(&r) {
		t.Error("a draining node serves")
	}
	l.must(cluster.KindPutNode, worker("w1"))
	if r, _ := l.s.Replica("r"); r.Phase != cluster.Placed {
		t.Errorf("after a start of its node the replica is %s", r.Phase)
	}
	if n, _ := l.s.Node("w1"); n.Incarnation != 2 || n.Draining {
		t.Errorf("after a start: %+v", n)
	}
}

// What a node had seen before its start, without the control nodes, has it serve: the
// drain that ended the last process, and what that one reported, say nothing of this one.
func TestStarted(t *testing.T) {
	l := newLog(t)
	l.must(cluster.KindPutNode, worker("w1"))
	l.must(cluster.KindPutNode, worker("w2"))
	l.must(cluster.KindPlace, cluster.Place{From: l.s.Placement, Put: []cluster.Replica{
		replica("begun", "w1"), replica("failed", "w1"), replica("stopped", "w1"), replica("other", "w2"),
	}})
	r, _ := l.s.Replica("begun")
	phases := map[string]cluster.Phase{"begun": cluster.Placed, "failed": cluster.Failed, "stopped": cluster.Stopped, "other": cluster.Placed}
	for id, phase := range phases {
		node := "w1"
		if id == "other" {
			node = "w2"
		}
		l.must(cluster.KindReport, cluster.Report{Node: node, Replicas: []cluster.ReplicaReport{{ID: id, Generation: r.Generation, Phase: phase}}})
	}
	yes := true
	l.must(cluster.KindNodeState, cluster.NodeState{ID: "w1", Draining: &yes, Lost: &yes})
	s := l.s.Started("w1")
	for id, want := range map[string]bool{"begun": true, "failed": false, "stopped": true, "other": false} {
		r, _ := s.Replica(id)
		if s.Serving(&r) != want {
			t.Errorf("%s: serving %t, want %t", id, s.Serving(&r), want)
		}
		if old, _ := l.s.Replica(id); old.Phase != phases[id] {
			t.Errorf("the state that was copied has %s %s, which was %s", id, old.Phase, phases[id])
		}
	}
	if err := s.Check(); err != nil || s.Index != l.s.Index {
		t.Errorf("index %d, want %d; %v", s.Index, l.s.Index, err)
	}
}

// A process that began before it could announce itself serves on, with what it names of
// this placement on this node.
func TestLateStart(t *testing.T) {
	l := newLog(t)
	l.must(cluster.KindPutNode, worker("w1"))
	l.must(cluster.KindPutNode, worker("w2"))
	l.must(cluster.KindPlace, cluster.Place{From: l.s.Placement, Put: []cluster.Replica{replica("a", "w1"), replica("b", "w1"), replica("c", "w2")}})
	a, _ := l.s.Replica("a")
	report := func(id string, generation uint64) cluster.ReplicaReport {
		return cluster.ReplicaReport{ID: id, Generation: generation, Phase: cluster.Ready, Facts: cluster.Facts{Vocab: 7}}
	}
	start := func(list ...cluster.ReplicaReport) cluster.Start {
		return cluster.Start{Node: worker("w1"), Replicas: list}
	}
	for name, c := range map[string]struct {
		start cluster.Start
		want  [3]cluster.Phase // of a, b and c
	}{
		"nothing":           {start(), [3]cluster.Phase{cluster.Placed, cluster.Placed, cluster.Ready}},
		"one":               {start(report("b", a.Generation)), [3]cluster.Phase{cluster.Placed, cluster.Ready, cluster.Ready}},
		"another placement": {start(report("a", a.Generation+1), report("b", a.Generation-1)), [3]cluster.Phase{cluster.Placed, cluster.Placed, cluster.Ready}},
		"another's":         {start(report("c", a.Generation), report("x", a.Generation)), [3]cluster.Phase{cluster.Placed, cluster.Placed, cluster.Ready}},
	} {
		for _, node := range []string{"w1", "w2"} {
			l.must(cluster.KindReport, cluster.Report{Node: node, Replicas: []cluster.ReplicaReport{report("a", a.Generation), report("b", a.Generation), report("c", a.Generation)}})
		}
		l.must(cluster.KindPutNode, c.start)
		for i, id := range []string{"a", "b", "c"} {
			if r, _ := l.s.Replica(id); r.Phase != c.want[i] {
				t.Errorf("%s: replica %s is %s, want %s", name, id, r.Phase, c.want[i])
			}
		}
	}
	before, _ := l.s.Node("w1")
	bad := start(cluster.ReplicaReport{ID: "a", Generation: a.Generation, Phase: "fine"})
	if err := l.apply(cluster.KindPutNode, "", bad); !errors.Is(err, ErrInvalid) {
		t.Errorf("a strange phase: %v, want ErrInvalid", err)
	}
	if after, _ := l.s.Node("w1"); after.Incarnation != before.Incarnation {
		t.Error("a refused start counts")
	}
}

func TestRequestIDs(t *testing.T) {
	l := newLog(t)
	hash := make([]byte, hashLength)
	key := cluster.Key{ID: "k", MAC: hash}
	for range 3 {
		if err := l.apply(cluster.KindPutKey, "once", key); err != nil {
			t.Fatalf("a repetition: %v", err)
		}
	}
	if err := l.apply(cluster.KindPutKey, "twice", key); !errors.Is(err, ErrExists) {
		t.Errorf("another request: %v, want ErrExists", err)
	}
	if err := l.apply(cluster.KindPutKey, "twice", key); err == nil || !strings.Contains(err.Error(), "exists already") {
		t.Errorf("the repetition of a refusal: %v", err)
	}
	l.now = l.now.Add(cluster.RememberFor + time.Second)
	if err := l.apply(cluster.KindPutKey, "once", key); !errors.Is(err, ErrExists) {
		t.Errorf("after %v: %v, want ErrExists", cluster.RememberFor, err)
	}
	if n := len(l.s.Requests); n != 1 {
		t.Errorf("%d requests are remembered, want the last alone", n)
	}
}

// A default deployment gives way to the operator's, never the other way round.
func TestDefaultDeployments(t *testing.T) {
	l := newLog(t)
	place := func(policy string) {
		d := deployment("pair")
		d.Policy = policy
		l.must(cluster.KindPlace, cluster.Place{From: l.s.Placement, Deployments: []cluster.Deployment{d}})
	}
	check := func(policy string, isDefault bool, version uint64) {
		t.Helper()
		if d, _ := l.s.Deployment("pair"); d.Policy != policy || d.Default != isDefault || d.Version != version {
			t.Errorf("got %+v", d)
		}
	}
	place("random")
	check("random", true, 1)
	place("me")
	check("me", true, 2)
	l.must(cluster.KindPutDeployment, deployment("pair"))
	check("r-stitch", false, 3)
	place("random")
	check("r-stitch", false, 3)
}

// A watcher that follows the changes has, at every index, what its role may see.
func TestFollowersAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLogOf(t)
		roles := cluster.Roles()
		copies := make([]*State, len(roles))
		for i := range copies {
			copies[i] = new(State)
		}
		for range rapid.IntRange(1, 60).Draw(t, "commands") {
			l.random(t)
			i := rapid.IntRange(0, len(roles)-1).Draw(t, "watcher")
			changes, err := l.s.Changes(roles[i], copies[i].Index)
			if err != nil {
				t.Fatal(err)
			}
			if copies[i], err = Follow(copies[i], wire(t, changes), l.s.Index); err != nil {
				t.Fatal(err)
			}
			want, err := l.s.Changes(roles[i], 0)
			if err != nil {
				t.Fatal(err)
			}
			got, err := copies[i].Changes(roles[i], 0)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("%s has %s, want %s", roles[i], shown(got), shown(want))
			}
			for _, o := range got {
				if !Visible(roles[i], o.Kind) {
					t.Fatalf("%s sees %s", roles[i], o.Kind)
				}
			}
		}
	})
}

// wire sends changes through their encoding.
func wire(t *rapid.T, changes []Object) (out []Object) {
	b, err := json.Marshal(changes)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func shown(list []Object) string {
	var b strings.Builder
	for _, o := range list {
		fmt.Fprintf(&b, " %s/%s@%d", o.Kind, o.Name, o.Index)
	}
	return b.String()
}

// randomLog is a log that draws commands, some of which are refused.
type randomLog struct {
	s    *State
	next uint64
}

func newLogOf(t *rapid.T) *randomLog {
	l := &randomLog{s: new(State)}
	l.apply(t, cluster.KindInit, cluster.Cluster{ID: "c"})
	return l
}

func (l *randomLog) apply(t *rapid.T, kind cluster.Kind, body any) {
	c, err := cluster.NewCommand(kind, "", epoch.Add(time.Duration(l.next)*time.Second), body)
	if err != nil {
		t.Fatal(err)
	}
	l.next++
	l.s, _ = Apply(l.s, l.next, c)
	if err := l.s.Check(); err != nil {
		t.Fatalf("after %s: %v", kind, err)
	}
}

func (l *randomLog) random(t *rapid.T) {
	name := func(what string) string {
		return fmt.Sprintf("%s%d", what, rapid.IntRange(0, 3).Draw(t, what))
	}
	flag := rapid.Bool().Draw(t, "flag")
	hash := make([]byte, hashLength)
	switch rapid.IntRange(0, 14).Draw(t, "kind") {
	case 0, 1:
		l.apply(t, cluster.KindPutNode, withGPUs(name("w"), name("GPU-")))
	case 2:
		l.apply(t, cluster.KindNodeState, cluster.NodeState{ID: name("w"), Draining: &flag})
	case 3:
		l.apply(t, cluster.KindRemoveNode, cluster.Name{Name: name("w")})
	case 4, 5:
		p := cluster.Place{From: l.s.Placement, Put: []cluster.Replica{replica(name("r"), name("w"))}}
		if flag {
			p.Delete = []string{name("r")}
		}
		l.apply(t, cluster.KindPlace, p)
	case 6:
		id := name("r")
		r, _ := l.s.Replica(id)
		l.apply(t, cluster.KindReport, cluster.Report{Node: r.Node, Replicas: []cluster.ReplicaReport{{ID: id, Generation: r.Generation, Phase: cluster.Ready}}})
	case 7:
		l.apply(t, cluster.KindPutDeployment, deployment(name("d")))
	case 8:
		l.apply(t, cluster.KindDeleteDeployment, cluster.Name{Name: name("d")})
	case 9:
		l.apply(t, cluster.KindPutTable, cluster.Table{Deployment: name("d"), B: [][]int{{1, 1}, {1, 2}}})
	case 10:
		l.apply(t, cluster.KindPutKey, cluster.Key{ID: name("k"), MAC: hash})
	case 11:
		l.apply(t, cluster.KindRevokeKey, cluster.Name{Name: name("k")})
	case 12:
		l.apply(t, cluster.KindPutToken, cluster.Token{ID: name("t"), Role: cluster.Worker, Hash: hash, Uses: 1, Expires: epoch.Add(time.Duration(l.next) * time.Second)})
	case 13:
		q := xid(name("w"), name("GPU-"), 79)
		if flag {
			q = byHand(name("GPU-"))
		}
		l.apply(t, cluster.KindQuarantine, q)
	case 14:
		l.apply(t, cluster.KindReleaseGPU, cluster.Name{Name: name("GPU-")})
	}
}

// Who has slept for too long is told so, and takes a snapshot.
func TestForgottenChanges(t *testing.T) {
	l := newLog(t)
	l.must(cluster.KindPutDeployment, deployment("d"))
	if _, err := l.s.Changes(cluster.Gateway, 1); err != nil {
		t.Fatal(err)
	}
	for range maxGone + 2 {
		for _, kind := range []cluster.Kind{cluster.KindDeleteDeployment, cluster.KindPutDeployment} {
			d := deployment("d")
			c, err := cluster.NewCommand(kind, "", l.now, map[cluster.Kind]any{
				cluster.KindDeleteDeployment: cluster.Name{Name: "d"}, cluster.KindPutDeployment: d,
			}[kind])
			if err != nil {
				t.Fatal(err)
			}
			l.next++
			if l.s, err = Apply(l.s, l.next, c); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := l.s.Changes(cluster.Gateway, 1); !errors.Is(err, ErrForgotten) {
		t.Errorf("error %v, want ErrForgotten", err)
	}
	if len(l.s.Gone) != maxGone || l.s.Floor == 0 {
		t.Errorf("%d deletions are remembered, floor %d", len(l.s.Gone), l.s.Floor)
	}
	changes, err := l.s.Changes(cluster.Gateway, l.s.Floor)
	if err != nil || !slices.ContainsFunc(changes, func(o Object) bool { return o.Value == nil }) {
		t.Errorf("since the floor: %v, err %v", shown(changes), err)
	}
}

// A snapshot is the state's JSON.
func TestSnapshotRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLogOf(t)
		for range rapid.IntRange(0, 30).Draw(t, "commands") {
			l.random(t)
		}
		b, err := json.Marshal(l.s)
		if err != nil {
			t.Fatal(err)
		}
		var got State
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatal(err)
		}
		c, _ := json.Marshal(&got)
		if string(b) != string(c) {
			t.Fatalf("got %s, want %s", c, b)
		}
	})
}

func FuzzApply(f *testing.F) {
	for _, kind := range []cluster.Kind{cluster.KindPutNode, cluster.KindPlace, cluster.KindReport, cluster.KindPutDeployment, cluster.KindPutToken} {
		f.Add(fmt.Appendf(nil, `{"v":1,"kind":%q,"time":"2026-01-02T03:04:05Z","body":{"id":"a","name":"a"}}`, kind))
	}
	for _, body := range []string{
		`{"gpu":"GPU-0","node":"w1","cause":"xid","xid":79,"reason":"r","seen":"2026-01-02T03:04:05Z"}`,
		`{"gpu":"GPU-0","node":"w1","cause":"lost"}`, `{"gpu":"GPU-0","cause":"operator","spared":["w1"]}`,
		`{"gpu":"\u0000","node":"w1","cause":"xid","xid":18446744073709551615}`,
	} {
		f.Add(fmt.Appendf(nil, `{"v":4,"kind":"quarantine-gpu","request":"q","time":"2026-01-02T03:04:05Z","body":%s}`, body))
	}
	f.Add([]byte(`{"v":4,"kind":"release-gpu","time":"2026-01-02T03:04:05Z","body":{"name":"GPU-0"}}`))
	f.Add([]byte(`{"v":3,"kind":"quarantine-gpu","time":"2026-01-02T03:04:05Z","body":{"gpu":"GPU-0","cause":"operator"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := cluster.DecodeCommand(b)
		if err != nil {
			return
		}
		l := newLog(t)
		l.must(cluster.KindPutNode, withGPUs("w1", "GPU-0"))
		next, _ := Apply(l.s, l.next+1, c)
		if err := next.Check(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestDeploymentAgain(t *testing.T) {
	l := newLog(t)
	d := deployment("d")
	d.Settings = json.RawMessage(`{"threshold": 0.5}`)
	l.must(cluster.KindPutDeployment, d)
	placement := l.s.Placement
	d.Replicas = []int{}
	l.must(cluster.KindPutDeployment, d)
	if got, _ := l.s.Deployment("d"); got.Version != 1 || l.s.Placement != placement {
		t.Errorf("the same again is version %d, placement %d after %d", got.Version, l.s.Placement, placement)
	}
	d.Settings = json.RawMessage(`{"threshold": 0.25}`)
	l.must(cluster.KindPutDeployment, d)
	got, _ := l.s.Deployment("d")
	if set, err := got.PolicySettings(); got.Version != 2 || err != nil || *set.Threshold != 0.25 {
		t.Errorf("version %d, settings %+v, %v", got.Version, set, err)
	}
}

func TestRemoveAdmin(t *testing.T) {
	l := newLog(t)
	for range 2 { // the second time changes nothing
		l.must(cluster.KindRemoveNode, cluster.RemoveNode{Name: "alice", Role: cluster.Admin})
		if !l.s.IsRemoved("alice") || l.s.Removed["alice"].Value.Role != cluster.Admin {
			t.Errorf("removed: %+v", l.s.Removed)
		}
		l.now = l.now.Add(time.Hour)
	}
}
