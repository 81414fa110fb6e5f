package control

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/api/protocol"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/state"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// entry encodes a command as the log has it.
func entry(tb testing.TB, index uint64, kind cluster.Kind, body any) *raft.Log {
	tb.Helper()
	c, err := cluster.NewCommand(kind, "", epoch, body)
	if err != nil {
		tb.Fatal(err)
	}
	text, err := c.Encode()
	if err != nil {
		tb.Fatal(err)
	}
	return &raft.Log{Index: index, Data: text}
}

// filled is a log's state machine with a few objects.
func filled(tb testing.TB) *fsm {
	tb.Helper()
	f := newFSM(client.NewView())
	for i, l := range []*raft.Log{
		entry(tb, 1, cluster.KindInit, cluster.Cluster{ID: "c", CAs: []string{"ca"}}),
		entry(tb, 2, cluster.KindPutNode, cluster.Node{ID: "w", Role: cluster.Worker, Addr: "a:1", Protocol: 1}),
		entry(tb, 5, cluster.KindPutDeployment, cluster.Deployment{Name: "d", Models: []string{"m"}, Policy: "single"}),
	} {
		if got, ok := f.Apply(l).(applied); !ok || got.err != nil || got.index != l.Index {
			tb.Fatalf("entry %d: %+v", i, got)
		}
	}
	return f
}

// sink keeps a snapshot.
type sink struct {
	bytes.Buffer
	closed, cancelled bool
}

func (*sink) ID() string      { return "s" }
func (s *sink) Close() error  { s.closed = true; return nil }
func (s *sink) Cancel() error { s.cancelled = true; return nil }

func TestSnapshot(t *testing.T) {
	f := filled(t)
	snap, err := f.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	f.Apply(entry(t, 6, cluster.KindDeleteDeployment, cluster.Name{Name: "d"})) // after the snapshot
	out := new(sink)
	if err := snap.Persist(out); err != nil || !out.closed {
		t.Fatalf("persist: %v", err)
	}
	text := out.Bytes()
	again := newFSM(client.NewView())
	if err := again.Restore(io.NopCloser(bytes.NewReader(text))); err != nil {
		t.Fatal(err)
	}
	s := again.view.State()
	if _, ok := s.Deployment("d"); !ok || s.Index != 5 {
		t.Errorf("restored index %d, deployment %v", s.Index, ok)
	}
	for name, bad := range map[string][]byte{
		"empty": nil, "cut": text[:len(text)-5], "no header": text[10:], "header alone": text[:bytes.IndexByte(text, '\n')+1],
		"other sum":     bytes.Replace(text, []byte(`"sha256":"`), []byte(`"sha256":"00`), 1),
		"later version": bytes.Replace(text, []byte(`{"v":1`), []byte(`{"v":2`), 1),
		"long header":   bytes.Repeat([]byte("x"), 1<<20),
	} {
		if err := again.Restore(io.NopCloser(bytes.NewReader(bad))); !errors.Is(err, ErrSnapshot) {
			t.Errorf("%s: error %v, want ErrSnapshot", name, err)
		}
	}
	if again.view.State() != s {
		t.Error("a bad snapshot has changed the state")
	}
	for i := range text {
		damaged := bytes.Clone(text)
		damaged[i] ^= 0x10
		if got, err := readSnapshot(bytes.NewReader(damaged)); err == nil && got.Index != s.Index {
			t.Errorf("byte %d was changed and not noticed", i)
		}
	}
}

// A node that cannot read an entry stops: it keeps its state, and makes no snapshot
// that would leave the entry out.
func TestUnreadableEntry(t *testing.T) {
	f := filled(t)
	before := f.view.State()
	later := entry(t, 6, cluster.KindRevokeKey, cluster.Name{Name: "k"})
	// Whatever else it has, its version is the reason.
	later.Data = bytes.Replace(later.Data, []byte(`"v":1`), fmt.Appendf(nil, `"v":%d,"new_field":7`, cluster.Protocol+1), 1)
	for _, l := range []*raft.Log{later, entry(t, 7, cluster.KindDeleteDeployment, cluster.Name{Name: "d"})} {
		if got, ok := f.Apply(l).(applied); !ok || !errors.Is(got.err, ErrLog) {
			t.Errorf("entry %d: %+v, want ErrLog", l.Index, got)
		} else if want := fmt.Sprintf("revoke-key has version %d, and this build speaks %s", cluster.Protocol+1, protocol.Cluster()); !strings.Contains(got.err.Error(), want) {
			t.Errorf("entry %d: error %v, want %q", l.Index, got.err, want)
		}
	}
	if f.view.State() != before {
		t.Error("the state has changed")
	}
	if _, err := f.Snapshot(); !errors.Is(err, ErrLog) {
		t.Errorf("snapshot: %v, want ErrLog", err)
	}
	select {
	case <-f.failed:
	default:
		t.Error("the node was not told to stop")
	}
}

// A snapshot that a later version has written stops the node too, and names versions.
func TestLaterSnapshot(t *testing.T) {
	f := filled(t)
	later := *f.view.State()
	later.Written = cluster.Protocol + 1
	var out bytes.Buffer
	if err := writeSnapshot(&out, &later); err != nil {
		t.Fatal(err)
	}
	err := f.Restore(io.NopCloser(&out))
	if want := fmt.Sprintf("this build speaks %s; use a build that speaks %d", protocol.Cluster(), later.Written); !errors.Is(err, ErrSnapshot) || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
	select {
	case <-f.failed:
	default:
		t.Error("the node was not told to stop")
	}
	text, err := newBackup(&later, epoch)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := ParseBackup(text); !errors.Is(err, client.ErrVersion) {
		t.Errorf("backup: %v, want ErrVersion", err)
	}
}

func TestParseBackup(t *testing.T) {
	f := filled(t)
	text, err := newBackup(f.view.State(), epoch)
	if err != nil {
		t.Fatal(err)
	}
	b, s, err := ParseBackup(text)
	if err != nil {
		t.Fatal(err)
	}
	if b.Cluster != "c" || b.Index != 5 || !b.Made.Equal(epoch) {
		t.Errorf("backup %+v", b)
	}
	was, _ := json.Marshal(f.view.State())
	is, _ := json.Marshal(s)
	if !bytes.Equal(was, is) {
		t.Errorf("came back as\n%s\nwas\n%s", is, was)
	}
	for name, bad := range map[string]string{
		"empty": "", "another": "{}", "list": "[]",
		"changed":       strings.Replace(string(text), `"single"`, `"random"`, 1),
		"later version": strings.Replace(string(text), `{"v":1`, `{"v":2`, 1),
		"other cluster": strings.Replace(string(text), `"cluster":"c"`, `"cluster":"x"`, 1),
	} {
		if _, _, err := ParseBackup([]byte(bad)); !errors.Is(err, ErrSnapshot) {
			t.Errorf("%s: error %v, want ErrSnapshot", name, err)
		}
	}
}

// quarantined is filled, with a GPU in quarantine.
func quarantined(tb testing.TB) *fsm {
	f := filled(tb)
	for _, l := range []*raft.Log{
		entry(tb, 6, cluster.KindPutNode, cluster.Node{ID: "w", Role: cluster.Worker, Addr: "a:1", Protocol: 4, GPUs: []cluster.GPU{{UUID: "GPU-1"}}}),
		entry(tb, 7, cluster.KindQuarantine, cluster.Quarantine{GPU: "GPU-1", Node: "w", Cause: cluster.CauseXid, Xid: 79, Reason: "gone"}),
	} {
		if got, ok := f.Apply(l).(applied); !ok || got.err != nil {
			tb.Fatalf("%+v", got)
		}
	}
	return f
}

// Snapshots and backups keep quarantines. A build that does not know them refuses both, by
// the version that has written them.
func TestSnapshotOfQuarantine(t *testing.T) {
	f := quarantined(t)
	var out bytes.Buffer
	if err := writeSnapshot(&out, f.view.State()); err != nil {
		t.Fatal(err)
	}
	s, err := readSnapshot(&out)
	if err != nil {
		t.Fatal(err)
	}
	if q, ok := s.Quarantine("GPU-1"); !ok || q.Xid != 79 || q.Since.IsZero() || s.Written != 4 {
		t.Errorf("quarantine %+v %v, written by version %d", q, ok, s.Written)
	}
	text, err := newBackup(f.view.State(), epoch)
	if err != nil {
		t.Fatal(err)
	}
	if _, s, err = ParseBackup(text); err != nil || len(s.Quarantines) != 1 {
		t.Errorf("backup: %v", err)
	}
	// One of before has no such field.
	old := filled(t)
	if err := writeSnapshot(&out, old.view.State()); err != nil || bytes.Contains(mustJSON(t, old.view.State()), []byte("quarantine")) {
		t.Fatalf("the old state: %v", err)
	}
	if s, err = readSnapshot(&out); err != nil || len(s.Quarantines) != 0 || s.Written != 0 {
		t.Errorf("of before: %v, written by version %d", err, s.Written)
	}
	for _, c := range []struct{ body any }{{cluster.Quarantine{GPU: "GPU-1", Cause: cluster.CauseOperator}}, {cluster.Name{Name: "GPU-1"}}} {
		kind := cluster.KindQuarantine
		if _, release := c.body.(cluster.Name); release {
			kind = cluster.KindReleaseGPU
		}
		command, err := cluster.NewCommand(kind, "", epoch, c.body)
		if err != nil {
			t.Fatal(err)
		}
		three, four := protocol.Range{Oldest: 1, Newest: 3}, protocol.Range{Oldest: 1, Newest: 4}
		if err := writable(spoken(t, 1, four, three), "c1", four, &command); !errors.Is(err, client.ErrVersion) || !strings.Contains(err.Error(), "control node c2 speaks 1 to 3") {
			t.Errorf("%s beside an older control node: %v", kind, err)
		}
		if err := writable(spoken(t, 1, four, four), "c1", four, &command); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func FuzzParseBackup(f *testing.F) {
	held, err := newBackup(quarantined(f).view.State(), epoch)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(held)
	text, err := newBackup(filled(f).view.State(), epoch)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"v":1,"cluster":"c","state":{},"sha256":""}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		b, s, err := ParseBackup(text)
		if err == nil && (b == nil || s.Check() != nil) {
			t.Errorf("%q was read", text)
		}
	})
}

func FuzzReadSnapshot(f *testing.F) {
	var out bytes.Buffer
	if err := writeSnapshot(&out, filled(f).view.State()); err != nil {
		f.Fatal(err)
	}
	f.Add(bytes.Clone(out.Bytes()))
	out.Reset()
	if err := writeSnapshot(&out, quarantined(f).view.State()); err != nil {
		f.Fatal(err)
	}
	f.Add(out.Bytes())
	f.Add([]byte("{}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if s, err := readSnapshot(bytes.NewReader(text)); err == nil && s.Check() != nil {
			t.Errorf("%q was read", text)
		}
	})
}

func FuzzReadJoin(f *testing.F) {
	for _, s := range []string{"", "\n", "{}\n", `{"token":"t","secret":"AAAA"}` + "\n", strings.Repeat("x", cluster.MaxJoinRequest)} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var r cluster.JoinRequest
		if err := readJoin(bytes.NewReader(text), &r); err != nil && !errors.Is(err, client.ErrBadRequest) {
			t.Errorf("%q: %v", text, err)
		}
	})
}

// What a watcher has decides what it gets.
func TestWatcherSend(t *testing.T) {
	f := filled(t)
	s := f.view.State()
	restored := *s
	restored.History = "other"
	forgotten := *s
	forgotten.Floor = 4
	for _, c := range []struct {
		name     string
		s        *state.State
		index    uint64
		first    bool
		snapshot bool
		objects  int
	}{
		{"nothing", s, 0, true, true, 3},
		{"all", s, 5, true, false, 0},
		{"a part", s, 2, true, false, 1},
		{"another history", &restored, 5, false, true, 3},
		{"forgotten", &forgotten, 2, false, true, 3},
		{"an empty state, first", new(state.State), 0, true, true, 0},
		{"an empty state, again", new(state.State), 0, false, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &lines{}
			x := &watcher{w: w, index: c.index}
			x.peer.Role = cluster.Worker
			if err := x.send(c.s, "c1", 7, c.first); err != nil {
				t.Fatal(err)
			}
			var line client.Line
			if err := json.Unmarshal(w.Bytes(), &line); err != nil {
				t.Fatal(err)
			}
			if line.Snapshot != c.snapshot || len(line.Objects) != c.objects || line.Index != c.s.Index || line.Leader != "c1" || line.Term != 7 {
				t.Errorf("line %+v", line)
			}
			if x.history != c.s.History || x.index != c.s.Index {
				t.Errorf("the watcher is at %q %d", x.history, x.index)
			}
		})
	}
}

// Who knows more than a control node is not set back by it: nothing is said until it has
// caught up, or has been current and behind for so long that what is missing must be lost.
func TestWatcherIsNotSetBack(t *testing.T) {
	s := filled(t).view.State()
	now := time.Now()
	x := &watcher{index: s.Index + 4}
	for i, c := range []struct {
		current bool
		after   time.Duration
		want    bool
	}{
		{false, 0, true}, {false, time.Hour, true}, {true, time.Hour, true}, {true, time.Hour + behindFor - 1, true},
		{false, time.Hour + behindFor, true}, // a new leader: the time begins anew
		{true, 2 * time.Hour, true}, {true, 2*time.Hour + behindFor - 1, true}, {true, 2*time.Hour + behindFor, false},
	} {
		if got := x.waits(s, c.current, now.Add(c.after)); got != c.want {
			t.Errorf("step %d: %v, want %v", i, got, c.want)
		}
	}
	for _, leader := range []string{"", "c1"} {
		w := &lines{}
		x := &watcher{w: w, index: s.Index + 4, history: "h"}
		x.peer.Role = cluster.Worker
		if err := x.send(s, leader, 7, true); err != nil {
			t.Fatal(err)
		}
		follower := client.Follower{State: &state.State{Index: s.Index + 4, History: "h"}}
		line, next, err := follower.Read(w.Bytes())
		if err != nil || next != nil || line.Leader != "" || line.Snapshot {
			t.Errorf("with leader %q: line %+v, state %v, error %v", leader, line, next, err)
		}
		// Once it has caught up, what is missing comes.
		caughtUp := *s
		caughtUp.Index, caughtUp.History = s.Index+9, "h"
		w.Reset()
		if err := x.send(&caughtUp, "c1", 7, false); err != nil {
			t.Fatal(err)
		}
		if line, _, err := follower.Read(w.Bytes()); err != nil || line.Leader != "c1" || line.Index != s.Index+9 || line.Snapshot {
			t.Errorf("caught up: line %+v, error %v", line, err)
		}
	}
}

// A large state comes in lines that a follower puts together.
func TestWatcherParts(t *testing.T) {
	f := filled(t)
	large := strings.Repeat("x", 300<<10)
	for i := range 12 {
		f.Apply(entry(t, uint64(10+i), cluster.KindPutDeployment, cluster.Deployment{Name: fmt.Sprint("d", i), Models: []string{large}, Policy: "p"}))
	}
	w := &lines{}
	x := &watcher{w: w}
	x.peer.Role = cluster.Worker
	if err := x.send(f.view.State(), "", 0, true); err != nil {
		t.Fatal(err)
	}
	follower := client.Follower{State: new(state.State)}
	n := 0
	for text := range bytes.Lines(w.Bytes()) {
		n++
		if len(text) > client.MaxLine {
			t.Errorf("line %d has %d bytes", n, len(text))
		}
		_, next, err := follower.Read(text)
		if err != nil {
			t.Fatal(err)
		}
		if next != nil && len(next.Deployments) != 13 {
			t.Errorf("after line %d there are %d deployments", n, len(next.Deployments))
		}
	}
	if n < 3 || follower.State.Index != f.view.State().Index {
		t.Errorf("%d lines, index %d", n, follower.State.Index)
	}
}

// lines is an http.ResponseWriter that keeps what is written.
type lines struct{ bytes.Buffer }

func (*lines) Header() http.Header { return nil }
func (*lines) WriteHeader(int)     {}
