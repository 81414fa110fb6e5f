package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sourcegraph/conc"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/internal/h2"
	"github.com/tokenrouter/tokenrouter/internal/identity"
	"github.com/tokenrouter/tokenrouter/internal/memconn"
)

// Only a control node that has shown who it is can refuse a certificate; everything else
// leaves open whether it is taken.
func TestProbe(t *testing.T) {
	gone := func(string) bool { return true }
	for name, c := range map[string]struct {
		node  string
		serve func(context.Context, net.Listener, *tls.Config)
		// role and removed are of the server.
		role    cluster.Role
		removed func(string) bool
		// taken says that no error is wanted, refused that ErrCertificate is.
		taken, refused bool
	}{
		"taken":            {"c1", serves, cluster.Control, nil, true, false},
		"taken by anybody": {"", serves, cluster.Control, nil, true, false},
		"refused":          {"c1", serves, cluster.Control, gone, false, true},
		"another node":     {"c2", serves, cluster.Control, gone, false, false},
		"no control node":  {"c1", serves, cluster.Worker, gone, false, false},
		// Whoever is on the way needs no key for that.
		"forged": {"c1", accepts(func(conn net.Conn, _ *tls.Config) {
			_, _ = conn.Read(make([]byte, 4096))
			_, _ = conn.Write([]byte{21, 3, 3, 0, 2, 2, 42}) // alert, fatal, bad_certificate
		}), cluster.Control, nil, false, false},
		"silent": {"c1", accepts(func(conn net.Conn, cfg *tls.Config) {
			s := tls.Server(conn, cfg)
			_ = s.Handshake()
			_, _ = s.Read(make([]byte, 1)) // until the caller is gone
		}), cluster.Control, nil, false, false},
		"hangs up": {"c1", accepts(func(conn net.Conn, cfg *tls.Config) {
			s := tls.Server(conn, cfg)
			_ = s.Handshake()
			_ = s.Close()
		}), cluster.Control, nil, false, false},
		"another alert": {"c1", accepts(func(conn net.Conn, cfg *tls.Config) {
			cfg.ClientAuth, cfg.VerifyConnection, cfg.ClientCAs = tls.RequireAndVerifyClientCert, nil, x509.NewCertPool() // trusts no CA
			_ = tls.Server(conn, cfg).Handshake()
		}), cluster.Control, nil, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, err := identity.NewAuthority("c", time.Now())
				if err != nil {
					t.Fatal(err)
				}
				l := memconn.Listen()
				ctx, stop := context.WithCancel(t.Context())
				var server conc.WaitGroup
				defer server.Wait()
				defer stop()
				cfg := removing(t, a, c.role, "c1", c.removed).Server(identity.ProtocolHTTP)
				server.Go(func() { c.serve(ctx, l, cfg) })
				p := NewPeers(issued(t, a, cluster.Control, "c3"), func(ctx context.Context, _, _ string) (net.Conn, error) { return l.Dial(ctx) }, nil)
				within, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				err = p.Probe(within, c.node, "c1:7000")
				if (err == nil) != c.taken || errors.Is(err, ErrCertificate) != c.refused {
					t.Errorf("%v", err)
				}
			})
		})
	}
	a, err := identity.NewAuthority("c", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	p := NewPeers(issued(t, a, cluster.Control, "c3"), func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("no route") }, nil)
	if err := p.Probe(t.Context(), "c1", "c1:7000"); err == nil || errors.Is(err, ErrCertificate) {
		t.Errorf("nobody there: %v", err)
	}
}

// serves is a control node's HTTP/2.
func serves(ctx context.Context, l net.Listener, cfg *tls.Config) {
	server, err := h2.NewServer(h2.Config{TLS: cfg}, http.NotFoundHandler())
	if err == nil {
		_ = server.Serve(ctx, l)
	}
}

// accepts serves one connection.
func accepts(serve func(net.Conn, *tls.Config)) func(context.Context, net.Listener, *tls.Config) {
	return func(_ context.Context, l net.Listener, cfg *tls.Config) {
		if conn, err := l.Accept(); err == nil {
			serve(conn, cfg)
			_ = conn.Close()
		}
	}
}

// A forged alert does not end who makes a call either.
func TestForgedRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, err := identity.NewAuthority("c", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		for name, forged := range map[string]bool{"forged": true, "real": false} {
			l := memconn.Listen()
			var server conc.WaitGroup
			ctx, stop := context.WithCancel(t.Context())
			cfg := removing(t, a, cluster.Control, "c1", func(string) bool { return true }).Server(identity.ProtocolHTTP)
			server.Go(func() {
				if !forged {
					serves(ctx, l, cfg)
					return
				}
				accepts(func(conn net.Conn, _ *tls.Config) {
					_, _ = conn.Read(make([]byte, 4096))
					_, _ = conn.Write([]byte{21, 3, 3, 0, 2, 2, 42})
				})(ctx, l, nil)
			})
			c, err := New(Config{Credentials: issued(t, a, cluster.Worker, "w"), Control: []string{"c1:1"}, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) { return l.Dial(ctx) }})
			if err != nil {
				t.Fatal(err)
			}
			for range 1000 {
				// A node that hangs up may be seen to do so before its alert is.
				if _, err = c.Index(t.Context()); forged || errors.Is(err, ErrCertificate) {
					break
				}
			}
			if errors.Is(err, ErrCertificate) == forged || errors.Is(err, ErrNoLeader) != forged {
				t.Errorf("%s: %v", name, err)
			}
			_ = c.Close()
			stop()
			server.Wait()
		}
	})
}

// levels counts the lines of a log.
type levels struct {
	slog.Handler
	warnings, errors atomic.Int32
}

func (l *levels) Enabled(context.Context, slog.Level) bool { return true }
func (l *levels) Handle(_ context.Context, r slog.Record) error {
	switch r.Level {
	case slog.LevelWarn:
		l.warnings.Add(1)
	case slog.LevelError:
		l.errors.Add(1)
	}
	return nil
}

// A node that was removed while it was cut off hears so in its log, once, and again if it
// was taken meanwhile; heartbeats go on.
func TestBeatRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, err := identity.NewAuthority("c", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		var gone, lost atomic.Bool
		l := memconn.Listen()
		ctx, stop := context.WithCancel(t.Context())
		var loops conc.WaitGroup
		defer loops.Wait()
		defer stop()
		server, err := h2.NewServer(h2.Config{TLS: removing(t, a, cluster.Control, "c1", func(string) bool { return gone.Load() }).Server(identity.ProtocolHTTP)},
			http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") }))
		if err != nil {
			t.Fatal(err)
		}
		loops.Go(func() { _ = server.Serve(ctx, l) })
		log := &levels{Handler: slog.DiscardHandler}
		c, err := New(Config{
			Credentials: issued(t, a, cluster.Worker, "w"), Control: []string{"c1:1"}, Log: slog.New(log),
			Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
				if lost.Load() {
					return nil, errors.New("no route")
				}
				return l.Dial(ctx)
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		var heard atomic.Int32
		loops.Go(func() {
			_ = c.Beat(ctx, 100*time.Millisecond, func() cluster.Beat { return cluster.Beat{Node: "w"} }, func(cluster.BeatReply) { heard.Add(1) })
		})
		want := func(warned, refused int32) {
			t.Helper()
			<-time.After(10 * time.Second)
			if w, r := log.warnings.Load(), log.errors.Load(); w != warned || r != refused {
				t.Errorf("%d warnings and %d refusals are logged, want %d and %d", w, r, warned, refused)
			}
		}
		want(0, 0)
		for round := range int32(2) { // a refusal may be seen as a lost connection first, so it is cut off before
			lost.Store(true)
			c.peers.Reset()
			want(round+1, round)
			gone.Store(true)
			lost.Store(false)
			want(round+1, round+1)
			gone.Store(false)
			before := heard.Load()
			want(round+1, round+1)
			if heard.Load() <= before {
				t.Error("it is not heard again")
			}
		}
	})
}
