package engine

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/gateway/session"
	"github.com/tokenrouter/tokenrouter/internal/h2"
	"github.com/tokenrouter/tokenrouter/internal/identity"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/executor/fakeexec"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// loopback is a Network of several engines over TLS 1.3 with client certificates, on
// loopback: what a cluster's workers have between them. Every replica has a port.
type loopback struct {
	credentials *identity.Credentials

	mu    sync.Mutex
	ports map[string]string // by replica
}

func newLoopback(b *testing.B) *loopback {
	b.Helper()
	authority, err := identity.NewAuthority("c", time.Now())
	if err != nil {
		b.Fatal(err)
	}
	ca, _, err := authority.PEM()
	if err != nil {
		b.Fatal(err)
	}
	signer, request, err := identity.NewKey()
	if err != nil {
		b.Fatal(err)
	}
	key, err := identity.EncodeKey(signer)
	if err != nil {
		b.Fatal(err)
	}
	certificate, err := authority.Issue(request, identity.Name{Cluster: "c", Role: cluster.Worker, Node: "w"}, time.Now())
	if err != nil {
		b.Fatal(err)
	}
	n := &loopback{ports: map[string]string{}}
	if n.credentials, err = identity.NewCredentials(certificate, key, [][]byte{ca}, nil); err != nil {
		b.Fatal(err)
	}
	return n
}

func (n *loopback) Open(replica string, h http.Handler) (func(context.Context) error, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	front, err := h2.NewServer(h2.Config{TLS: n.credentials.Server(identity.ProtocolHTTP), Grace: frontGrace}, h)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ports[replica] = l.Addr().String()
	return func(ctx context.Context) error { return front.Serve(ctx, l) }, nil
}

func (n *loopback) Transport(replica string) (Transport, error) {
	return h2.NewTransport(h2.Config{Dial: func(ctx context.Context) (net.Conn, error) {
		n.mu.Lock()
		addr := n.ports[replica]
		n.mu.Unlock()
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		return tls.Client(conn, n.credentials.Client(identity.ProtocolHTTP, "w", cluster.Worker)), nil
	}})
}

func (n *loopback) URL(replica string) string { return "https://" + replica }

func (n *loopback) Authorize(*http.Request, string, string) error { return nil }

// fakes have steps of .5 ms for the entry model and 7.5 ms for the other one, whatever
// the batch.
func fakes(model string, vocab, pages int) (executor.Executor, error) {
	x := fakeexec.Default()
	x.Info.Vocab, x.Info.Pages, x.Info.MaxRows, x.Info.MaxSlots, x.Info.MaxTokens = vocab, pages, 64, 256, 1024
	x.Unchecked = true
	took := 500 * time.Microsecond
	if model == "tiny-l" {
		took = 7500 * time.Microsecond
	}
	x.StepTime = func(*step.Batch) time.Duration { return took }
	return fakeexec.New(x)
}

// routedRig is a small model and a large one on engines that share a network.
func routedRig(b *testing.B, n Network, thresholds []int, engines int) *Engine {
	b.Helper()
	share, seed := 0.1, uint64(1)
	g := Routing{
		Deployment: Deployment{Name: "pair", Models: []string{"tiny-s", "tiny-l"}, Policy: Policy{Name: "random", Threshold: &share}},
		Replicas:   [][]string{{"s"}, {"l"}}, Thresholds: thresholds,
	}
	names := []string{"s", "l"}
	var list []*Engine
	for at := range engines {
		e, err := New(Config{
			Network: n, Device: "cpu", PageSize: 16, KVTokens: 1 << 16, MaxRows: 64, MaxQueue: 64, ChunkTokens: 512, Workers: 1,
			DrainTimeout: time.Second, newCPU: fakes,
		})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			if err := e.Close(); err != nil {
				b.Error(err)
			}
		})
		a := Assignment{Groups: []Routing{g}}
		for i, model := range g.Models {
			if i%engines == at {
				a.Placements = append(a.Placements, Placement{Name: names[i], Generation: 1, Model: Model{Name: model, Dummy: &seed}})
			}
		}
		e.Assign(a)
		list = append(list, e)
	}
	deadline := time.Now().Add(20 * time.Second)
	for _, e := range list {
		for !slices.ContainsFunc(e.Reports(), func(r cluster.ReplicaReport) bool { return r.Phase == cluster.Ready }) {
			if time.Now().After(deadline) {
				b.Fatalf("not ready: %+v", e.Reports())
			}
			<-time.After(5 * time.Millisecond)
		}
	}
	tr, err := n.Transport("s")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = tr.Close() })
	facts := list[0].Reports()[0].Facts
	table, err := session.NewTable([]session.Deployment{{
		Name: "pair", Models: g.Models, MaxContext: facts.MaxContext, Vocab: facts.Vocab,
		Entries: []session.Entry{session.NewEntryClient("s", tr, n.URL("s"))},
	}}, nil, time.Now())
	if err != nil {
		b.Fatal(err)
	}
	return &Engine{table: table, session: list[0].session, closing: list[0].closing, log: list[0].log}
}

// rush answers requests of 100 tokens, 16 at a time, and returns the tokens a second.
func rush(b *testing.B, e *Engine, requests int) float64 {
	b.Helper()
	began := time.Now()
	group := pool.New().WithErrors().WithMaxGoroutines(16)
	for i := range requests {
		group.Go(func() error {
			seed := uint64(i)
			for _, err := range e.Generate(context.Background(), Request{Model: "pair", Prompt: "1 2 3 4", MaxTokens: 100, IgnoreEOS: true, Seed: &seed}) {
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		b.Fatal(err)
	}
	return float64(100*requests) / time.Since(began).Seconds()
}

// BenchmarkRoutedNodes compares a pair of models in one process with the same pair in
// two that talk by TLS over loopback, in turns. Steps take .5 and 7.5 ms, and a tenth of
// the entry's steps end in a hand-off. Figures are of the best rounds, as other work on the
// machine only makes them worse; "median-share-%" is the median of the rounds' shares.
func BenchmarkRoutedNodes(b *testing.B) {
	for _, thresholds := range [][]int{{1, 1}, {1, 6}} {
		b.Run(fmt.Sprintf("thresholds=%d,%d", thresholds[0], thresholds[1]), func(b *testing.B) {
			one, two := routedRig(b, newNetwork(), thresholds, 1), routedRig(b, newLoopback(b), thresholds, 2)
			rush(b, one, 32)
			rush(b, two, 32)
			var alone, apart, share []float64
			for b.Loop() {
				x, y := rush(b, one, 32), rush(b, two, 32)
				alone, apart, share = append(alone, x), append(apart, y), append(share, 100*y/x)
			}
			for _, list := range [][]float64{alone, apart, share} {
				slices.Sort(list)
			}
			best := len(share) - 1
			b.ReportMetric(alone[best], "one-tok/s")
			b.ReportMetric(apart[best], "two-tok/s")
			b.ReportMetric(100*apart[best]/alone[best], "share-%")
			b.ReportMetric(share[len(share)/2], "median-share-%")
		})
	}
}
