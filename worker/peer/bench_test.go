package peer_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/api/handoff"
	"github.com/tokenrouter/tokenrouter/internal/h2"
	"github.com/tokenrouter/tokenrouter/worker/peer"
)

// BenchmarkRoundTrip measures hops to a peer and back over mutual TLS on
// loopback TCP, both ends in this process, with so many requests in flight.
//
// Reported: rt/s, and the 50th and 99th percentile of a round trip in µs.
func BenchmarkRoundTrip(b *testing.B) {
	for _, n := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("inflight=%d", n), func(b *testing.B) { benchmark(b, n) })
	}
}

func benchmark(b *testing.B, inflight int) {
	serverTLS, clientTLS := mutualTLS(b)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	server, err := peer.NewServer(peer.ServerConfig{Config: peer.Config{
		Replica: "large-0", Limits: peer.Limits{Silence: peer.SilentAfter},
		Handler: owner{frame: func(l *peer.Link, f *handoff.Frame) {
			g := *f
			g.Hop++
			if err := l.Send(&g); err != nil {
				b.Error(err)
			}
		}},
	}})
	if err != nil {
		b.Fatal(err)
	}
	front, err := h2.NewServer(h2.Config{TLS: serverTLS}, server)
	if err != nil {
		b.Fatal(err)
	}
	transport, err := h2.NewTransport(h2.Config{TLS: clientTLS, Dial: func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", listener.Addr().String())
	}})
	if err != nil {
		b.Fatal(err)
	}
	up := make(chan *peer.Link, 1)
	done := make(chan struct{})
	// Only the reader's goroutine touches these after the start.
	sent := make([]time.Time, inflight)
	times := make([]time.Duration, 0, b.N)
	left := b.N
	out := *hop(1, 1)
	client, err := peer.NewClient(peer.ClientConfig{
		Config: peer.Config{Replica: "small-0", Limits: peer.Limits{Silence: peer.SilentAfter}, Handler: owner{
			up: func(l *peer.Link) { up <- l },
			frame: func(l *peer.Link, f *handoff.Frame) {
				now := time.Now()
				i := f.Request - 1
				times = append(times, now.Sub(sent[i]))
				if len(times) == cap(times) {
					close(done)
					return
				}
				if left == 0 {
					return
				}
				left--
				sent[i] = now
				out.Request, out.Hop = f.Request, f.Hop+1
				if err := l.Send(&out); err != nil {
					b.Error(err)
				}
			},
		}},
		URL:       "https://x",
		Transport: transport,
	})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	group := pool.New().WithContext(ctx)
	group.Go(server.Run)
	group.Go(func(ctx context.Context) error { return front.Serve(ctx, listener) })
	group.Go(client.Run)
	link := <-up
	first := min(inflight, b.N)
	left -= first
	b.ReportAllocs()
	b.ResetTimer()
	start := time.Now()
	for i := range sent {
		sent[i] = start
	}
	for i := range first {
		if err := link.Send(hop(uint64(i+1), 1)); err != nil {
			b.Fatal(err)
		}
	}
	<-done
	b.StopTimer()
	wall := time.Since(start)
	slices.Sort(times)
	b.ReportMetric(float64(len(times))/wall.Seconds(), "rt/s")
	b.ReportMetric(float64(times[len(times)/2].Nanoseconds())/1e3, "p50-µs")
	b.ReportMetric(float64(times[len(times)*99/100].Nanoseconds())/1e3, "p99-µs")
	cancel()
	_ = group.Wait()
	transport.Close()
}

// mutualTLS returns the two sides' configurations, with one self-made authority.
func mutualTLS(b *testing.B) (server, client *tls.Config) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "x"}, DNSNames: []string{"x"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		b.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		b.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(cert)
	pair := []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}
	server = &tls.Config{Certificates: pair, ClientCAs: roots, ClientAuth: tls.RequireAndVerifyClientCert}
	client = &tls.Config{Certificates: pair, RootCAs: roots, ServerName: "x"}
	return server, client
}
