package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	pemtext "encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// proxyTime bounds each test of a proxy.
const proxyTime = 20 * time.Second

// streamer stands for a gateway: it sends an event only when the client has said that it
// has the one before, so that a proxy which holds events back stops everything.
type streamer struct {
	had chan struct{}
	// drains says that it refuses requests, as a gateway that ends.
	drains bool
}

// events is how many a stream has.
const events = 5

func (s *streamer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case s.drains:
		http.Error(w, `{"error":{"code":"draining"}}`, http.StatusServiceUnavailable)
		return
	case r.URL.Path == "/readyz":
		return
	case strings.HasPrefix(r.URL.Path, "/metrics"):
		fmt.Fprintln(w, "not for clients")
		return
	}
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for i := range events {
		fmt.Fprintf(w, "data: %d\n\n", i)
		if http.NewResponseController(w).Flush() != nil {
			return
		}
		select {
		case <-s.had:
		case <-r.Context().Done():
			return
		}
	}
}

// proxied is a proxy that runs in front of two streamers.
type proxied struct {
	t    *testing.T
	dir  string
	tls  string // host:port
	http *http.Client
	had  chan struct{}
	// gateways are where the streamers listen.
	gateways []string
}

// newProxied makes what a proxy needs: certificates, a free port, and two gateways of
// which the first may drain.
func newProxied(t *testing.T, program string, drains bool) *proxied {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("%s is not installed, so that its configuration is not tried; apt-get install %s", program, program)
	}
	p := &proxied{t: t, dir: t.TempDir(), tls: freePort(t), had: make(chan struct{})}
	for i := range 2 {
		gateway := httptest.NewServer(&streamer{had: p.had, drains: drains && i == 0})
		t.Cleanup(gateway.Close)
		p.gateways = append(p.gateways, gateway.Listener.Addr().String())
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"api.example.org"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certificate := pemtext.EncodeToMemory(&pemtext.Block{Type: "CERTIFICATE", Bytes: der})
	keyText := pemtext.EncodeToMemory(&pemtext.Block{Type: "PRIVATE KEY", Bytes: keyDER})
	p.write("api.crt", certificate)
	p.write("api.key", keyText)
	p.write("both.pem", append(certificate, keyText...))
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(certificate)
	transport := &http.Transport{
		ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "api.example.org"},
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", p.tls)
		},
	}
	t.Cleanup(transport.CloseIdleConnections)
	p.http = &http.Client{Transport: transport}
	return p
}

func (p *proxied) write(name string, text []byte) string {
	p.t.Helper()
	path := filepath.Join(p.dir, name)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		p.t.Fatal(err)
	}
	return path
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// shipped is a file of deploy/proxy in which what differs here was replaced.
func (p *proxied) shipped(file string, pairs ...string) string {
	p.t.Helper()
	text, err := os.ReadFile(filepath.Join(deployRoot, "proxy", file))
	if err != nil {
		p.t.Fatal(err)
	}
	out := string(text)
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(out, pairs[i]) {
			p.t.Fatalf("%s has no %q", file, pairs[i])
		}
		out = strings.ReplaceAll(out, pairs[i], pairs[i+1])
	}
	return out
}

// run has a proxy check its configuration and then runs it until the test ends.
func (p *proxied) run(check, run *exec.Cmd) {
	p.t.Helper()
	if out, err := check.CombinedOutput(); err != nil {
		p.t.Fatalf("%v: %v\n%s", check.Args, err, out)
	}
	var log bytes.Buffer
	run.Stdout, run.Stderr = &log, &log
	if err := run.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		_ = run.Process.Kill()
		_ = run.Wait() // killed
		if p.t.Failed() {
			p.t.Logf("%s", log.String())
		}
	})
	tries := time.NewTicker(10 * time.Millisecond)
	defer tries.Stop()
	for deadline := time.Now().Add(proxyTime); ; <-tries.C {
		conn, err := net.Dial("tcp", p.tls)
		if err == nil {
			_ = conn.Close()
			return
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("%v does not listen: %v\n%s", run.Args, err, log.String())
		}
	}
}

// stream asks for a stream and checks that every event is there before the next is sent.
func (p *proxied) stream() {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), proxyTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://api.example.org/v1/chat/completions", strings.NewReader(`{"stream":true}`))
	if err != nil {
		p.t.Fatal(err)
	}
	response, err := p.http.Do(request)
	if err != nil {
		p.t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK || response.ProtoMajor != 2 {
		p.t.Fatalf("%s by %s", response.Status, response.Proto)
	}
	lines := bufio.NewScanner(response.Body)
	for i := range events {
		for lines.Scan() && lines.Text() == "" {
		}
		if want := fmt.Sprintf("data: %d", i); lines.Text() != want {
			p.t.Fatalf("event %d is %q, %v", i, lines.Text(), lines.Err())
		}
		select {
		case p.had <- struct{}{}:
		case <-ctx.Done():
			p.t.Fatal(context.Cause(ctx))
		}
	}
}

// status is that of a path.
func (p *proxied) status(path string) int {
	p.t.Helper()
	response, err := p.http.Get("https://api.example.org" + path)
	if err != nil {
		p.t.Fatal(err)
	}
	defer response.Body.Close()
	return response.StatusCode
}

// Events pass nginx one by one, requests that a gateway refuses because it ends go to the
// other one, and the metrics are not for clients.
func TestStreamsThroughNginx(t *testing.T) {
	p := newProxied(t, "nginx", true)
	p.write("snippet.conf", []byte(p.shipped("nginx.conf",
		"listen 443 ssl http2;", "listen "+p.tls+" ssl http2;", "/etc/nginx/tls/", p.dir+"/",
		"10.0.0.21:8000", p.gateways[0], "10.0.0.22:8000", p.gateways[1])))
	whole := fmt.Sprintf("pid %[1]s/pid;\nerror_log stderr warn;\ndaemon off;\nmaster_process off;\nevents { }\nhttp {\n  access_log off;\n", p.dir)
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		whole += fmt.Sprintf("  %s_temp_path %s/%s;\n", kind, p.dir, kind)
	}
	path := p.write("nginx.conf", []byte(whole+"  include snippet.conf;\n}\n"))
	args := []string{"-p", p.dir, "-c", path, "-e", "stderr"}
	p.run(exec.Command("nginx", append([]string{"-t"}, args...)...), exec.Command("nginx", args...))
	for range 4 {
		p.stream()
	}
	for _, path := range []string{"/metrics", "/metrics/vllm"} {
		if status := p.status(path); status != http.StatusNotFound {
			t.Errorf("%s is %d", path, status)
		}
	}
}

// Events pass HAProxy one by one, and the metrics are not for clients.
func TestStreamsThroughHAProxy(t *testing.T) {
	p := newProxied(t, "haproxy", false)
	path := p.write("haproxy.cfg", []byte(p.shipped("haproxy.cfg",
		"maxconn 20000", "maxconn 100", // so many need more open files than a test may have
		"bind :443", "bind "+p.tls, "bind :80", "bind "+freePort(t), "/etc/haproxy/certs/", p.dir+"/both.pem",
		"10.0.0.21:8000", p.gateways[0], "10.0.0.22:8000", p.gateways[1])))
	p.run(exec.Command("haproxy", "-c", "-f", path), exec.Command("haproxy", "-db", "-f", path))
	for range 4 {
		p.stream()
	}
	for _, path := range []string{"/metrics", "/metrics/vllm"} {
		if status := p.status(path); status != http.StatusNotFound {
			t.Errorf("%s is %d", path, status)
		}
	}
}
