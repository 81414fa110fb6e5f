package cluster_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sourcegraph/conc"
	"golang.org/x/net/http2"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/internal/cluster/link"
	"github.com/tokenrouter/tokenrouter/internal/cluster/operator"
	"github.com/tokenrouter/tokenrouter/internal/identity"
	"github.com/tokenrouter/tokenrouter/worker/peer"
)

// Bad tokens: each has its own error, and a line in the log that has no secret.
func tokens(w *town) {
	t := w.t
	used := w.token(cluster.Worker, time.Hour, 1)
	revoked := w.token(cluster.Worker, time.Hour, 1)
	w.must(cluster.KindRevokeToken, cluster.Name{Name: revoked.ID})
	expired := w.token(cluster.Worker, time.Second, 1)
	good := w.token(cluster.Worker, time.Hour, 1)
	guessed, unknown, foreign := good, good, good
	guessed.Secret[5]++
	unknown.ID = "0123456789"
	foreign.CAHash[0]++
	enter := func(token identity.JoinToken, role cluster.Role, node string) error {
		_, _, err := (&link.Entrance{Dir: t.TempDir(), Role: role, Node: node, Address: w.control.Addr(), Token: token.Reveal(), Build: "test"}).Enter(t.Context())
		return err
	}
	if err := enter(used, cluster.Worker, "first"); err != nil {
		t.Fatal(err)
	}
	await(t, "the token's end", func() bool {
		known, _ := w.control.State().Token(expired.ID)
		return time.Now().After(known.Expires.Add(time.Second))
	})
	for name, c := range map[string]struct {
		token identity.JoinToken
		role  cluster.Role
		want  error
	}{
		"used":         {used, cluster.Worker, state.ErrTokenUsed},
		"revoked":      {revoked, cluster.Worker, state.ErrTokenRevoked},
		"expired":      {expired, cluster.Worker, state.ErrTokenExpired},
		"wrong role":   {good, cluster.Control, state.ErrTokenRole},
		"wrong secret": {guessed, cluster.Worker, state.ErrTokenUnknown},
		"unknown":      {unknown, cluster.Worker, state.ErrTokenUnknown},
		"another CA":   {foreign, cluster.Worker, identity.ErrPeer},
	} {
		before := w.logs["control"].refusals()
		if err := enter(c.token, c.role, "late"); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		await(t, "the line about the token: "+name, func() bool { return w.logs["control"].refusals() > before })
	}
	if err := enter(good, cluster.Worker, "second"); err != nil {
		t.Errorf("the good token after all that: %v", err)
	}
	for process, log := range w.logs {
		for _, token := range []identity.JoinToken{used, revoked, expired, good, guessed} {
			revealed := token.Reveal()
			for _, secret := range []string{revealed[strings.LastIndexByte(revealed, '.')+1:], hex.EncodeToString(token.Secret[:])} {
				if strings.Contains(log.String(), secret) {
					t.Errorf("a token's secret is in the log of %s", process)
				}
			}
		}
	}
}

// claimed is a body of 2 GB of spaces, which counts what is taken of it.
type claimed struct{ taken atomic.Int64 }

const claim = 2 << 30

func (c *claimed) Read(p []byte) (int, error) {
	if c.taken.Load() >= claim {
		return 0, io.EOF
	}
	n := min(len(p), 64<<10)
	copy(p, bytes.Repeat([]byte{' '}, n))
	c.taken.Add(int64(n))
	return n, nil
}

// mostTaken bounds what of a body may leave its sender before it is refused: what
// buffers of the kernel and of HTTP/2 hold, and more.
const mostTaken = 64 << 20

// Garbage and a claim of 2 GB at every port, by whoever gets furthest there: it is
// refused, the memory comes back, the leader stays, and the cluster serves.
func claims(w *town) {
	t := w.t
	made := w.key(operator.KeyRequest{})
	status, err := w.operator.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	worker, gateway, control := w.client(cluster.Worker, "w1"), w.client(cluster.Gateway, "g1"), w.client(cluster.Control, "c2")
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)

	var all conc.WaitGroup
	ports := map[string]string{"control": w.control.Addr(), "second": w.admin.String(), "worker": w.worker.Addr(), "gateway": w.gateway.Addr().String()}
	for i, addr := range w.gossips() {
		ports[fmt.Sprint("gossip ", i)] = addr
	}
	for name, addr := range ports {
		for _, text := range garbage() {
			all.Go(func() { w.sendGarbage(name, addr, text) })
		}
	}
	all.Wait()
	w.claimJoin()
	for name, c := range map[string]struct {
		by         *tls.Config
		addr, path string
		host       string
	}{
		"status":          {worker, w.control.Addr(), cluster.PathStatus, "control"},
		"propose":         {worker, w.control.Addr(), cluster.PathPropose, "control"},
		"address":         {control, w.control.Addr(), cluster.PathAddress, "control"},
		"heartbeat":       {worker, w.control.Addr(), cluster.PathHeartbeat, "control"},
		"generate":        {gateway, w.worker.Addr(), generate.Path, w.replica()},
		"link":            {worker, w.worker.Addr(), peer.Path, w.replica()},
		"no such replica": {gateway, w.worker.Addr(), generate.Path, "nobody"},
	} {
		w.claimCall(name, c.by, c.addr, "https://"+c.host+c.path, name == "status" || name == "link")
	}
	w.claimChat(made.Text)

	await(t, "the memory back", func() bool {
		runtime.GC()
		runtime.ReadMemStats(&after)
		return after.HeapAlloc < before.HeapAlloc+32<<20
	})
	now, err := w.operator.Status(t.Context())
	if err != nil || now.Leader != status.Leader || now.Term != status.Term {
		t.Errorf("leader %s in term %d, was %s in %d; %v", now.Leader, now.Term, status.Leader, status.Term, err)
	}
	w.must(cluster.KindRevokeKey, cluster.Name{Name: made.Key.ID})
}

// client is the TLS configuration of a node that belongs to the cluster.
func (w *town) client(role cluster.Role, node string) *tls.Config {
	return &tls.Config{
		InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, NextProtos: []string{identity.ProtocolHTTP},
		Certificates: []tls.Certificate{*issue(w.t, w.authority, w.name(role, node), 0)},
	}
}

// garbage are bytes that are no protocol, or the beginning of one.
func garbage() []string {
	return []string{
		strings.Repeat("\x00", 4096), strings.Repeat("\xff", 4096), "GET / HTTP/1.1\r\n" + strings.Repeat("A", 128<<10),
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + strings.Repeat("\x00\xff\xff\x04", 64),
		"\x16\x03\x01\xff\xff\x01\x00\xff\xfb\x03\x03" + strings.Repeat("\x55", 1<<16),
	}
}

// sendGarbage sends it, as a packet too if it fits. The connection must end.
func (w *town) sendGarbage(name, addr, text string) {
	if packets, err := net.Dial("udp", addr); err == nil {
		_, _ = io.WriteString(packets, text) // it may be too long, or nobody listens
		_ = packets.Close()
	}
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		w.t.Error(err)
		return
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		w.t.Error(err)
	}
	_, _ = io.WriteString(conn, text) // it may be closed in the middle
	_, err = io.Copy(io.Discard, conn)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		w.t.Errorf("%s keeps a connection of %.8q", name, text)
	}
}

// claimJoin sends a join request that does not end.
func (w *town) claimJoin() {
	w.t.Helper()
	conn, err := tls.Dial("tcp", w.control.Addr(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{identity.ProtocolJoin}})
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		w.t.Fatal(err)
	}
	body := new(claimed)
	if _, err := io.Copy(conn, body); err == nil || body.taken.Load() > mostTaken {
		w.t.Errorf("join: %d MiB were taken, %v", body.taken.Load()>>20, err)
	}
}

// claimCall makes a call whose body is 2 GB. Those that are ignored may be answered: who
// asks for the status needs no body, and a link says yes before it reads.
func (w *town) claimCall(name string, by *tls.Config, addr, url string, ignored bool) {
	w.t.Helper()
	conn, err := tls.Dial("tcp", addr, by)
	if err != nil {
		w.t.Fatalf("%s: %v", name, err)
	}
	//lint:ignore SA1019 net/http dials by itself; this connection is there already.
	h2, err := new(http2.Transport).NewClientConn(conn)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = h2.Close() }()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	body := new(claimed)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, body)
	if err != nil {
		w.t.Fatal(err)
	}
	request.ContentLength = claim
	response, err := h2.RoundTrip(request)
	if err == nil {
		_, _ = io.Copy(io.Discard, response.Body) // its end matters, however it comes
		_ = response.Body.Close()
		if response.StatusCode < 400 && !ignored {
			w.t.Errorf("%s: %s", name, response.Status)
		}
	}
	if ctx.Err() != nil {
		w.t.Errorf("%s: no end within %v", name, patience)
	}
	if body.taken.Load() > mostTaken {
		w.t.Errorf("%s: %d MiB were taken", name, body.taken.Load()>>20)
	}
}

// claimChat asks the public API with a body of 2 GB, announced and not.
func (w *town) claimChat(key string) {
	w.t.Helper()
	url := "http://" + w.gateway.Addr().String() + "/v1/chat/completions"
	for _, length := range []int64{claim, -1} {
		body := new(claimed)
		request, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, url, body)
		if err != nil {
			w.t.Fatal(err)
		}
		request.ContentLength, request.Close = length, true
		request.Header.Set("Authorization", "Bearer "+key)
		request.Header.Set("Content-Type", "application/json")
		response, err := http.DefaultTransport.RoundTrip(request)
		if err == nil {
			_ = response.Body.Close()
			if response.StatusCode != http.StatusRequestEntityTooLarge {
				w.t.Errorf("chat of length %d: %s", length, response.Status)
			}
		}
		if body.taken.Load() > mostTaken {
			w.t.Errorf("chat of length %d: %d MiB were taken", length, body.taken.Load()>>20)
		}
	}
}
