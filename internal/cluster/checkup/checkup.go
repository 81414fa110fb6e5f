package checkup

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/internal/cluster/operator"
	"github.com/tokenrouter/tokenrouter/internal/doctor"
	"github.com/tokenrouter/tokenrouter/internal/h2"
	"github.com/tokenrouter/tokenrouter/internal/identity"
	"github.com/tokenrouter/tokenrouter/membership"
)

// Config says what to look at.
type Config struct {
	// Control are control nodes' cluster ports, host:port.
	Control []string
	// Credentials are those of a node or an operator, nil without; Token is a join token
	// for who has none yet, nil without.
	Credentials *identity.Credentials
	Token       *identity.JoinToken
	// GossipKey is the cluster's, empty for who is no node.
	GossipKey []byte
	// Ports are those that a node here would open.
	Ports []Port
}

// Port is one that a node opens.
type Port struct {
	// Name says what for, Addr where, such as ":7000"; UDP says that it needs that too.
	Name, Addr string
	UDP        bool
}

// Bounds of what is waited for and looked at.
const (
	dialTime = 3 * time.Second
	callTime = 5 * time.Second
	// maxGossip bounds the nodes whose gossip is tried.
	maxGossip = 32
)

// Clock differences, in the one second that HTTP tells: tokens and keys end by the
// leader's clock, and a certificate holds from an hour before it was made.
const (
	clockWarn = 5 * time.Second
	clockFail = 30 * time.Minute
)

// Run looks at everything, one after the other.
func Run(ctx context.Context, cfg Config) (checks []doctor.Check) {
	for _, p := range cfg.Ports {
		checks = append(checks, p.check(ctx))
	}
	answered := ""
	for _, addr := range cfg.Control {
		list, ok := cfg.control(ctx, addr)
		checks = append(checks, list...)
		if ok && answered == "" {
			answered = addr
		}
	}
	if answered == "" || cfg.Credentials == nil {
		return checks
	}
	s, leader, err := cfg.state(ctx, answered)
	if err != nil {
		return append(checks, doctor.Check{
			Name: "cluster", Status: doctor.Fail, Detail: err.Error(), Fix: "see the control node's log",
		})
	}
	checks = append(checks, checkLeader(leader))
	if len(cfg.GossipKey) > 0 {
		checks = append(checks, cfg.gossip(s)...)
	}
	return checks
}

// check opens a port and closes it again.
func (p Port) check(ctx context.Context) doctor.Check {
	c := doctor.Check{Name: "port " + p.Addr, Status: doctor.OK, Detail: p.Name + ": free"}
	var l net.ListenConfig
	tcp, err := l.Listen(ctx, "tcp", p.Addr)
	if err == nil {
		err = tcp.Close()
	}
	if err == nil && p.UDP {
		var udp net.PacketConn
		if udp, err = l.ListenPacket(ctx, "udp", p.Addr); err == nil {
			err = udp.Close()
		}
	}
	if err != nil {
		c.Status, c.Detail = doctor.Warn, p.Name+": "+err.Error()
		c.Fix = "a node here that is to have another port is told so by its flags; `ss -lntup` says who has this one"
	}
	return c
}

// control looks at one control node. ok says that it can be called.
func (c *Config) control(ctx context.Context, addr string) (checks []doctor.Check, ok bool) {
	reach := doctor.Check{Name: "control " + addr, Status: doctor.OK}
	conn, took, err := dial(ctx, addr)
	if err != nil {
		reach.Status, reach.Detail = doctor.Fail, err.Error()
		reach.Fix = "is the control node running, and does a firewall let TCP through to its cluster port?"
		var dns *net.DNSError
		if errors.As(err, &dns) {
			reach.Fix = "the name is not known here; give an address, or mend DNS or /etc/hosts"
		}
		return []doctor.Check{reach}, false
	}
	reach.Detail = fmt.Sprintf("%s answers, connected in %s", conn.RemoteAddr(), took.Round(10*time.Microsecond))
	secured, tlsOK := c.handshake(ctx, conn, addr)
	checks = []doctor.Check{reach, secured}
	if !tlsOK || c.Credentials == nil {
		return checks, tlsOK
	}
	return append(checks, c.clock(ctx, addr)), true
}

// dial connects and tells how long that took.
func dial(ctx context.Context, addr string) (net.Conn, time.Duration, error) {
	began := time.Now()
	d := net.Dialer{Timeout: dialTime}
	conn, err := d.DialContext(ctx, "tcp", addr)
	return conn, time.Since(began), err
}

// handshake sees whether the other side is a control node of the cluster, and closes the
// connection. The secret of a token is not sent.
func (c *Config) handshake(ctx context.Context, conn net.Conn, addr string) (doctor.Check, bool) {
	out := doctor.Check{Name: "tls " + addr, Status: doctor.OK}
	var cfg *tls.Config
	switch {
	case c.Credentials != nil:
		cfg = c.Credentials.Client(identity.ProtocolHTTP, "", cluster.Control)
	case c.Token != nil:
		cfg = identity.Pinned(*c.Token)
	default:
		_ = conn.Close() // nothing was sent
		out.Status, out.Detail = doctor.Warn, "who answers was not checked: there is neither an identity nor a token"
		out.Fix = "give --identity, or a join token by --token-file or TRCTL_TOKEN"
		return out, false
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	secured := tls.Client(conn, cfg)
	err := secured.HandshakeContext(ctx)
	if err == nil && c.Credentials != nil {
		// With TLS 1.3 a refusal of our certificate comes after the handshake.
		err = refusal(secured)
	}
	_ = secured.Close() // it was only looked at
	if err != nil {
		out.Status, out.Detail = doctor.Fail, err.Error()
		out.Fix = fixTLS(err)
		return out, false
	}
	s := secured.ConnectionState()
	name, err := identity.PeerName(&s)
	if err != nil {
		out.Status, out.Detail, out.Fix = doctor.Fail, err.Error(), "something else than a control node listens there"
		return out, false
	}
	out.Detail = fmt.Sprintf("control node %s of cluster %s, TLS 1.3, protocol %s", name.Node, name.Cluster, s.NegotiatedProtocol)
	if c.Credentials != nil {
		out.Detail += fmt.Sprintf("; own certificate (%s %s) holds until %s", c.Credentials.Name().Role, c.Credentials.Name().Node, c.Credentials.Expires().UTC().Format(time.RFC3339))
	}
	return out, true
}

// refusalTime is how long a refusal of our certificate is waited for.
const refusalTime = 200 * time.Millisecond

// refusal reads a moment for an alert.
func refusal(conn *tls.Conn) error {
	if err := conn.SetReadDeadline(time.Now().Add(refusalTime)); err != nil {
		return err
	}
	_, err := conn.Read(make([]byte, 1))
	var timeout net.Error
	if err == nil || errors.As(err, &timeout) && timeout.Timeout() {
		return nil // it is the other side's greeting, or silence
	}
	return err
}

func fixTLS(err error) string {
	text := err.Error()
	switch {
	case errors.Is(err, identity.ErrPeer) && strings.Contains(text, "holds from"):
		return "the clocks differ, or a certificate was not renewed in time"
	case errors.Is(err, identity.ErrPeer):
		return "something else than a control node of this cluster answers there; compare the address, and the cluster of the token or identity"
	case strings.Contains(text, "bad certificate"), strings.Contains(text, "certificate required"):
		return "the control node refuses this identity: it was removed or revoked, or is of another cluster"
	}
	return "something else than a control node listens there, or a proxy is between that does not let TLS through"
}

// call posts to a control node and returns its answer's body and its date.
func (c *Config) call(ctx context.Context, addr, path string, out any) (date string, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	t, err := h2.NewTransport(h2.Config{
		TLS: c.Credentials.Client(identity.ProtocolHTTP, "", cluster.Control),
		Dial: func(ctx context.Context) (net.Conn, error) {
			conn, _, err := dial(ctx, addr)
			return conn, err
		},
	})
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+addr+path, strings.NewReader("{}"))
	if err != nil {
		return "", err
	}
	response, err := t.RoundTrip(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }() // it was only read
	body, err := io.ReadAll(io.LimitReader(response.Body, cluster.MaxCall))
	if err != nil {
		return "", err
	}
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("it answers %s: %.200s", response.Status, body)
	}
	return response.Header.Get("Date"), json.Unmarshal(body, out)
}

// clock compares this machine's clock with a control node's.
func (c *Config) clock(ctx context.Context, addr string) doctor.Check {
	out := doctor.Check{Name: "clock " + addr, Status: doctor.OK}
	var status cluster.Status
	before := time.Now()
	date, err := c.call(ctx, addr, cluster.PathStatus, &status)
	after := time.Now()
	var there time.Time
	if err == nil {
		there, err = http.ParseTime(date)
	}
	if err != nil {
		out.Status, out.Detail, out.Fix = doctor.Fail, err.Error(), "see the control node's log"
		return out
	}
	return judgeClock(out, apart(before, after, there))
}

// apart is how far a clock is from ours at least, which said there (in whole seconds)
// at some time between before and after; positive if it is ahead.
func apart(before, after, there time.Time) time.Duration {
	switch {
	case there.After(after):
		return there.Sub(after)
	case there.Add(time.Second).Before(before):
		return there.Add(time.Second).Sub(before)
	}
	return 0
}

func judgeClock(c doctor.Check, d time.Duration) doctor.Check {
	switch {
	case d == 0:
		c.Detail = "the clocks agree to the second"
		return c
	case d > 0:
		c.Detail = fmt.Sprintf("its clock is %s ahead of this machine's", d.Round(time.Second))
	default:
		c.Detail = fmt.Sprintf("its clock is %s behind this machine's", (-d).Round(time.Second))
	}
	if d.Abs() >= clockWarn {
		c.Status, c.Fix = doctor.Warn, "let both follow a time server (chrony, systemd-timesyncd): tokens, keys and certificates end by the clock"
	}
	if d.Abs() >= clockFail {
		c.Status = doctor.Fail
	}
	return c
}

// state asks a control node for the cluster's state.
func (c *Config) state(ctx context.Context, addr string) (s *state.State, leader string, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	client, err := operator.At(addr, c.Credentials)
	if err != nil {
		return nil, "", err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	if s, _, err = client.State(ctx); err != nil {
		return nil, "", err
	}
	status, err := client.Status(ctx)
	return s, status.Leader, err
}

func checkLeader(leader string) doctor.Check {
	c := doctor.Check{Name: "cluster", Status: doctor.OK, Detail: leader + " leads"}
	if leader == "" {
		c.Status, c.Detail = doctor.Warn, "there is no leader: nothing can be changed; serving goes on"
		c.Fix = "start control nodes until a majority runs (trctl cluster status)"
	}
	return c
}

// gossip asks the nodes of a state by UDP.
func (c *Config) gossip(s *state.State) (checks []doctor.Check) {
	own := c.Credentials.Name()
	for id, n := range s.AllNodes() {
		if n.Gossip == "" || n.Lost || id == own.Node || len(checks) == maxGossip {
			continue
		}
		out := doctor.Check{Name: "gossip " + id, Status: doctor.OK}
		took, err := membership.Probe(membership.Config{Node: "doctor", Cluster: own.Cluster, Key: c.GossipKey}, id, n.Gossip)
		if err != nil {
			out.Status, out.Detail = doctor.Warn, err.Error()
			out.Fix = "let UDP and TCP through to " + n.Gossip + "; without gossip losses are noticed later"
		} else {
			out.Detail = fmt.Sprintf("%s answers by UDP in %s", n.Gossip, took.Round(10*time.Microsecond))
		}
		checks = append(checks, out)
	}
	return checks
}
