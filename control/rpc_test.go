package control_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/controltest"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/internal/identity"
)

func command(t *testing.T, kind cluster.Kind, body any) cluster.Command {
	t.Helper()
	c, err := cluster.NewCommand(kind, "", time.Now(), body)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func node(id string, role cluster.Role) cluster.Node {
	return cluster.Node{ID: id, Role: role, Addr: "10.0.0.1:7000", Build: "test", Protocol: cluster.Protocol}
}

// Every role may give its own commands, and no others.
func TestWhoMayPropose(t *testing.T) {
	t.Parallel()
	c := controltest.New(t, 1, nil)
	yes, no := true, false
	c.Propose(c.Leader(), cluster.KindPutNode, node("w2", cluster.Worker))
	for _, test := range []struct {
		name    string
		kind    cluster.Kind
		body    any
		allowed []cluster.Role // who is called w1, g1, a1, c1
	}{
		{"own start of a worker", cluster.KindPutNode, node("w1", cluster.Worker), []cluster.Role{cluster.Worker, cluster.Control}},
		{"own start of a gateway", cluster.KindPutNode, node("g1", cluster.Gateway), []cluster.Role{cluster.Gateway, cluster.Control}},
		{"start of another worker", cluster.KindPutNode, node("w2", cluster.Worker), []cluster.Role{cluster.Control}},
		{"own drain of a worker", cluster.KindNodeState, cluster.NodeState{ID: "w1", Draining: &yes}, []cluster.Role{cluster.Worker, cluster.Admin, cluster.Control}},
		{"drain of another worker", cluster.KindNodeState, cluster.NodeState{ID: "w2", Draining: &no}, []cluster.Role{cluster.Admin, cluster.Control}},
		{"own loss", cluster.KindNodeState, cluster.NodeState{ID: "w1", Lost: &no}, []cluster.Role{cluster.Control}},
		{"own report", cluster.KindReport, cluster.Report{Node: "w1"}, []cluster.Role{cluster.Worker, cluster.Control}},
		{"report of another", cluster.KindReport, cluster.Report{Node: "w2"}, []cluster.Role{cluster.Control}},
		{"deployment", cluster.KindPutDeployment, deployment("d"), []cluster.Role{cluster.Admin, cluster.Control}},
		{"use of a token", cluster.KindUseToken, cluster.UseToken{ID: "t"}, []cluster.Role{cluster.Control}},
		{"placement", cluster.KindPlace, cluster.Place{}, []cluster.Role{cluster.Control}},
		{"another cluster", cluster.KindInit, cluster.Cluster{ID: "x"}, []cluster.Role{cluster.Control}},
	} {
		t.Run(test.name, func(t *testing.T) {
			for role, id := range map[cluster.Role]string{cluster.Worker: "w1", cluster.Gateway: "g1", cluster.Admin: "a1", cluster.Control: "c1"} {
				_, err := c.Client(role, id).Propose(t.Context(), command(t, test.kind, test.body))
				want := true
				for _, r := range test.allowed {
					want = want && r != role
				}
				if got := errors.Is(err, client.ErrForbidden); got != want {
					t.Errorf("%s: error %v, refused should be %v", role, err, want)
				}
			}
		})
	}
}

// Every call is refused to those who have no business with it.
func TestWhoMayCall(t *testing.T) {
	t.Parallel()
	c := controltest.New(t, 1, nil)
	c.Propose(c.Leader(), cluster.KindPutNode, node("gone", cluster.Worker))
	c.Propose(c.Leader(), cluster.KindRemoveNode, cluster.Name{Name: "gone"})
	every := []cluster.Role{cluster.Control, cluster.Worker, cluster.Gateway, cluster.Admin}
	calls := map[string][]cluster.Role{
		cluster.PathPropose:   every,
		cluster.PathHeartbeat: {cluster.Control, cluster.Worker, cluster.Gateway},
		cluster.PathLoads:     every,
		cluster.PathSlices:    {cluster.Control, cluster.Gateway},
		cluster.PathMeasures:  {cluster.Control, cluster.Worker},
		cluster.PathRenew:     every,
		cluster.PathGossip:    {cluster.Control, cluster.Worker, cluster.Gateway},
		cluster.PathStatus:    every,
		cluster.PathBackup:    {cluster.Control, cluster.Admin},
		cluster.PathRestore:   {cluster.Control, cluster.Admin},
		cluster.PathTransfer:  {cluster.Control, cluster.Admin},
		cluster.PathAddress:   {cluster.Control},
		cluster.PathIndex:     every,
	}
	peers := map[cluster.Role]*client.Peers{}
	for _, role := range every {
		p := client.NewPeers(c.Credentials(role, "x", nil), nil, nil)
		defer func() { _ = p.Close() }()
		peers[role] = p
	}
	addr := c.Leader().Addr
	for path, roles := range calls {
		for role, p := range peers {
			// An empty body is no call: who may call hears that it cannot be read.
			response, err := p.Do(t.Context(), "", addr, http.MethodPost, path, nil)
			if err == nil {
				_ = response.Body.Close()
			}
			want := true
			for _, r := range roles {
				want = want && r != role
			}
			if got := errors.Is(err, client.ErrForbidden); got != want {
				t.Errorf("%s by %s: error %v, refused should be %v", path, role, err, want)
			}
		}
	}
}

// Nobody gets as far as a call, on any protocol, without a good certificate.
func TestIdentitiesAndProtocols(t *testing.T) {
	t.Parallel()
	c := controltest.New(t, 1, nil)
	c.Propose(c.Leader(), cluster.KindPutNode, node("gone", cluster.Worker))
	c.Propose(c.Leader(), cluster.KindRemoveNode, cluster.Name{Name: "gone"})
	other, err := identity.NewAuthority(controltest.ID, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	issue := func(a *identity.Authority, role cluster.Role, id string, age time.Duration) *tls.Certificate {
		key, request, err := identity.NewKey()
		if err != nil {
			t.Fatal(err)
		}
		certificate, err := a.Issue(request, identity.Name{Cluster: controltest.ID, Role: role, Node: id}, time.Now().Add(-age))
		if err != nil {
			t.Fatal(err)
		}
		text, err := identity.EncodeKey(key)
		if err != nil {
			t.Fatal(err)
		}
		pair, err := tls.X509KeyPair(certificate, text)
		if err != nil {
			t.Fatal(err)
		}
		return &pair
	}
	for name, test := range map[string]struct {
		certificate *tls.Certificate
		allowed     []string
	}{
		"none":                    {nil, []string{identity.ProtocolJoin}},
		"worker":                  {issue(c.Authority, cluster.Worker, "w", 0), []string{identity.ProtocolJoin, identity.ProtocolHTTP}},
		"gateway":                 {issue(c.Authority, cluster.Gateway, "g", 0), []string{identity.ProtocolJoin, identity.ProtocolHTTP}},
		"admin":                   {issue(c.Authority, cluster.Admin, "a", 0), []string{identity.ProtocolJoin, identity.ProtocolHTTP}},
		"control":                 {issue(c.Authority, cluster.Control, "c9", 0), []string{identity.ProtocolJoin, identity.ProtocolHTTP, identity.ProtocolRaft}},
		"control of another CA":   {issue(other, cluster.Control, "c9", 0), []string{identity.ProtocolJoin}},
		"removed worker":          {issue(c.Authority, cluster.Worker, "gone", 0), []string{identity.ProtocolJoin}},
		"control, expired":        {issue(c.Authority, cluster.Control, "c9", identity.NodeLife+time.Hour), []string{identity.ProtocolJoin}},
		"control, not valid yet":  {issue(c.Authority, cluster.Control, "c9", -time.Hour), []string{identity.ProtocolJoin}},
		"worker of another CA":    {issue(other, cluster.Worker, "w", 0), []string{identity.ProtocolJoin}},
		"worker, name of control": {issue(c.Authority, cluster.Worker, "c1", 0), []string{identity.ProtocolJoin, identity.ProtocolHTTP}},
	} {
		for _, protocol := range []string{identity.ProtocolHTTP, identity.ProtocolRaft, identity.ProtocolJoin, "http/1.1", ""} {
			want := false
			for _, p := range test.allowed {
				want = want || p == protocol
			}
			if got := reaches(t, c.Leader().Addr, protocol, test.certificate); got != want {
				t.Errorf("%s on %q: got in %v, want %v", name, protocol, got, want)
			}
		}
	}
}

// reaches says whether a connection survives the handshake.
func reaches(t *testing.T, addr, protocol string, certificate *tls.Certificate) bool {
	t.Helper()
	cfg := &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}
	if protocol != "" {
		cfg.NextProtos = []string{protocol}
	}
	if certificate != nil {
		cfg.Certificates = []tls.Certificate{*certificate}
	}
	conn, err := tls.Dial("tcp", addr, cfg)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	if conn.ConnectionState().NegotiatedProtocol != protocol {
		return false
	}
	// A TLS 1.3 client learns with its first read that it was refused. Who was not is
	// answered, or hung up on in order: no protocol begins with this byte.
	if err := conn.SetDeadline(time.Now().Add(controltest.Patience)); err != nil {
		t.Fatal(err)
	}
	_, err = conn.Write([]byte("\n"))
	if err == nil {
		_, err = conn.Read(make([]byte, 1))
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%q: no answer", protocol)
	}
	return err == nil || errors.Is(err, io.EOF)
}

// What cannot be read, or is too long, is refused with a reason.
func TestBadCalls(t *testing.T) {
	t.Parallel()
	c := controltest.New(t, 1, nil)
	p := client.NewPeers(c.Credentials(cluster.Admin, "a", nil), nil, nil)
	defer func() { _ = p.Close() }()
	large := bytes.Repeat([]byte{' '}, cluster.MaxCall+1)
	for name, body := range map[string][]byte{
		"empty": nil, "no JSON": []byte("x"), "two values": []byte("{} {}"), "too long": large, "unknown kind": []byte(`{"v":1,"kind":"dance","time":"2026-01-02T03:04:05Z","body":{}}`),
		"later version": []byte(`{"v":9,"kind":"put-deployment","time":"2026-01-02T03:04:05Z","body":{}}`),
	} {
		_, err := p.Do(t.Context(), "", c.Leader().Addr, http.MethodPost, cluster.PathPropose, body)
		if err == nil || errors.Is(err, client.ErrInternal) || errors.Is(err, client.ErrNoLeader) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	for path, method := range map[string]string{cluster.PathPropose: http.MethodGet, cluster.PathWatch: http.MethodGet, "/v1/cluster/dance": http.MethodPost} {
		if _, err := p.Do(t.Context(), "", c.Leader().Addr, method, path, nil); err == nil {
			t.Errorf("%s %s was answered", method, path)
		}
	}
}

// A call that comes without TLS is nobody's.
func TestCallWithoutTLS(t *testing.T) {
	t.Parallel()
	c := controltest.New(t, 1, nil)
	w := &recorder{header: http.Header{}}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://x"+cluster.PathStatus, bytes.NewReader([]byte("{}")))
	if err != nil {
		t.Fatal(err)
	}
	c.Leader().Handler().ServeHTTP(w, r)
	if w.status != http.StatusForbidden {
		t.Errorf("status %d, want 403", w.status)
	}
}

type recorder struct {
	header http.Header
	status int
	bytes.Buffer
}

func (r *recorder) Header() http.Header { return r.header }
func (r *recorder) WriteHeader(s int)   { r.status = s }

// A certificate is renewed for the caller's own name, and the old connections go.
func TestRenew(t *testing.T) {
	t.Parallel()
	c := controltest.New(t, 1, nil)
	credentials := c.Credentials(cluster.Worker, "w1", nil)
	w, err := client.New(client.Config{Credentials: credentials, Control: c.Addrs()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	before := credentials.Expires()
	certificate, key, cas, err := w.Renew(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	renewed, err := identity.NewCredentials(certificate, key, cas, nil)
	if err != nil {
		t.Fatal(err)
	}
	if renewed.Name() != credentials.Name() || renewed.Expires().Before(before) {
		t.Errorf("renewed for %s until %s", renewed.Name(), renewed.Expires())
	}
	if _, err := w.Status(t.Context()); err != nil {
		t.Errorf("after the renewal: %v", err)
	}
}

// A removed node is cut off: its calls, its watch, its connections.
func TestRemoved(t *testing.T) {
	t.Parallel()
	c := controltest.New(t, 1, nil)
	w := c.Client(cluster.Worker, "w1")
	if _, err := w.Propose(t.Context(), command(t, cluster.KindPutNode, node("w1", cluster.Worker))); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- w.Watch(t.Context()) }()
	if _, err := w.View().WaitFor(t.Context(), func(s *state.State) bool { _, ok := s.Node("w1"); return ok }); err != nil {
		t.Fatal(err)
	}
	c.Propose(c.Leader(), cluster.KindRemoveNode, cluster.Name{Name: "w1"})
	if _, err := w.Heartbeat(t.Context(), cluster.Beat{Node: "w1"}); !errors.Is(err, client.ErrRemoved) {
		t.Errorf("heartbeat: %v, want ErrRemoved", err)
	}
	if err := <-ended; !errors.Is(err, client.ErrRemoved) {
		t.Errorf("watch: %v, want ErrRemoved", err)
	}
}

// Backups come back as they were, are checked, and belong to one cluster.
func TestBackup(t *testing.T) {
	t.Parallel()
	c := controltest.New(t, 3, nil)
	admin := c.Client(cluster.Admin, "a")
	c.Propose(c.Leader(), cluster.KindPutDeployment, deployment("kept"))
	follower, err := client.New(client.Config{Credentials: c.Credentials(cluster.Admin, "a", nil), Control: []string{c.Follower().Addr}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = follower.Close() }()
	var backup []byte
	c.Poll("a backup", func() bool {
		backup, err = follower.Backup(t.Context())
		if err != nil && !errors.Is(err, client.ErrNoLeader) {
			t.Fatal(err)
		}
		return err == nil
	})
	c.Propose(c.Leader(), cluster.KindDeleteDeployment, cluster.Name{Name: "kept"})
	c.Propose(c.Leader(), cluster.KindPutDeployment, deployment("new"))
	c.Await("the new deployment", has("new"))

	watching, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- admin.Watch(watching) }()
	if _, err := admin.View().WaitFor(t.Context(), has("new")); err != nil {
		t.Fatal(err)
	}
	damaged := bytes.Replace(backup, []byte("kept"), []byte("kepT"), 1)
	if err := admin.Restore(t.Context(), damaged); err == nil {
		t.Error("a damaged backup was restored")
	}
	c.Poll("the restored backup", func() bool {
		err := follower.Restore(t.Context(), backup)
		if err != nil && !errors.Is(err, client.ErrNoLeader) {
			t.Fatal(err)
		}
		return err == nil
	})
	restored := func(s *state.State) bool { return has("kept")(s) && !has("new")(s) }
	c.Await("the restored state", restored)
	if _, err := admin.View().WaitFor(t.Context(), restored); err != nil {
		t.Errorf("the watch did not follow: %v", err)
	}
	index := c.Propose(c.Leader(), cluster.KindPutDeployment, deployment("after"))
	if s, err := admin.View().Wait(t.Context(), index); err != nil || !has("after")(s) {
		t.Errorf("after the restore: %v", err)
	}
	stop()
	<-ended
}

// Nothing is said to those who do not speak TLS.
func TestPlainHTTPIsRefused(t *testing.T) {
	t.Parallel()
	c := controltest.New(t, 1, nil)
	conn, err := net.Dial("tcp", c.Leader().Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(conn)
	if bytes.HasPrefix(text, []byte("HTTP/")) {
		t.Errorf("answered with %q", text)
	}
}

// Gateways get slices of the rates of keys that there are, from any control node.
func TestSlices(t *testing.T) {
	t.Parallel()
	c := controltest.New(t, 3, nil)
	c.Propose(c.Leader(), cluster.KindPutKey, cluster.Key{ID: "k", MAC: make([]byte, 32), RequestsPerMinute: 1000})
	c.Propose(c.Leader(), cluster.KindPutKey, cluster.Key{ID: "revoked", MAC: make([]byte, 32), RequestsPerMinute: 1000})
	c.Propose(c.Leader(), cluster.KindRevokeKey, cluster.Name{Name: "revoked"})
	slice := func(g *client.Client, ask cluster.SliceAsk) (out cluster.Slice, err error) {
		c.Poll("a leader's word", func() bool { out, err = g.Slice(t.Context(), ask); return !errors.Is(err, client.ErrNoLeader) })
		return out, err
	}
	// The leader is new: the one before it was so before this began.
	old, admin := c.Leader(), c.Client(cluster.Admin, "a")
	began := time.Now()
	c.Poll("a new leader", func() bool {
		_ = admin.Transfer(t.Context(), "") // it fails while nobody else is there
		leader, _ := old.Leader()
		return leader != "" && leader != old.ID
	})
	given := map[uint64]int64{} // by reign: on a busy machine there may be another one meanwhile
	for i, n := range c.Nodes() {
		id := string(rune('a' + i))
		g, err := client.New(client.Config{Credentials: c.Credentials(cluster.Gateway, id, nil), Control: []string{n.Addr}})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = g.Close() }()
		s, err := slice(g, cluster.SliceAsk{Gateway: id, Key: "k", Want: cluster.Amount{Requests: 30}})
		if err != nil || s.Leader != c.Leader().ID || s.Term == 0 {
			t.Errorf("slice %+v, %v", s, err)
		}
		given[s.Term] += s.Given.Requests
		for _, bad := range []struct {
			ask  cluster.SliceAsk
			want error
		}{
			{cluster.SliceAsk{Gateway: id, Key: "none"}, state.ErrNotFound},
			{cluster.SliceAsk{Gateway: id, Key: "revoked"}, state.ErrNotFound},
			{cluster.SliceAsk{Gateway: "other", Key: "k"}, client.ErrForbidden},
			{cluster.SliceAsk{Gateway: id, Key: "k", Want: cluster.Amount{Requests: -1}}, client.ErrBadRequest},
		} {
			if _, err := slice(g, bad.ask); !errors.Is(err, bad.want) {
				t.Errorf("%+v: %v, want %v", bad.ask, err, bad.want)
			}
		}
	}
	const fresh = 3 * time.Second // of a leader; on a busy machine it may have passed
	for term, all := range given {
		if (all > 50 || all < 50 && len(given) == 1) && time.Since(began) < fresh {
			t.Errorf("%d were given in term %d, want a twentieth of the rate", all, term)
		}
	}
}
