package identity

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// issued is a node with its credentials.
func issued(t testing.TB, a *Authority, name Name, now time.Time) *Credentials {
	t.Helper()
	key, request, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := a.Issue(request, name, now)
	if err != nil {
		t.Fatal(err)
	}
	keyText, err := EncodeKey(key)
	if err != nil {
		t.Fatal(err)
	}
	ca, _, err := a.PEM()
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewCredentials(certificate, keyText, [][]byte{ca}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func authority(t testing.TB, id string) *Authority {
	t.Helper()
	a, err := NewAuthority(id, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// handshake joins two sides and sends a byte each way, since TLS 1.3 tells a
// client of a refusal at its first read.
func handshake(t *testing.T, server, client *tls.Config) (serverErr, clientErr error) {
	t.Helper()
	a, b := net.Pipe()
	defer func() { _, _ = a.Close(), b.Close() }()
	deadline := time.Now().Add(10 * time.Second)
	if err := errors.Join(a.SetDeadline(deadline), b.SetDeadline(deadline)); err != nil {
		t.Fatal(err)
	}
	s, c := tls.Server(a, server), tls.Client(b, client)
	done := make(chan error, 1)
	go func() {
		err := s.Handshake()
		if err == nil {
			_, err = s.Write([]byte{1})
		}
		_ = a.Close()
		done <- err
	}()
	_, clientErr = c.Read(make([]byte, 1))
	_ = b.Close()
	return <-done, clientErr
}

// Every identity against every protocol of the cluster port.
func TestWhoMayConnect(t *testing.T) {
	now := time.Now()
	ca, other := authority(t, "c1"), authority(t, "c2")
	name := func(role cluster.Role, node string) Name { return Name{"c1", role, node} }
	server := issued(t, ca, name(cluster.Control, "s1"), now)
	server.removed = func(node string) bool { return node == "gone" }
	identities := map[string]*Credentials{
		"control": issued(t, ca, name(cluster.Control, "s2"), now),
		"worker":  issued(t, ca, name(cluster.Worker, "w1"), now),
		"gateway": issued(t, ca, name(cluster.Gateway, "g1"), now),
		"admin":   issued(t, ca, name(cluster.Admin, "a1"), now),
		"removed": issued(t, ca, name(cluster.Control, "gone"), now),
		"expired": issued(t, ca, name(cluster.Control, "old"), now.Add(-NodeLife-time.Hour)),
		"early":   issued(t, ca, name(cluster.Control, "new"), now.Add(time.Hour)),
		// Signed by another CA, and signed by ours for another cluster.
		"foreign":       issued(t, other, name(cluster.Control, "s3"), now),
		"other cluster": issued(t, ca, Name{"c2", cluster.Control, "s4"}, now),
		"none":          nil,
	}
	allowed := map[string][]string{
		ProtocolHTTP: {"control", "worker", "gateway", "admin"},
		ProtocolRaft: {"control"},
		"h3":         {},
	}
	for protocol, good := range allowed {
		for who, c := range identities {
			t.Run(protocol+"/"+who, func(t *testing.T) {
				client := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol}, MinVersion: tls.VersionTLS13}
				if c != nil {
					client = c.Client(protocol, "", cluster.Control)
					client.VerifyConnection = nil // the server's verdict alone is asked
				}
				serverErr, clientErr := handshake(t, server.Server(ProtocolHTTP, ProtocolRaft, ProtocolJoin), client)
				want := false
				for _, g := range good {
					want = want || g == who
				}
				if (serverErr == nil && clientErr == nil) != want {
					t.Errorf("server %v, client %v; want it let in: %t", serverErr, clientErr, want)
				}
			})
		}
	}
}

// A client looks at the name of who answers.
func TestWhoMayAnswer(t *testing.T) {
	now := time.Now()
	ca := authority(t, "c1")
	worker := issued(t, ca, Name{"c1", cluster.Worker, "w1"}, now)
	client := issued(t, ca, Name{"c1", cluster.Gateway, "g1"}, now)
	for _, c := range []struct {
		name string
		node string
		role cluster.Role
		from *Credentials
		ok   bool
	}{
		{"right", "w1", cluster.Worker, worker, true},
		{"any node", "", cluster.Worker, worker, true},
		{"another node", "w2", cluster.Worker, worker, false},
		{"another role", "w1", cluster.Control, worker, false},
		{"another CA", "w1", cluster.Worker, issued(t, authority(t, "c1"), Name{"c1", cluster.Worker, "w1"}, now), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := client.Client(ProtocolHTTP, c.node, c.role)
			server := c.from.Server(ProtocolHTTP)
			server.ClientAuth, server.VerifyConnection = tls.NoClientCert, nil
			if _, err := handshake(t, server, config); (err == nil) != c.ok {
				t.Errorf("error %v, want none: %t", err, c.ok)
			}
		})
	}
}

// Of the log's connections alone one may go to a control node that was removed, and to nobody
// else in its place.
func TestWhoMayAnswerAsMember(t *testing.T) {
	now := time.Now()
	ca := authority(t, "c1")
	client := issued(t, ca, Name{"c1", cluster.Control, "s1"}, now)
	client.removed = func(node string) bool { return node == "gone" || node == "other" }
	member := func(node string) *Credentials { return issued(t, ca, Name{"c1", cluster.Control, node}, now) }
	for _, c := range []struct {
		name   string
		config *tls.Config
		from   *Credentials
		ok     bool
	}{
		{"member", client.ClientOfMember("s2"), member("s2"), true},
		{"removed member", client.ClientOfMember("gone"), member("gone"), true},
		{"removed", client.Client(ProtocolRaft, "gone", cluster.Control), member("gone"), false},
		{"removed, for calls", client.Client(ProtocolHTTP, "gone", cluster.Control), member("gone"), false},
		{"another one", client.ClientOfMember("s2"), member("s3"), false},
		{"another removed one", client.ClientOfMember("gone"), member("other"), false},
		{"no control node", client.ClientOfMember("gone"), issued(t, ca, Name{"c1", cluster.Worker, "gone"}, now), false},
		{"expired", client.ClientOfMember("gone"), issued(t, ca, Name{"c1", cluster.Control, "gone"}, now.Add(-NodeLife-time.Hour)), false},
		{"another CA", client.ClientOfMember("gone"), issued(t, authority(t, "c1"), Name{"c1", cluster.Control, "gone"}, now), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := c.from.Server(c.config.NextProtos...)
			server.ClientAuth, server.VerifyConnection = tls.NoClientCert, nil
			if _, err := handshake(t, server, c.config); (err == nil) != c.ok {
				t.Errorf("error %v, want none: %t", err, c.ok)
			}
		})
	}
}

// A joiner speaks to the cluster of its token alone, and only if a control node answers.
func TestPin(t *testing.T) {
	now := time.Now()
	ca := authority(t, "c1")
	token, err := NewJoinToken(PublicKeyHash(ca.Certificate))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		server *Credentials
		ok     bool
	}{
		{"control node", issued(t, ca, Name{"c1", cluster.Control, "s1"}, now), true},
		{"worker in its place", issued(t, ca, Name{"c1", cluster.Worker, "w1"}, now), false},
		{"somebody in between", issued(t, authority(t, "c1"), Name{"c1", cluster.Control, "s1"}, now), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			serverErr, clientErr := handshake(t, c.server.Server(ProtocolHTTP, ProtocolRaft, ProtocolJoin), Pinned(token))
			if (clientErr == nil) != c.ok {
				t.Errorf("server %v, client %v, want it trusted: %t", serverErr, clientErr, c.ok)
			}
		})
	}
	// A leaf of another CA with the token's CA pasted behind it.
	fake := issued(t, authority(t, "c1"), Name{"c1", cluster.Control, "s1"}, now)
	own := fake.current.Load().own
	own.Certificate = [][]byte{own.Certificate[0], ca.Certificate.Raw}
	server := &tls.Config{Certificates: []tls.Certificate{own}, NextProtos: []string{ProtocolJoin}, MinVersion: tls.VersionTLS13}
	if _, err := handshake(t, server, Pinned(token)); !errors.Is(err, ErrPeer) {
		t.Errorf("a pasted CA: %v, want ErrPeer", err)
	}
}

func TestNames(t *testing.T) {
	for _, c := range []struct {
		uri string
		ok  bool
	}{
		{"tr://c1/worker/w-1.a_b", true},
		{"tr://c1/worker", false},
		{"tr://c1/worker/", false},
		{"tr://c1/worker/a/b", false},
		{"tr://c1/root/w1", false},
		{"tr://c1/worker/w1?x=1", false},
		{"tr://c1/worker/w1#x", false},
		{"tr://user@c1/worker/w1", false},
		{"tr://c1:7000/worker/w1", false},
		{"tr://c1/worker/%77", false},
		{"https://c1/worker/w1", false},
	} {
		u, err := url.Parse(c.uri)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := NameOf(&x509.Certificate{URIs: []*url.URL{u}}); (err == nil) != c.ok {
			t.Errorf("%s: error %v, want none: %t", c.uri, err, c.ok)
		}
	}
	if _, err := NameOf(new(x509.Certificate)); !errors.Is(err, ErrName) {
		t.Errorf("no URI: %v", err)
	}
}

func TestTokens(t *testing.T) {
	token, err := NewJoinToken([32]byte{1, 2, 3})
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseJoinToken(token.Reveal() + "\n")
	if err != nil || got != token || !got.Matches(token.Hash()) {
		t.Errorf("got %v, err %v", got, err)
	}
	secret := token.Reveal()[strings.LastIndexByte(token.Reveal(), '.')+1:]
	for _, shown := range []string{token.String(), fmt.Sprintf("%v %+v %#v %s", token, token, token, &token), token.LogValue().String()} {
		if strings.Contains(shown, secret) {
			t.Error("the secret is shown")
		}
	}
	for _, bad := range []string{"", "trj1", "trj2" + token.Reveal()[4:], token.Reveal()[:80], token.Reveal() + "=", strings.Repeat("x", 10_000), token.Reveal() + ".x"} {
		_, err := ParseJoinToken(bad)
		if !errors.Is(err, ErrToken) || bad != "" && strings.Contains(err.Error(), bad) {
			t.Errorf("%.20q: error %v", bad, err)
		}
	}
	other, _ := NewJoinToken(token.CAHash)
	if other.Matches(token.Hash()) {
		t.Error("another token matches")
	}
}

func TestStore(t *testing.T) {
	a := authority(t, "c1")
	ca, caKey, err := a.PEM()
	if err != nil {
		t.Fatal(err)
	}
	want := &Saved{
		Cluster: "c1", Role: cluster.Control, Node: "s1", Control: []string{"a:7000"}, Addr: "a:7000",
		Certificate: []byte("certificate"), Key: []byte("key"), CAs: [][]byte{ca, ca},
		GossipKey: []byte("gossip"), AuthorityKey: caKey, Pepper: []byte("pepper"),
	}
	dir := filepath.Join(t.TempDir(), "identity")
	if _, err := Load(dir); !errors.Is(err, ErrNoIdentity) {
		t.Errorf("before: %v, want ErrNoIdentity", err)
	}
	if err := want.Save(dir); err != nil {
		t.Fatal(err)
	}
	got, err := Load(dir)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, err %v", got, err)
	}
	if _, err := ParseAuthority(got.CAs[0], got.AuthorityKey); err != nil {
		t.Error(err)
	}
	stat, err := os.Stat(dir)
	if err != nil || stat.Mode().Perm() != 0o700 {
		t.Errorf("the directory has mode %v, err %v", stat.Mode(), err)
	}
	open := filepath.Join(dir, keyFile)
	if err := os.Chmod(open, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "chmod 600 "+open) {
		t.Errorf("with an open key: %v", err)
	}
}

// A new certificate is used at once, by the same node alone.
func TestReplace(t *testing.T) {
	now := time.Now()
	ca := authority(t, "c1")
	c := issued(t, ca, Name{"c1", cluster.Worker, "w1"}, now.Add(-20*24*time.Hour))
	if !c.Renew().Before(now) || !c.Expires().After(now) {
		t.Errorf("renew %v, expires %v", c.Renew(), c.Expires())
	}
	old := c.current.Load().own.Leaf.SerialNumber
	key, request, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	keyText, _ := EncodeKey(key)
	caText, _, _ := ca.PEM()
	for _, node := range []string{"w2", "w1"} {
		certificate, err := ca.Issue(request, Name{"c1", cluster.Worker, node}, now)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Replace(certificate, keyText, [][]byte{caText}); (err == nil) != (node == "w1") {
			t.Errorf("replace by one of %s: %v", node, err)
		}
	}
	if c.current.Load().own.Leaf.SerialNumber.Cmp(old) == 0 || !c.Renew().After(now) {
		t.Error("the old certificate is still there")
	}
}

func FuzzIssue(f *testing.F) {
	a := authority(f, "c1")
	_, request, err := NewKey()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(request, "w1")
	f.Add(bytes.Repeat([]byte{0x30}, 64), "../x")
	f.Fuzz(func(t *testing.T, request []byte, node string) {
		text, err := a.Issue(request, Name{"c1", cluster.Worker, node}, time.Now())
		if err != nil {
			return
		}
		c, err := ParseCertificate(text)
		if err != nil {
			t.Fatal(err)
		}
		if name, err := NameOf(c); err != nil || name.Node != node {
			t.Fatalf("issued for %q: %v, %v", node, name, err)
		}
	})
}

func FuzzToken(f *testing.F) {
	t, err := NewJoinToken([32]byte{1})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(t.Reveal())
	f.Add("trj1...")
	f.Fuzz(func(t *testing.T, text string) {
		token, err := ParseJoinToken(text)
		if err != nil {
			return
		}
		if again, err := ParseJoinToken(token.Reveal()); err != nil || again != token {
			t.Fatalf("%v came back as %v, %v", token, again, err)
		}
	})
}
