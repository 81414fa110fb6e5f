package lastseen

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/internal/identity"
)

// noon is when the tests happen.
func noon() time.Time { return time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC) }

func node() identity.Name { return identity.Name{Cluster: "c", Role: cluster.Worker, Node: "w1"} }

// town is a state with a worker and its replica.
func town(t testing.TB) *state.State {
	t.Helper()
	s := new(state.State)
	for i, c := range []struct {
		kind cluster.Kind
		body any
	}{
		{cluster.KindInit, cluster.Cluster{ID: "c", Name: "n", CAs: []string{"ca"}}},
		{cluster.KindPutNode, cluster.Node{ID: "w1", Role: cluster.Worker, Addr: "127.0.0.1:1", Protocol: 1}},
		{cluster.KindPlace, cluster.Place{From: 1, Put: []cluster.Replica{{ID: "r", Model: "m", Node: "w1", Source: "m", TP: 1}}}},
	} {
		command, err := cluster.NewCommand(c.kind, "", noon(), c.body)
		if err == nil {
			s, err = state.Apply(s, uint64(i+1), command)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func TestWriteRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, _, err := Read(dir, node()); !errors.Is(err, ErrNone) {
		t.Errorf("nothing yet: %v", err)
	}
	want := town(t)
	for range 2 {
		if err := Write(dir, node(), want, noon()); err != nil {
			t.Fatal(err)
		}
	}
	got, seen, err := Read(dir, node())
	if err != nil || !seen.Equal(noon()) || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %s, %v", got, seen, err)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		t.Errorf("%v, %v", files, err)
	}
	if stat, err := os.Stat(filepath.Join(dir, File)); err != nil || stat.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", stat, err)
	}
	for _, other := range []identity.Name{
		{Cluster: "c", Role: cluster.Worker, Node: "w2"}, {Cluster: "d", Role: cluster.Worker, Node: "w1"}, {Cluster: "c", Role: cluster.Gateway, Node: "w1"},
	} {
		if _, _, err := Read(dir, other); !errors.Is(err, ErrBad) {
			t.Errorf("%s: %v", other, err)
		}
	}
	if err := Write(filepath.Join(dir, "missing"), node(), want, noon()); err == nil {
		t.Error("a directory that is not there")
	}
}

// Whatever is cut off or flipped is found.
func TestDamage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := Write(dir, node(), town(t), noon()); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(filepath.Join(dir, File))
	if err != nil {
		t.Fatal(err)
	}
	want, _, err := decode(bytes.NewReader(good), node())
	if err != nil {
		t.Fatal(err)
	}
	for n := range len(good) - 8 { // gzip's own sum and length come last; ours has found it by then
		if _, _, err := decode(bytes.NewReader(good[:n]), node()); err == nil {
			t.Errorf("cut after %d bytes: taken", n)
		}
	}
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 0x10
		// A flip in the time, or in what gzip does not use, may go unnoticed; the state may not differ.
		if got, _, err := decode(bytes.NewReader(bad), node()); err == nil && !reflect.DeepEqual(got, want) {
			t.Errorf("flipped byte %d: another state", i)
		}
	}
	for name, text := range map[string]string{
		"empty": "", "no JSON": "x\n", "later version": `{"v":9,"node":"tr://c/worker/w1"}` + "\n",
		"no gzip": `{"v":1,"node":"tr://c/worker/w1"}` + "\nxx",
	} {
		if _, _, err := decode(bytes.NewReader([]byte(text)), node()); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func FuzzDecode(f *testing.F) {
	dir := f.TempDir()
	if err := Write(dir, node(), town(f), noon()); err != nil {
		f.Fatal(err)
	}
	good, err := os.ReadFile(filepath.Join(dir, File))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte("{\"v\":1}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, _, err := decode(bytes.NewReader(text), node())
		if err == nil && s.Check() != nil {
			t.Error("a state that does not hold together")
		}
	})
}
