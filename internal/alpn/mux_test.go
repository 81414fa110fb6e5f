package alpn

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sourcegraph/conc"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/internal/identity"
)

func credentials(t *testing.T) *identity.Credentials {
	t.Helper()
	a, err := identity.NewAuthority("c", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	key, request, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := a.Issue(request, identity.Name{Cluster: "c", Role: cluster.Control, Node: "n"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	keyText, err := identity.EncodeKey(key)
	if err != nil {
		t.Fatal(err)
	}
	ca, _, err := a.PEM()
	if err != nil {
		t.Fatal(err)
	}
	c, err := identity.NewCredentials(certificate, keyText, [][]byte{ca}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// serving is a Mux that serves until stop.
type serving struct {
	*Mux
	address string
	refused chan error
	running conc.WaitGroup
	stop    context.CancelFunc
}

func serve(t *testing.T, own *identity.Credentials, timeout time.Duration) *serving {
	t.Helper()
	under, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &serving{address: under.Addr().String(), refused: make(chan error, 16)}
	s.Mux, err = New(under, Config{
		TLS: own.Server("h2", "raft"), HandshakeTimeout: timeout,
		Plaintext: []byte("speak TLS"),
		Refused:   func(_ net.Addr, err error) { s.refused <- err },
	}, "h2", "raft")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	s.stop = stop
	s.running.Go(func() {
		if err := s.Serve(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Serve: %v", err)
		}
	})
	return s
}

// Each protocol's connections come out of its own listener.
func TestProtocolsShareAPort(t *testing.T) {
	defer goleak.VerifyNone(t)
	own := credentials(t)
	m := serve(t, own, time.Minute)
	for _, protocol := range []string{"h2", "raft"} {
		l := m.Listener(protocol)
		m.running.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, err = io.WriteString(c, protocol)
				if err := errors.Join(err, c.Close()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for _, protocol := range []string{"raft", "h2", "raft"} {
		c, err := tls.Dial("tcp", m.address, own.Client(protocol, "n", cluster.Control))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(c)
		if err != nil || string(got) != protocol {
			t.Errorf("%s: got %q, err %v", protocol, got, err)
		}
		_ = c.Close()
	}
	m.stop()
	m.running.Wait()
	if _, err := m.Listener("h2").Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
}

// Strangers come out of no listener.
func TestStrangers(t *testing.T) {
	defer goleak.VerifyNone(t)
	m := serve(t, credentials(t), 20*time.Millisecond)
	for _, say := range []string{"GET / HTTP/1.1\r\n\r\n", ""} {
		c, err := net.Dial("tcp", m.address)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, say); err != nil {
			t.Fatal(err)
		}
		if err := <-m.refused; err == nil {
			t.Errorf("%q: no error", say)
		}
		_ = c.Close()
	}
	m.stop()
	m.running.Wait()
}

// Who does not speak TLS is told so.
func TestPlaintext(t *testing.T) {
	defer goleak.VerifyNone(t)
	m := serve(t, credentials(t), time.Minute)
	c, err := net.Dial("tcp", m.address)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if told, err := io.ReadAll(c); err != nil || string(told) != "speak TLS" {
		t.Errorf("told %q, %v", told, err)
	}
	_ = c.Close()
	m.stop()
	m.running.Wait()
}
