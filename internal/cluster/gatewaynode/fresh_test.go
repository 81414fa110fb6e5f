package gatewaynode

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sourcegraph/conc"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/controltest"
	"github.com/tokenrouter/tokenrouter/internal/apikey"
	"github.com/tokenrouter/tokenrouter/internal/cluster/clustertest"
)

// late is a connection whose bytes come late, or not at all while held.
type late struct {
	net.Conn
	by     time.Duration
	held   func() bool
	closed *atomic.Bool
}

func (l late) Close() error {
	l.closed.Store(true)
	return l.Conn.Close()
}

func (l late) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	<-time.After(l.by)
	for err == nil && l.held() && !l.closed.Load() {
		<-time.After(time.Millisecond)
	}
	return n, err
}

// dialLate makes such connections; held is asked for the address.
func dialLate(by time.Duration, held func(addr string) bool) func(*Config) {
	return func(c *Config) {
		c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return late{conn, by, func() bool { return held(addr) }, new(atomic.Bool)}, nil
		}
	}
}

// ask asks for a model's description, and what a chat with it says.
func (g *running) ask(key, model string) (get, chat answer) {
	g.r.t.Helper()
	do := func(method, path, body string) answer {
		req, err := http.NewRequestWithContext(g.r.t.Context(), method, g.url+path, strings.NewReader(body))
		if err != nil {
			g.r.t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+key)
		resp, err := g.r.http.Do(req)
		if err != nil {
			g.r.t.Fatal(err)
		}
		defer resp.Body.Close()
		var text strings.Builder
		_ = resp.Write(&text) // it is for people
		return answer{status: resp.StatusCode, body: text.String()}
	}
	return do(http.MethodGet, "/v1/models/"+model, ""), do(http.MethodPost, "/v1/completions", fmt.Sprintf(`{"model":%q,"prompt":"x"}`, model))
}

// A deployment that was applied is found at once at a gateway to which its control node's
// words come late, and one that was not is not.
func TestReadYourWrites(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	dir, saved := clustertest.Identity(r.Cluster, cluster.Gateway, "g1")
	g := r.gatewayIn(dir, saved, dialLate(15*time.Millisecond, func(string) bool { return false }))
	key, k := r.key(nil)
	clustertest.Await(t, "the key", func() bool { _, ok := g.link.View().State().Key(k.ID); return ok })
	// What is said in time is said well; a machine that is too busy says that it comes later.
	inTime := func(answers ...answer) {
		t.Helper()
		for _, a := range answers {
			if a.status == http.StatusServiceUnavailable && strings.Contains(a.body, "not_ready") {
				t.Skip("the machine is too busy for a change")
			}
		}
	}
	unheard := 0
	for i := range 10 {
		name := fmt.Sprint("d", i)
		r.Propose(r.Leader(), cluster.KindPutDeployment, cluster.Deployment{Name: name, Models: []string{"s", "l"}, Policy: "random"})
		if _, ok := g.link.View().State().Deployment(name); !ok {
			unheard++
		}
		get, chat := g.ask(key, name)
		inTime(get, chat)
		if get.status != http.StatusOK || chat.status != http.StatusServiceUnavailable || !strings.Contains(chat.body, "no_capacity") {
			if !g.sure(t) {
				t.Skip("the machine is too busy for a read")
			}
			t.Fatalf("%s: %s\n%s", name, get.body, chat.body)
		}
	}
	if unheard == 0 {
		t.Error("void: the gateway had heard of all of them")
	}
	get, chat := g.ask(key, "none")
	if inTime(get, chat); get.status != http.StatusNotFound || chat.status != http.StatusNotFound {
		t.Errorf("%s\n%s", get.body, chat.body)
	}
}

// A gateway whose control node has fallen silent does not say that a deployment is not
// there: it knows from another one that it is behind, until it has caught up there.
func TestReadYourWritesFrozenWatch(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3)
	var frozen atomic.Pointer[string]
	dir, saved := clustertest.Identity(r.Cluster, cluster.Gateway, "g1")
	g := r.gatewayIn(dir, saved, dialLate(0, func(addr string) bool { at := frozen.Load(); return at != nil && *at == addr }))
	key, k := r.key(nil)
	clustertest.Await(t, "the key", func() bool { _, ok := g.link.View().State().Key(k.ID); return ok })
	at := g.link.Client().Control()[0]
	frozen.Store(&at)
	r.deploy()
	refused := 0
	clustertest.Await(t, "the deployment", func() bool {
		get, chat := g.ask(key, "pair")
		if get.status == http.StatusNotFound || chat.status == http.StatusNotFound {
			// Machines that are too busy for a read say so: then nothing is known.
			if g.sure(t) {
				t.Fatalf("%s\n%s", get.body, chat.body)
			}
		}
		if get.status == http.StatusServiceUnavailable {
			refused++
		}
		return get.status == http.StatusOK
	})
	t.Logf("refused %d times until the watch had gone to another control node", refused)
}

// sure says that no request was answered without knowing.
func (g *running) sure(t *testing.T) bool {
	t.Helper()
	families, err := g.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "trctl_gateway_freshness_checks_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetValue() == "unsure" && m.GetCounter().GetValue() > 0 {
					return false
				}
			}
		}
	}
	return true
}

// What control nodes have acknowledged is awaited, and not longer than the caller does.
func TestProgress(t *testing.T) {
	t.Parallel()
	p := newProgress()
	p.note(7)
	if err := p.wait(t.Context(), 7); err != nil {
		t.Error(err)
	}
	gone := errors.New("gone")
	ctx, leave := context.WithCancelCause(t.Context())
	context.AfterFunc(ctx, func() { p.note(9) })
	leave(gone)
	if err := p.wait(ctx, 10); !errors.Is(err, gone) {
		t.Error(err)
	}
	if err := p.wait(t.Context(), 9); err != nil {
		t.Error(err)
	}
}

// BenchmarkUnknownModel tells how long a 404 takes at a gateway of three control nodes that
// is asked now and then, beside an answer for which nobody is asked.
func BenchmarkUnknownModel(b *testing.B) {
	c := controltest.New(b, 3, nil)
	dir, saved := clustertest.Identity(c, cluster.Gateway, "g1")
	n, err := New(Config{Dir: dir, Saved: saved, Listen: "127.0.0.1:0", Build: "test"})
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(b.Context())
	var running conc.WaitGroup
	running.Go(func() { _ = n.Run(ctx) })
	defer running.Wait()
	defer stop()
	text, key, err := apikey.New(c.Pepper)
	if err != nil {
		b.Fatal(err)
	}
	c.Propose(c.Leader(), cluster.KindPutKey, key)
	index := c.Propose(c.Leader(), cluster.KindPutDeployment, cluster.Deployment{Name: "known", Models: []string{"s", "l"}, Policy: "random"})
	if _, err := n.link.View().Wait(ctx, index); err != nil {
		b.Fatal(err)
	}
	for model, status := range map[string]int{"known": http.StatusOK, "unknown": http.StatusNotFound} {
		b.Run(model, func(b *testing.B) {
			var took []time.Duration
			for range b.N {
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.Addr().String()+"/v1/models/"+model, nil)
				if err != nil {
					b.Fatal(err)
				}
				req.Header.Set("Authorization", "Bearer "+text)
				began := time.Now()
				resp, err := http.DefaultClient.Do(req)
				if err != nil || resp.StatusCode != status {
					b.Fatal(resp, err)
				}
				took = append(took, time.Since(began))
				_ = resp.Body.Close()
				<-time.After(110 * time.Millisecond)
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(took[len(took)-1].Microseconds())/1000, "max-ms")
		})
	}
	http.DefaultClient.CloseIdleConnections()
}
