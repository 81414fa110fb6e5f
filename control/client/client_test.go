package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/internal/identity"
	"github.com/tokenrouter/tokenrouter/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// Errors keep their kind and their text on the way, and what is nobody's business
// stays where it happened.
func TestErrors(t *testing.T) {
	for _, want := range []error{
		ErrNoLeader, ErrNotLeader, ErrForbidden, ErrRemoved, ErrBadRequest, ErrVersion, ErrTooMany, ErrInternal,
		state.ErrInvalid, state.ErrNotFound, state.ErrExists, state.ErrConflict, state.ErrForgotten,
		state.ErrTokenUnknown, state.ErrTokenExpired, state.ErrTokenRevoked, state.ErrTokenUsed, state.ErrTokenRole, cluster.ErrCommand,
	} {
		was := fmt.Errorf("key %q %w", "k", want)
		got := Err(Problem(was))
		if !errors.Is(got, want) {
			t.Errorf("%v became %v", was, got)
		}
		if want != ErrInternal && got.Error() != was.Error() {
			t.Errorf("text %q, want %q", got, was)
		}
	}
	if got := Err(Problem(fmt.Errorf("x %w", state.ErrTokenUsed))); !errors.Is(got, state.ErrToken) {
		t.Errorf("%v is no ErrToken", got)
	}
	secret := Problem(errors.New("open /secret: no such file"))
	if secret.Code != cluster.CodeInternal || strings.Contains(secret.Text, "secret") {
		t.Errorf("problem %+v", secret)
	}
	if got := Err(cluster.Problem{Code: "of a later build", Text: "x"}); got == nil || errors.Is(got, ErrNoLeader) {
		t.Errorf("an unknown code became %v", got)
	}
}

func TestView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := NewView()
		if _, ok := v.Age(); ok || v.State() == nil || v.Removed("x") {
			t.Error("an empty view knows something")
		}
		got := make(chan uint64)
		go func() {
			s, err := v.Wait(t.Context(), 2)
			if err != nil {
				t.Error(err)
			}
			got <- s.Index
		}()
		v.Publish(&state.State{Index: 1})
		synctest.Wait()
		v.Publish(&state.State{Index: 3})
		if index := <-got; index != 3 {
			t.Errorf("waited for 2 and got %d", index)
		}
		v.Confirm("c1", 3)
		<-time.After(2 * time.Second)
		if age, ok := v.Age(); !ok || age != 2*time.Second {
			t.Errorf("age %s %v", age, ok)
		}
		if node, term := v.Leader(); node != "c1" || term != 3 {
			t.Errorf("leader %q in term %d", node, term)
		}
		ended, cancel := context.WithCancelCause(t.Context())
		cancel(ErrRemoved)
		if _, err := v.WaitFor(ended, func(*state.State) bool { return false }); !errors.Is(err, ErrRemoved) {
			t.Errorf("error %v, want the cause", err)
		}
		if _, err := v.Wait(ended, 9); !errors.Is(err, ErrRemoved) {
			t.Errorf("error %v, want the cause", err)
		}
	})
}

// credentials are those of a worker of a cluster of its own.
func credentials(t *testing.T) *identity.Credentials {
	t.Helper()
	a, err := identity.NewAuthority("c", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return issued(t, a, cluster.Worker, "w")
}

// issued are the credentials of a node of the authority's cluster "c".
func issued(t *testing.T, a *identity.Authority, role cluster.Role, node string) *identity.Credentials {
	t.Helper()
	return removing(t, a, role, node, nil)
}

// removing is issued for a node that knows which others were removed.
func removing(t *testing.T, a *identity.Authority, role cluster.Role, node string, removed func(string) bool) *identity.Credentials {
	t.Helper()
	ca, _, err := a.PEM()
	if err != nil {
		t.Fatal(err)
	}
	key, request, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	text, err := identity.EncodeKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := a.Issue(request, identity.Name{Cluster: "c", Role: role, Node: node}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	out, err := identity.NewCredentials(certificate, text, [][]byte{ca}, removed)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// The control node that answered last is asked first, lost ones last.
func TestControlOrder(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("a client without credentials")
	}
	c, err := New(Config{Credentials: credentials(t), Control: []string{"a:1", "b:1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	order := func(want string) {
		t.Helper()
		if got := strings.Join(c.Control(), " "); got != want {
			t.Errorf("order %q, want %q", got, want)
		}
	}
	order("a:1 b:1")
	s := new(state.State)
	for i, n := range []cluster.Node{
		{ID: "c1", Role: cluster.Control, Addr: "b:1"}, {ID: "c2", Role: cluster.Control, Addr: "x:1", Lost: true},
		{ID: "c3", Role: cluster.Control, Addr: "d:1"}, {ID: "w", Role: cluster.Worker, Addr: "w:1"},
	} {
		text, err := json.Marshal(n)
		if err != nil {
			t.Fatal(err)
		}
		if s, err = state.Follow(s, []state.Object{{Kind: state.KindNode, Name: n.ID, Value: text}}, uint64(i+1)); err != nil {
			t.Fatal(err)
		}
	}
	c.View().Publish(s)
	order("b:1 d:1 a:1 x:1")
	c.answered("a:1")
	order("a:1 b:1 d:1 x:1")
	c.failed("d:1")
	order("a:1 b:1 d:1 x:1")
	c.failed("a:1")
	order("b:1 d:1 a:1 x:1")
}

// A start is told again when the state has lost it, and not when another process has the
// node: that one stays.
func TestAwaitLoss(t *testing.T) {
	known := func(index uint64, history string, nodes ...cluster.Node) *state.State {
		s := &state.State{History: history}
		objects := []state.Object{{Kind: state.KindCluster, Name: "cluster", Value: json.RawMessage(`{"id":"c"}`)}}
		for _, n := range nodes {
			text, err := json.Marshal(n)
			if err != nil {
				t.Fatal(err)
			}
			objects = append(objects, state.Object{Kind: state.KindNode, Name: n.ID, Value: text})
		}
		s, err := state.Follow(s, objects, index)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	node := func(addr string, incarnation uint64) cluster.Node {
		return cluster.Node{ID: "g", Role: cluster.Gateway, Addr: addr, Incarnation: incarnation}
	}
	self := node("a:1", 0)
	for _, c := range []struct {
		name string
		// next are the states that come, the first of which has the start.
		next      []*state.State
		again     bool
		elsewhere bool
	}{
		{"as it was", []*state.State{known(5, "h", node("a:1", 2)), known(6, "h", node("a:1", 2))}, false, false},
		{"forgotten", []*state.State{known(5, "h", node("a:1", 2)), known(6, "h")}, true, false},
		{"lost before it was seen", []*state.State{known(7, "h", node("b:1", 3))}, true, false},
		{"another process", []*state.State{known(5, "h", node("a:1", 2)), known(6, "h", node("b:1", 3))}, false, true},
		{"an earlier state", []*state.State{known(5, "h", node("a:1", 2)), known(6, "h", node("b:1", 1))}, true, false},
		{"the same address again", []*state.State{known(5, "h", node("a:1", 2)), known(6, "h", node("a:1", 3))}, false, false},
		{"a backup", []*state.State{known(5, "h", node("a:1", 2)), known(6, "restored", node("b:1", 9))}, true, false},
		{"a backup of before its present models", []*state.State{
			known(5, "h", node("a:1", 2)), known(6, "restored", cluster.Node{ID: "g", Role: cluster.Gateway, Addr: "a:1", Incarnation: 1, Pins: []cluster.Pin{{Model: "m", TP: 1}}}),
		}, true, false},
		{"a backup that has it", []*state.State{known(5, "h", node("a:1", 2)), known(6, "restored", node("a:1", 1))}, false, false},
		{"another process after a backup", []*state.State{
			known(5, "h", node("a:1", 4)), known(6, "restored", node("a:1", 1)), known(7, "restored", node("b:1", 2)),
		}, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := NewView()
				v.Recall(known(100, "h", node("b:1", 1))) // what an earlier process saw says nothing
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				ended := make(chan error, 1)
				go func() { ended <- v.AwaitLoss(ctx, &self, 5) }()
				synctest.Wait()
				for _, s := range c.next {
					v.Publish(s)
					synctest.Wait()
				}
				var err error
				select {
				case err = <-ended:
				default:
					stop()
					if <-ended; c.again || c.elsewhere {
						t.Error("it still waits")
					}
					return
				}
				if errors.Is(err, ErrElsewhere) != c.elsewhere || (err == nil) != c.again {
					t.Errorf("error %v", err)
				}
			})
		})
	}
}

// A control node that has fallen silent, and refuses nothing, holds no heartbeat back for
// so long that the leader takes its node for lost (2 s): another control node gets it.
func TestBeatPassesBySilentNodes(t *testing.T) {
	own := credentials(t)
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var heard []time.Duration // when the second control node was asked
		var silent []net.Conn
		c, err := New(Config{Credentials: own, Control: []string{"silent:1", "other:1"}, Dial: func(_ context.Context, _, addr string) (net.Conn, error) {
			if addr == "other:1" {
				heard = append(heard, time.Since(began))
				return nil, errors.New("refused")
			}
			near, far := net.Pipe()
			silent = append(silent, far)
			return near, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		const every = 500 * time.Millisecond
		if err := c.Beat(ctx, every, func() cluster.Beat { return cluster.Beat{Node: "w"} }, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Beat: %v", err)
		}
		last := -every
		for _, at := range heard {
			if at-last > 2*every {
				t.Errorf("no other control node was asked from %s to %s", last, at)
			}
			last = at
		}
		if len(heard) == 0 {
			t.Error("no other control node was asked")
		}
		for _, conn := range silent {
			_ = conn.Close()
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Nobody answers: the error says so, and the loops go on until they are ended.
func TestNobody(t *testing.T) {
	c, err := New(Config{Credentials: credentials(t), Control: []string{"127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Propose(t.Context(), cluster.Command{}); !errors.Is(err, ErrNoLeader) {
		t.Errorf("error %v, want ErrNoLeader", err)
	}
	if err := c.Restore(t.Context(), nil); !errors.Is(err, ErrNoLeader) {
		t.Errorf("error %v, want ErrNoLeader", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := c.Watch(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Watch: %v", err)
	}
	if err := c.Beat(ctx, time.Millisecond, func() cluster.Beat { return cluster.Beat{} }, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Beat: %v", err)
	}
	if err := c.KeepRenewed(ctx, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("KeepRenewed: %v", err)
	}
	token, err := identity.NewJoinToken([32]byte{})
	if err != nil {
		t.Fatal(err)
	}
	const other = "is it the cluster port of a control node?"
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	if _, err := Join(t.Context(), plain.Listener.Addr().String(), token, Joiner{}); !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), other) {
		t.Errorf("Join at a web server: %v", err)
	}
	if _, err := Join(t.Context(), "127.0.0.1:1", token, Joiner{}); !errors.Is(err, ErrUnreachable) || strings.Contains(err.Error(), other) {
		t.Errorf("Join: %v, want ErrUnreachable", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, err := c.Status(t.Context()); !errors.Is(err, ErrNoLeader) {
		t.Errorf("after Close: %v", err)
	}
}

// A state of before the start counts until something better is known.
func TestRecall(t *testing.T) {
	at := func(history string, index uint64) *state.State { return &state.State{History: history, Index: index} }
	v := NewView()
	if !v.Recall(at("h", 5)) || v.State().Index != 5 || v.since().Index != 0 {
		t.Errorf("at the start: index %d, since %d", v.State().Index, v.since().Index)
	}
	v.Publish(at("h", 7))
	if v.Recall(at("h", 7)) || v.Recall(at("h", 6)) || v.Recall(at("i", 9)) || v.since().Index != 7 {
		t.Errorf("after a newer one, or one of another history: index %d", v.State().Index)
	}
	if !v.Recall(at("h", 8)) {
		t.Error("a control node that is behind keeps the newer state away")
	}
	v.Publish(at("h", 8))
	v.Confirm("leader", 1)
	if v.Recall(at("h", 9)) {
		t.Error("after a leader was heard")
	}
}

// A control node without a leader may be behind, and does not set a node back.
func TestSetsBack(t *testing.T) {
	for _, c := range []struct {
		known, next state.State
		want        bool
	}{
		{state.State{}, state.State{}, false},
		{state.State{}, state.State{Index: 3, History: "h"}, false},
		{state.State{Index: 3, History: "h"}, state.State{Index: 3, History: "h"}, false},
		{state.State{Index: 3, History: "h"}, state.State{Index: 4, History: "h"}, false},
		{state.State{Index: 3, History: "h"}, state.State{Index: 2, History: "h"}, true},
		{state.State{Index: 3, History: "h"}, state.State{}, true},
		{state.State{Index: 3, History: "h"}, state.State{Index: 9, History: "i"}, true},
	} {
		if got := setsBack(&c.known, &c.next); got != c.want {
			t.Errorf("%s %d after %s %d: %t", c.next.History, c.next.Index, c.known.History, c.known.Index, got)
		}
	}
}

// Lines are put together, and those that do not fit are refused.
func TestFollower(t *testing.T) {
	deployment := func(name string, index uint64) state.Object {
		text, _ := json.Marshal(cluster.Deployment{Name: name})
		return state.Object{Kind: state.KindDeployment, Name: name, Index: index, Value: text}
	}
	f := Follower{State: new(state.State)}
	read := func(line Line) *state.State {
		t.Helper()
		text, err := json.Marshal(line)
		if err != nil {
			t.Fatal(err)
		}
		_, next, err := f.Read(text)
		if err != nil {
			t.Fatal(err)
		}
		return next
	}
	if s := read(Line{Index: 5, History: "h", Snapshot: true, More: true, Objects: []state.Object{deployment("a", 1)}}); s != nil {
		t.Error("half a snapshot was published")
	}
	if s := read(Line{Index: 5, History: "h", Objects: []state.Object{deployment("b", 2)}}); s == nil || len(s.Deployments) != 2 || s.Index != 5 || s.History != "h" {
		t.Errorf("snapshot %+v", s)
	}
	if s := read(Line{Index: 5, History: "h"}); s != nil {
		t.Error("a heartbeat was published")
	}
	if s := read(Line{Index: 7, History: "h"}); s == nil || s.Index != 7 { // a change that the role does not see
		t.Errorf("index alone: %+v", s)
	}
	if s := read(Line{Index: 8, History: "h", Objects: []state.Object{{Kind: state.KindDeployment, Name: "a", Index: 8}, {Kind: "of a later build", Name: "x"}}}); s == nil || len(s.Deployments) != 1 {
		t.Errorf("deletion: %+v", s)
	}
	// A snapshot that was cut short by another one.
	read(Line{Index: 9, Snapshot: true, More: true, Objects: []state.Object{deployment("x", 1)}})
	if s := read(Line{Index: 3, History: "i", Snapshot: true, Objects: []state.Object{deployment("y", 1)}}); s == nil || len(s.Deployments) != 1 || s.History != "i" {
		t.Errorf("snapshot after half a snapshot: %+v", s)
	}
	for _, bad := range []string{"", "x", `{"index":4,"history":"j","objects":[]}`, `{"index":4,"history":"i","objects":[{"kind":"node","name":"n","value":"x"}]}`} {
		before := f.State
		if _, _, err := f.Read([]byte(bad)); err == nil || f.State != before {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func FuzzFollower(f *testing.F) {
	for _, s := range []string{"", "{}", `{"index":1,"snapshot":true,"objects":[{"kind":"node","name":"n","index":1,"value":{"id":"n"}}]}`, `{"more":true}`, `{"index":1,"objects":[{"kind":"key","name":"k"}]}`,
		`{"index":1,"objects":[{"kind":"quarantine","name":"GPU-1","index":1,"value":{"gpu":"GPU-1","node":"w","cause":"xid","xid":79,"spared":["v"]}}]}` + "\n" + `{"index":2,"objects":[{"kind":"quarantine","name":"GPU-1","index":2}]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		follower := Follower{State: new(state.State)}
		for line := range strings.Lines(string(text)) {
			if _, next, err := follower.Read([]byte(line)); err == nil && next != nil && follower.State != next {
				t.Error("the state that was returned is not kept")
			}
		}
	})
}
