package workernode

import (
	"context"
	"net"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/api/handoff"
	"github.com/tokenrouter/tokenrouter/internal/h2"
	"github.com/tokenrouter/tokenrouter/internal/identity"
	"github.com/tokenrouter/tokenrouter/worker/peer"
)

// echoing sends every frame back; without back it tells of them.
type echoing struct {
	back bool
	up   chan *peer.Link
	came chan struct{}
}

func (e *echoing) LinkUp(l *peer.Link) {
	if !e.back {
		e.up <- l
	}
}

func (e *echoing) HandleFrame(l *peer.Link, f *handoff.Frame) {
	if !e.back {
		e.came <- struct{}{}
		return
	}
	r := handoff.Frame{Kind: handoff.KindHandoff, Request: f.Request, Epoch: 1, Hop: f.Hop + 1, From: 1, Base: f.Base, Tokens: f.Tokens}
	_ = l.Send(&r) // a link that is down ends the benchmark
}

func (e *echoing) LinkDown(*peer.Link, error) {}

// BenchmarkHop is a hand-off there and one back, between two workers with TLS 1.3 and
// client certificates; "us/hop" is half of the median round. They talk over loopback, or over
// what hopListener finds; test/cluster/hop.sh gives them two network namespaces.
func BenchmarkHop(b *testing.B) {
	authority, err := identity.NewAuthority("c", time.Now())
	if err != nil {
		b.Fatal(err)
	}
	credentials := func(node string) *identity.Credentials {
		signer, request, err := identity.NewKey()
		if err != nil {
			b.Fatal(err)
		}
		key, err := identity.EncodeKey(signer)
		if err != nil {
			b.Fatal(err)
		}
		certificate, err := authority.Issue(request, identity.Name{Cluster: "c", Role: cluster.Worker, Node: node}, time.Now())
		if err != nil {
			b.Fatal(err)
		}
		ca, _, err := authority.PEM()
		if err != nil {
			b.Fatal(err)
		}
		c, err := identity.NewCredentials(certificate, key, [][]byte{ca}, nil)
		if err != nil {
			b.Fatal(err)
		}
		return c
	}
	l := hopListener(b)
	server, err := peer.NewServer(peer.ServerConfig{Config: peer.Config{Replica: "b", Model: "m1", Handler: &echoing{back: true}}})
	if err != nil {
		b.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(peer.Path, server)
	front, err := h2.NewServer(h2.Config{TLS: credentials("w2").Server(identity.ProtocolHTTP), Grace: time.Millisecond}, mux)
	if err != nil {
		b.Fatal(err)
	}
	tr, err := h2.NewTransport(h2.Config{
		TLS: credentials("w1").Client(identity.ProtocolHTTP, "w2", cluster.Worker),
		Dial: func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
		},
	})
	if err != nil {
		b.Fatal(err)
	}
	own := &echoing{up: make(chan *peer.Link, 1), came: make(chan struct{}, 1)}
	client, err := peer.NewClient(peer.ClientConfig{Config: peer.Config{Replica: "a", Model: "m0", Handler: own}, URL: "https://b", Transport: tr})
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(b.Context())
	group := pool.New()
	group.Go(func() { _ = front.Serve(ctx, l) })
	group.Go(func() { _ = server.Run(ctx) })
	group.Go(func() { _ = client.Run(ctx) })
	defer func() { stop(); group.Wait(); _ = tr.Close() }()
	link := <-own.up
	f := handoff.Frame{Kind: handoff.KindHandoff, Request: 1, Epoch: 1, To: 1, Base: 100, Tokens: []handoff.Token{{ID: 5}}}
	rounds := make([]time.Duration, 0, b.N)
	for b.Loop() {
		f.Hop++
		began := time.Now()
		if err := link.Send(&f); err != nil {
			b.Fatal(err)
		}
		<-own.came
		rounds = append(rounds, time.Since(began))
	}
	slices.Sort(rounds)
	b.ReportMetric(float64(rounds[len(rounds)/2])/2e3, "us/hop-p50")
	b.ReportMetric(float64(rounds[len(rounds)*99/100])/2e3, "us/hop-p99")
}
