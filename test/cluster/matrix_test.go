package cluster_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/net/http2"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/internal/cluster/operator"
	"github.com/tokenrouter/tokenrouter/internal/identity"
	"github.com/tokenrouter/tokenrouter/worker/peer"
)

// A matrix cell says how far somebody gets.
const (
	in     = "in"     // the connection stands, and the call is answered on its merits
	denied = "denied" // the connection stands, the call gets 403
	shut   = "shut"   // the connection is refused
)

// way is a column: a process's port, with a protocol and, on h2, a call.
type way struct {
	name, process string
	addr          string
	protocol      string
	path, host    string
}

// howFar has who gets how far: first every column's name, then a line for each identity.
//
// Cluster ports of control nodes take joiners, who have no certificate yet, but nobody
// else without a good one. Admins' certificates open calls of operators. Workers take
// calls of gateways and links of workers alone.
const howFar = `
identity               ctl-status ctl-backup ctl-key ctl-raft ctl-join ctl-http1 ctl-none adm-status adm-key wrk-generate wrk-link wrk-raft wrk-join wrk-http1
none                   shut       shut       shut    shut     in       shut      shut     shut       shut    shut         shut     shut     shut     shut
worker                 in         denied     denied  shut     in       shut      shut     denied     denied  denied       in       shut     shut     shut
gateway                in         denied     denied  shut     in       shut      shut     denied     denied  in           denied   shut     shut     shut
control                in         in         denied  in       in       shut      shut     denied     denied  denied       denied   shut     shut     shut
admin                  in         in         in      shut     in       shut      shut     in         in      denied       denied   shut     shut     shut
other-clusters-control shut       shut       shut    shut     in       shut      shut     shut       shut    shut         shut     shut     shut     shut
other-cas-gateway      shut       shut       shut    shut     in       shut      shut     shut       shut    shut         shut     shut     shut     shut
other-cas-admin        shut       shut       shut    shut     in       shut      shut     shut       shut    shut         shut     shut     shut     shut
removed-worker         shut       shut       shut    shut     in       shut      shut     shut       shut    shut         shut     shut     shut     shut
expired-admin          shut       shut       shut    shut     in       shut      shut     shut       shut    shut         shut     shut     shut     shut
expired-gateway        shut       shut       shut    shut     in       shut      shut     shut       shut    shut         shut     shut     shut     shut
expired-control        shut       shut       shut    shut     in       shut      shut     shut       shut    shut         shut     shut     shut     shut
`

// Every port and protocol against every identity: who gets how far, and that every
// refusal is in the log of the process that refuses.
func matrix(w *town) {
	t := w.t
	identities := w.identities()
	ways := w.ways()
	lines := strings.Split(strings.TrimSpace(howFar), "\n")
	columns := strings.Fields(lines[0])[1:]
	if len(columns) != len(ways) || len(lines)-1 != len(identities) {
		t.Fatalf("the matrix has %d columns for %d ways, and %d lines for %d identities", len(columns), len(ways), len(lines)-1, len(identities))
	}
	for _, line := range lines[1:] {
		cells := strings.Fields(line)
		certificate, known := identities[cells[0]]
		if !known {
			t.Fatalf("who is %s?", cells[0])
		}
		for i, want := range cells[1:] {
			to := ways[i]
			if to.name != columns[i] {
				t.Fatalf("column %d is %s, way %s", i, columns[i], to.name)
			}
			before := w.logs[to.process].refusals()
			if got := w.try(to, certificate); got != want {
				t.Errorf("%s at %s: %s, want %s", cells[0], to.name, got, want)
			}
			if want != in {
				await(t, fmt.Sprintf("the line in the log of %s that %s was refused at %s", to.process, cells[0], to.name), func() bool {
					return w.logs[to.process].refusals() > before
				})
			}
		}
	}
}

func (w *town) identities() map[string]*tls.Certificate {
	other, err := identity.NewAuthority(w.name(cluster.Admin, "x").Cluster, time.Now())
	if err != nil {
		w.t.Fatal(err)
	}
	of := func(role cluster.Role, node string, age time.Duration) *tls.Certificate {
		return issue(w.t, w.authority, w.name(role, node), age)
	}
	foreign := w.name(cluster.Control, "c9")
	foreign.Cluster = "another"
	old := identity.NodeLife + time.Hour
	out := map[string]*tls.Certificate{
		"none":   nil,
		"worker": of(cluster.Worker, "w1", 0), "gateway": of(cluster.Gateway, "g9", 0), "control": of(cluster.Control, "c9", 0), "admin": of(cluster.Admin, "a9", 0),
		"other-clusters-control": issue(w.t, w.authority, foreign, 0),
		"other-cas-gateway":      issue(w.t, other, w.name(cluster.Gateway, "g9"), 0),
		"other-cas-admin":        issue(w.t, other, w.name(cluster.Admin, "a9"), 0),
		"removed-worker":         w.removed("gone"),
		"expired-admin":          of(cluster.Admin, "a9", old), "expired-gateway": of(cluster.Gateway, "g9", old), "expired-control": of(cluster.Control, "c9", old),
	}
	// The worker hears of the removal a moment after the control nodes.
	gone := way{process: "worker", addr: w.worker.Addr(), protocol: identity.ProtocolHTTP}
	await(w.t, "the removal at the worker", func() bool { return w.try(gone, out["removed-worker"]) == shut })
	second := way{process: "second", addr: w.admin.String(), protocol: identity.ProtocolHTTP}
	await(w.t, "the removal at the second control node", func() bool { return w.try(second, out["removed-worker"]) == shut })
	return out
}

func (w *town) ways() []way {
	ctl, adm, wrk := w.control.Addr(), w.admin.String(), w.worker.Addr()
	h2 := identity.ProtocolHTTP
	return []way{
		{"ctl-status", "control", ctl, h2, cluster.PathStatus, "control"},
		{"ctl-backup", "control", ctl, h2, cluster.PathBackup, "control"},
		{"ctl-key", "control", ctl, h2, operator.PathKeys, "control"},
		{"ctl-raft", "control", ctl, identity.ProtocolRaft, "", ""},
		{"ctl-join", "control", ctl, identity.ProtocolJoin, "", ""},
		{"ctl-http1", "control", ctl, "http/1.1", "", ""},
		{"ctl-none", "control", ctl, "", "", ""},
		{"adm-status", "second", adm, h2, cluster.PathStatus, "control"},
		{"adm-key", "second", adm, h2, operator.PathKeys, "control"},
		{"wrk-generate", "worker", wrk, h2, generate.Path, w.replica()},
		{"wrk-link", "worker", wrk, h2, peer.Path, w.replica()},
		{"wrk-raft", "worker", wrk, identity.ProtocolRaft, "", ""},
		{"wrk-join", "worker", wrk, identity.ProtocolJoin, "", ""},
		{"wrk-http1", "worker", wrk, "http/1.1", "", ""},
	}
}

// try says how far a certificate gets.
func (w *town) try(to way, certificate *tls.Certificate) string {
	w.t.Helper()
	cfg := &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}
	if to.protocol != "" {
		cfg.NextProtos = []string{to.protocol}
	}
	if certificate != nil {
		cfg.Certificates = []tls.Certificate{*certificate}
	}
	dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: patience}, Config: cfg}
	conn, err := dialer.DialContext(w.t.Context(), "tcp", to.addr)
	if err != nil {
		return shut
	}
	defer func() { _ = conn.Close() }()
	if conn.(*tls.Conn).ConnectionState().NegotiatedProtocol != to.protocol {
		return shut
	}
	if to.path != "" {
		return w.call(to, conn)
	}
	// A TLS 1.3 client learns with its first read that it was refused. A server that waits
	// for it to speak has let it in.
	if err := conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		w.t.Fatal(err)
	}
	_, err = conn.Read(make([]byte, 1))
	var timeout net.Error
	if err == nil || errors.As(err, &timeout) && timeout.Timeout() {
		return in
	}
	return shut
}

// call makes the call of a way that has one.
func (w *town) call(to way, conn net.Conn) string {
	w.t.Helper()
	//lint:ignore SA1019 net/http dials by itself; this connection is there already.
	h2, err := new(http2.Transport).NewClientConn(conn)
	if err != nil {
		return shut
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+to.host+to.path, bytes.NewReader([]byte("{}")))
	if err != nil {
		w.t.Fatal(err)
	}
	response, err := h2.RoundTrip(request)
	if err != nil {
		return shut
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode == http.StatusForbidden {
		return denied
	}
	return in
}

// The ports without TLS: what clients get at a gateway by their key, and that the
// others tell nothing but metrics.
func keys(w *town) {
	t := w.t
	good, revoked := w.key(operator.KeyRequest{}).Text, w.key(operator.KeyRequest{})
	soon := w.key(operator.KeyRequest{Expires: time.Now().Add(2 * time.Second)}).Text
	w.must(cluster.KindRevokeKey, cluster.Name{Name: revoked.Key.ID})
	gateway := "http://" + w.gateway.Addr().String()
	status := func(url, key string) int {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if key != "" {
			request.Header.Set("Authorization", "Bearer "+key)
		}
		request.Close = true
		response, err := http.DefaultTransport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = response.Body.Close() }()
		_, _ = io.Copy(io.Discard, response.Body)
		return response.StatusCode
	}
	models := gateway + "/v1/models"
	await(t, "the key", func() bool { return status(models, good) == http.StatusOK })
	await(t, "the end of the key that expires", func() bool { return status(models, soon) == http.StatusUnauthorized })
	for name, key := range map[string]string{"none": "", "garbage": "x", "long": strings.Repeat("k", 4096), "revoked": revoked.Text, "changed": good[:len(good)-1] + "#", "token": w.token(cluster.Gateway, time.Hour, 1).Reveal()} {
		before := w.logs["gateway"].String()
		if got := status(models, key); got != http.StatusUnauthorized {
			t.Errorf("%s: %d", name, got)
		}
		await(t, "the line about "+name, func() bool { return len(w.logs["gateway"].String()) > len(before) })
	}
	for url, want := range map[string][2]int{ // without a key, with a good one
		gateway + "/healthz": {http.StatusOK, http.StatusOK}, gateway + "/readyz": {http.StatusOK, http.StatusOK},
		// It has a port of its own here.
		gateway + "/metrics":        {http.StatusUnauthorized, http.StatusNotFound},
		gateway + generate.Path:     {http.StatusUnauthorized, http.StatusNotFound},
		gateway + peer.Path:         {http.StatusUnauthorized, http.StatusNotFound},
		gateway + operator.PathKeys: {http.StatusUnauthorized, http.StatusNotFound},
		"http://" + w.control.MetricsAddr().String() + cluster.PathStatus: {http.StatusNotFound, http.StatusNotFound},
		"http://" + w.control.MetricsAddr().String() + "/metrics":         {http.StatusOK, http.StatusOK},
		"http://" + w.gateway.MetricsAddr().String() + "/v1/models":       {http.StatusNotFound, http.StatusNotFound},
		"http://" + w.gateway.MetricsAddr().String() + "/metrics":         {http.StatusOK, http.StatusOK},
		"http://" + w.worker.MetricsAddr().String() + generate.Path:       {http.StatusNotFound, http.StatusNotFound},
		"http://" + w.worker.MetricsAddr().String() + "/metrics":          {http.StatusOK, http.StatusOK},
	} {
		if got := [2]int{status(url, ""), status(url, good)}; got != want {
			t.Errorf("%s: %d, want %d", url, got, want)
		}
	}
}
