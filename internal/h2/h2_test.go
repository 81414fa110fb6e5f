package h2

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sourcegraph/conc"

	"github.com/tokenrouter/tokenrouter/internal/leaktest"
	"github.com/tokenrouter/tokenrouter/internal/memconn"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// serve runs a server on l until the returned function is called, which gives
// what Serve returned.
func serve(t *testing.T, cfg Config, l net.Listener, h http.HandlerFunc) (stop func() error) {
	t.Helper()
	s, err := NewServer(cfg, h)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var g conc.WaitGroup
	var result error
	g.Go(func() { result = s.Serve(ctx, l) })
	return func() error {
		cancel()
		g.Wait()
		return result
	}
}

func transport(t *testing.T, cfg Config) *Transport {
	t.Helper()
	tr, err := NewTransport(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func memory(l *memconn.Listener) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) { return l.Dial(ctx) }
}

func post(t *testing.T, rt http.RoundTripper, path string, body io.Reader) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, "http://x"+path, body)
	if err != nil {
		t.Fatal(err)
	}
	return rt.RoundTrip(req)
}

func echo(w http.ResponseWriter, r *http.Request) {
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush()
	_, _ = io.Copy(w, r.Body)
}

func TestEchoInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := memconn.Listen()
		stop := serve(t, Config{}, l, echo)
		tr := transport(t, Config{Dial: memory(l)})
		want := bytes.Repeat([]byte("0123456789"), 100_000)
		resp, err := post(t, tr, "/", bytes.NewReader(want))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
		if _, err := post(t, tr, "/", nil); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		if err := stop(); !errors.Is(err, context.Canceled) {
			t.Errorf("Serve: %v", err)
		}
	})
}

// A handler that has stopped reading holds up no other stream of its connection.
func TestStalledStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := memconn.Listen()
		release := make(chan struct{})
		stop := serve(t, Config{}, l, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/stall" {
				w.WriteHeader(http.StatusOK)
				_ = http.NewResponseController(w).Flush()
				<-release
				return
			}
			echo(w, r)
		})
		tr := transport(t, Config{Dial: memory(l)})
		var open []*http.Response
		for range 20 {
			// Endless bodies: the stream's window fills.
			resp, err := post(t, tr, "/stall", endless{})
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, resp)
		}
		synctest.Wait()
		start := time.Now()
		resp, err := post(t, tr, "/", strings.NewReader("hello"))
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(resp.Body); string(b) != "hello" || err != nil {
			t.Fatalf("%q, %v", b, err)
		}
		if d := time.Since(start); d > 0 {
			t.Errorf("the neighbour waited %v", d)
		}
		close(release)
		for _, r := range open {
			r.Body.Close()
		}
		tr.Close()
		_ = stop()
	})
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// A request beyond the server's streams waits for its turn on the same connection.
func TestStrictStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := memconn.Listen()
		release := make(chan struct{})
		stop := serve(t, Config{MaxStreams: 2}, l, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/wait" {
				<-release
			}
		})
		dials := 0
		tr := transport(t, Config{Dial: func(ctx context.Context) (net.Conn, error) {
			dials++
			return l.Dial(ctx)
		}})
		resp, err := post(t, tr, "/", nil) // brings the server's settings
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		var g conc.WaitGroup
		done := make(chan error, 5)
		for range 5 {
			g.Go(func() {
				resp, err := post(t, tr, "/wait", nil)
				if err == nil {
					err = resp.Body.Close()
				}
				done <- err
			})
		}
		synctest.Wait()
		if len(done) > 0 {
			t.Error("a request is done before its time")
		}
		close(release)
		g.Wait()
		for range 5 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if dials != 1 {
			t.Errorf("%d connections", dials)
		}
		tr.Close()
		_ = stop()
	})
}

// A server that is silent is given up after ReadIdle + Ping; the next request
// dials again.
func TestSilentServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := memconn.Listen()
		tr := transport(t, Config{Dial: memory(l)})
		var g conc.WaitGroup
		g.Go(func() {
			c, err := l.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			// It takes all and says nothing.
			_, _ = io.Copy(io.Discard, c)
			c.Close()
		})
		start := time.Now()
		_, err := post(t, tr, "/", nil)
		if d := time.Since(start); err == nil || d > readIdle+pingTimeout+time.Second {
			t.Errorf("after %v: %v", d, err)
		}
		g.Wait()
		stop := serve(t, Config{}, l, echo)
		resp, err := post(t, tr, "/", strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		if b, _ := io.ReadAll(resp.Body); string(b) != "x" {
			t.Errorf("%q", b)
		}
		tr.Close()
		_ = stop()
	})
}

// A connection that dies before its first answer is replaced, not kept for ever.
func TestDeadConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := memconn.Listen()
		n := 0
		tr := transport(t, Config{Dial: func(ctx context.Context) (net.Conn, error) {
			n++
			c, err := l.Dial(ctx)
			if err == nil && n == 1 {
				_ = c.Close()
			}
			return c, err
		}})
		stop := serve(t, Config{}, l, echo)
		if _, err := post(t, tr, "/", nil); err == nil {
			t.Error("a closed connection answers")
		}
		synctest.Wait()
		resp, err := post(t, tr, "/", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		tr.Close()
		_ = stop()
	})
}

// Serve lets a stream end within Grace, and cuts one that does not. Its
// handlers have returned before it does.
func TestGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := memconn.Listen()
		running := 0
		stop := serve(t, Config{Grace: time.Second}, l, func(w http.ResponseWriter, r *http.Request) {
			running++
			defer func() { running-- }()
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			_, _ = io.Copy(io.Discard, r.Body) // until cut
		})
		tr := transport(t, Config{Dial: memory(l)})
		pr, pw := io.Pipe()
		resp, err := post(t, tr, "/", pr)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		_ = stop()
		if d := time.Since(start); d < time.Second || d > 1100*time.Millisecond {
			t.Errorf("Serve took %v", d)
		}
		if running != 0 {
			t.Errorf("%d handlers are left", running)
		}
		resp.Body.Close()
		pw.Close()
		tr.Close()
	})
}

func TestHeaderLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := memconn.Listen()
		stop := serve(t, Config{}, l, echo)
		tr := transport(t, Config{Dial: memory(l)})
		req, err := http.NewRequest(http.MethodGet, "http://x/", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Long", strings.Repeat("x", 2*maxHeaderBytes))
		if resp, err := tr.RoundTrip(req); err == nil && resp.StatusCode == http.StatusOK {
			t.Error("64 KiB of headers are taken")
		}
		tr.Close()
		_ = stop()
	})
}

// HTTP/2 without TLS is refused on a network, by either end.
func TestNoPlaintext(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	stop := serve(t, Config{}, l, echo)
	dial := func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
	}
	tr := transport(t, Config{Dial: dial})
	if _, err := post(t, tr, "/", nil); !errors.Is(err, ErrPlaintext) {
		t.Errorf("client: %v", err)
	}
	c, err := dial(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	_, _ = c.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
	if b, err := io.ReadAll(c); len(b) > 0 {
		t.Errorf("server says %q, %v", b, err)
	}
	c.Close()
	tr.Close()
	_ = stop()
}

func TestTLS(t *testing.T) {
	server, client := mutualTLS(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	stop := serve(t, Config{TLS: server}, l, func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil || len(r.TLS.PeerCertificates) != 1 {
			t.Error("the handler does not see the client's certificate")
		}
		echo(w, r)
	})
	dial := func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
	}
	tr := transport(t, Config{Dial: dial, TLS: client})
	resp, err := post(t, tr, "/", strings.NewReader("secret"))
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(resp.Body); string(b) != "secret" || err != nil || resp.TLS == nil {
		t.Errorf("%q, %v", b, err)
	}
	tr.Close()

	// No certificate: the handshake or the first read fails.
	bare := client.Clone()
	bare.Certificates = nil
	tr = transport(t, Config{Dial: dial, TLS: bare})
	if _, err := post(t, tr, "/", nil); err == nil {
		t.Error("served without a certificate")
	}
	tr.Close()

	// Another ALPN.
	other := client.Clone()
	other.NextProtos = []string{"raft"}
	tr = transport(t, Config{Dial: func(ctx context.Context) (net.Conn, error) {
		c, err := dial(ctx)
		if err != nil {
			return nil, err
		}
		return tls.Client(c, other), nil
	}})
	if _, err := post(t, tr, "/", nil); err == nil {
		t.Error("served without ALPN h2")
	}
	tr.Close()
	_ = stop()
}

func TestConfig(t *testing.T) {
	if _, err := NewServer(Config{MaxStreams: -1}, http.NotFoundHandler()); err == nil {
		t.Error("negative MaxStreams")
	}
	if _, err := NewServer(Config{}, nil); err == nil {
		t.Error("no handler")
	}
	if _, err := NewTransport(Config{}); err == nil {
		t.Error("no Dial")
	}
}

// mutualTLS returns the two sides' configurations, with one self-made authority.
func mutualTLS(t *testing.T) (server, client *tls.Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "x"}, DNSNames: []string{"x"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	pair := []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}
	server = &tls.Config{Certificates: pair, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}
	client = &tls.Config{Certificates: pair, RootCAs: pool, ServerName: "x"}
	return server, client
}
