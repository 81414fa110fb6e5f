package membership

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const patience = 20 * time.Second

// running is a Membership that runs until stop.
type running struct {
	*Membership
	stop  context.CancelFunc
	ended chan error
}

func config(id string, seeds ...*running) Config {
	return Config{
		Node: id, Role: cluster.Worker, Cluster: "c", Key: bytes.Repeat([]byte{7}, KeySize), Bind: "127.0.0.1:0",
		Probe: 100 * time.Millisecond,
		Seeds: func() (out []string) {
			for _, s := range seeds {
				out = append(out, s.Addr())
			}
			return out
		},
	}
}

func start(t *testing.T, id string, change func(*Config), seeds ...*running) *running {
	t.Helper()
	cfg := config(id, seeds...)
	if change != nil {
		change(&cfg)
	}
	m, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	r := &running{m, stop, make(chan error, 1)}
	go func() { r.ended <- m.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err, ok := <-r.ended; ok && !errors.Is(err, context.Canceled) {
			t.Errorf("Run of %s: %v", id, err)
		}
	})
	return r
}

// end stops a Membership in order.
func (r *running) end() {
	r.stop()
	<-r.ended
	close(r.ended)
}

func (r *running) await(t *testing.T, what string, ok func(map[string]Member) bool) {
	t.Helper()
	timeout := time.After(patience)
	for {
		changed := r.Changed()
		if ok(r.Members()) {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			t.Fatalf("%s: waited for %s in vain; members %v", r.cfg.Node, what, r.Members())
		}
	}
}

func is(node string, state State) func(map[string]Member) bool {
	return func(m map[string]Member) bool { return m[node].State == state }
}

// Nodes see each other, hear of loads, and tell a farewell from a death.
func TestMembers(t *testing.T) {
	a := start(t, "a", func(c *Config) { c.Role = cluster.Control })
	b := start(t, "b", nil, a)
	c, err := Open(config("c"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.list.Join([]string{a.Addr()}); err != nil {
		t.Fatal(err)
	}
	all := []*running{a, b}
	for _, r := range all {
		r.await(t, "all", func(m map[string]Member) bool {
			return m["a"].Role == cluster.Control && m["b"].Role == cluster.Worker && m["c"].State == Alive
		})
	}
	load := cluster.Load{Live: 3, Waiting: 1, KV: 0.5}
	b.Tell(cluster.Load{Live: 1})
	b.Tell(load)
	for _, r := range all {
		r.await(t, "the load of b", func(m map[string]Member) bool { return m["b"].Load == load })
	}
	if a.Dead("b") || a.Dead("nobody") {
		t.Error("somebody is dead who is not")
	}
	b.end()
	a.await(t, "the farewell of b", is("b", Left))
	if !a.Dead("b") {
		t.Error("b has left and counts as there")
	}
	if err := c.Close(); err != nil { // without a word
		t.Fatal(err)
	}
	a.await(t, "the death of c", is("c", Dead))
	// It comes back at another address.
	start(t, "c", nil, a)
	a.await(t, "the return of c", is("c", Alive))
}

// A node that was alone finds the others when it is told of them.
func TestSeedsLater(t *testing.T) {
	a := start(t, "a", nil)
	know := make(chan struct{})
	b := start(t, "b", func(c *Config) {
		c.Probe = 20 * time.Millisecond
		c.Seeds = func() []string {
			select {
			case <-know:
				return []string{a.Addr()}
			default:
				return []string{"127.0.0.1:1", ""}
			}
		}
	})
	close(know)
	b.await(t, "a", is("a", Alive))
}

// Those who have another key, or are of another cluster, are not seen.
func TestStrangers(t *testing.T) {
	a := start(t, "a", nil)
	for name, change := range map[string]func(*Config){
		"key":     func(c *Config) { c.Key = bytes.Repeat([]byte{8}, KeySize) },
		"cluster": func(c *Config) { c.Cluster = "other" },
	} {
		stranger := start(t, "stranger-"+name, change, a)
		if n, err := stranger.list.Join([]string{a.Addr()}); err == nil || n != 0 {
			t.Errorf("another %s: joined %d, %v", name, n, err)
		}
		if len(a.Members()) != 1 || len(stranger.Members()) != 1 {
			t.Errorf("another %s: it was let in", name)
		}
	}
}

func TestConfig(t *testing.T) {
	good := Config{Node: "a", Cluster: "c", Key: make([]byte, KeySize), Bind: "127.0.0.1:0"}
	for name, change := range map[string]func(*Config){
		"no node": func(c *Config) { c.Node = "" }, "no cluster": func(c *Config) { c.Cluster = "" },
		"short key": func(c *Config) { c.Key = c.Key[:16] }, "no port": func(c *Config) { c.Bind = "127.0.0.1" },
		"bad advertise": func(c *Config) { c.Advertise = "x" }, "negative": func(c *Config) { c.Probe = -1 },
	} {
		cfg := good
		change(&cfg)
		if m, err := Open(cfg); err == nil {
			t.Errorf("%s: no error", name)
			_ = m.Close()
		}
	}
	m, err := Open(good)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

func TestMeta(t *testing.T) {
	full := meta{Role: cluster.Control, Load: cluster.Load{Live: 1 << 40, Waiting: 1 << 40, KV: 0.123456789}}
	text := full.encode()
	if len(text) == 0 || len(text) > memberlist.MetaMaxSize {
		t.Errorf("%d bytes", len(text))
	}
	if got := decodeMeta(text); got != full {
		t.Errorf("%+v came back as %+v", full, got)
	}
	if got := decodeMeta([]byte(`{"r":"worker","new":[1],"l":{"live":-1,"kv":7}}`)); got != (meta{Role: cluster.Worker, Load: cluster.Load{KV: 1}}) {
		t.Errorf("from a later build or a liar: %+v", got)
	}
}

func FuzzMeta(f *testing.F) {
	for _, s := range []string{"", "{}", `{"r":"worker"}`, `{"r":"king"}`, "null", "[1]", `{"r":"worker","l":{"kv":1e99}}`, strings.Repeat("x", 600)} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		m := decodeMeta(text)
		if m.Load.Live < 0 || m.Load.Waiting < 0 || !(m.Load.KV >= 0 && m.Load.KV <= 1) || m != (meta{}) && !m.Role.Valid() {
			t.Errorf("%q became %+v", text, m)
		}
	})
}

func TestLogWriter(t *testing.T) {
	var out bytes.Buffer
	w := logWriter{slog.New(slog.NewTextHandler(&out, nil))}
	for _, line := range []string{"[DEBUG] memberlist: quiet\n", "[WARN] memberlist: quiet\n", "[ERR] memberlist: loud\n", "plain"} {
		if n, err := w.Write([]byte(line)); n != len(line) || err != nil {
			t.Errorf("%q: %d, %v", line, n, err)
		}
	}
	if text := out.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, `msg="memberlist: loud"`) {
		t.Errorf("log %q", text)
	}
}

// answered probes node a until there is an answer: on a busy machine one may come too late.
func answered(t *testing.T, cfg Config, addr string) time.Duration {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		took, err := Probe(cfg, "a", addr)
		if err == nil {
			return took
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// A probe is answered by the node that it asks for, under the cluster's key, and by no
// other.
func TestProbe(t *testing.T) {
	key := bytes.Repeat([]byte{7}, KeySize)
	m, err := Open(Config{Node: "a", Role: cluster.Worker, Cluster: "c", Key: key, Bind: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	if took := answered(t, Config{Node: "p", Cluster: "c", Key: key}, m.Addr()); took <= 0 {
		t.Errorf("it took %s", took)
	}
	if len(m.Members()) != 1 {
		t.Errorf("the prober is a member: %v", m.Members())
	}
	for name, c := range map[string]struct {
		cfg  Config
		node string
	}{
		"another node":    {Config{Node: "p", Cluster: "c", Key: key}, "b"},
		"another key":     {Config{Node: "p", Cluster: "c", Key: bytes.Repeat([]byte{8}, KeySize)}, "a"},
		"another cluster": {Config{Node: "p", Cluster: "d", Key: key}, "a"},
		"no key":          {Config{Node: "p", Cluster: "c"}, "a"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := Probe(c.cfg, c.node, m.Addr()); err == nil {
				t.Error("there was an answer")
			}
		})
	}
}
