package identity

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// Protocols of the cluster port, as ALPN names them.
const (
	ProtocolHTTP = "h2"
	ProtocolRaft = "raft"
	ProtocolJoin = "join"
)

// ErrPeer says that the other side's certificate is refused.
var ErrPeer = errors.New("identity: refused")

// Credentials are a node's certificate and whom it trusts. They can be replaced
// while connections use them; connections keep what they began with. All methods
// are safe for concurrent use.
type Credentials struct {
	name    Name
	current atomic.Pointer[credentials]
	// removed says that a node was removed. Set before use, may be nil.
	removed func(node string) bool
	now     func() time.Time
}

type credentials struct {
	own   tls.Certificate
	roots *x509.CertPool
}

// NewCredentials joins a node's certificate and key with the trusted CAs. removed
// tells removed nodes and may be nil.
func NewCredentials(certificate, key []byte, cas [][]byte, removed func(node string) bool) (*Credentials, error) {
	c := &Credentials{removed: removed, now: time.Now}
	if err := c.Replace(certificate, key, cas); err != nil {
		return nil, err
	}
	return c, nil
}

// Replace puts new ones in place. The name must stay.
func (c *Credentials) Replace(certificate, key []byte, cas [][]byte) error {
	own, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return fmt.Errorf("%w: the certificate and its key do not belong together", ErrPEM)
	}
	if own.Leaf == nil {
		if own.Leaf, err = x509.ParseCertificate(own.Certificate[0]); err != nil {
			return fmt.Errorf("%w: %w", ErrPEM, err)
		}
	}
	name, err := NameOf(own.Leaf)
	if err != nil {
		return err
	}
	if c.name != (Name{}) && name != c.name {
		return fmt.Errorf("%w: the new certificate is of %s, not of %s", ErrName, name, c.name)
	}
	roots := x509.NewCertPool()
	for _, text := range cas {
		ca, err := ParseCertificate(text)
		if err != nil {
			return err
		}
		roots.AddCert(ca)
		// A joiner holds the CA against its token, so it must be shown.
		own.Certificate = append(own.Certificate, ca.Raw)
	}
	if c.name == (Name{}) { // NewCredentials calls; later others read it
		c.name = name
	}
	c.current.Store(&credentials{own, roots})
	return nil
}

// Name is the node's own.
func (c *Credentials) Name() Name { return c.name }

// Expires is when the certificate ends, Renew when a new one should be asked for:
// after two thirds of its life.
func (c *Credentials) Expires() time.Time { return c.current.Load().own.Leaf.NotAfter }
func (c *Credentials) Renew() time.Time {
	leaf := c.current.Load().own.Leaf
	return leaf.NotBefore.Add(leaf.NotAfter.Sub(leaf.NotBefore) * 2 / 3)
}

// Server is the configuration of a listener for some of the protocols. Who comes
// with h2 or raft must show a certificate; raft is for control nodes.
func (c *Credentials) Server(protocols ...string) *tls.Config {
	base := &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: protocols,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &c.current.Load().own, nil },
		ClientAuth:     tls.RequireAnyClientCert, // VerifyConnection checks it
		VerifyConnection: func(s tls.ConnectionState) error {
			if !slices.Contains(protocols, s.NegotiatedProtocol) {
				return fmt.Errorf("%w: the protocol %.32q is not spoken here", ErrPeer, s.NegotiatedProtocol)
			}
			name, err := c.verify(s, c.removed)
			if err == nil && s.NegotiatedProtocol == ProtocolRaft && name.Role != cluster.Control {
				err = fmt.Errorf("%w: %s is no control node", ErrPeer, name)
			}
			return err
		},
		// Every connection shows its certificate anew, so that a removed node is refused.
		SessionTicketsDisabled: true,
	}
	if !slices.Contains(protocols, ProtocolJoin) {
		return base
	}
	join := base.Clone()
	join.NextProtos, join.ClientAuth, join.VerifyConnection = []string{ProtocolJoin}, tls.NoClientCert, nil
	base.NextProtos = slices.DeleteFunc(slices.Clone(protocols), func(p string) bool { return p == ProtocolJoin })
	base.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if len(hello.SupportedProtos) == 1 && hello.SupportedProtos[0] == ProtocolJoin {
			return join, nil
		}
		return nil, nil
	}
	return base
}

// Client is the configuration of a connection to a node of one of the roles; node
// is its name, empty for any.
func (c *Credentials) Client(protocol, node string, roles ...cluster.Role) *tls.Config {
	return c.client(c.removed, protocol, node, roles...)
}

// ClientOfMember is Client for the log, to a control node that is a member of the consensus. It
// may have been removed from the cluster: it votes, and has to be told, until the log says that
// it is no member any more.
func (c *Credentials) ClientOfMember(node string) *tls.Config {
	return c.client(nil, ProtocolRaft, node, cluster.Control)
}

func (c *Credentials) client(removed func(string) bool, protocol, node string, roles ...cluster.Role) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{protocol},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &c.current.Load().own, nil },
		// Nodes are known by name, not by address: VerifyConnection checks the chain and the name.
		InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			name, err := c.verify(s, removed)
			switch {
			case err != nil:
				return err
			case s.NegotiatedProtocol != protocol:
				return fmt.Errorf("%w: the server speaks %.32q, not %s", ErrPeer, s.NegotiatedProtocol, protocol)
			case !slices.Contains(roles, name.Role):
				return fmt.Errorf("%w: %s is not a %v", ErrPeer, name, roles)
			case node != "" && name.Node != node:
				return fmt.Errorf("%w: %s answers in the place of %s", ErrPeer, name, node)
			}
			return nil
		},
	}
}

// verify checks the other side's certificate: signed by a trusted CA, valid now, of
// this cluster, of a node that removed, which may be nil, does not tell.
func (c *Credentials) verify(s tls.ConnectionState, removed func(node string) bool) (Name, error) {
	if len(s.PeerCertificates) == 0 {
		return Name{}, fmt.Errorf("%w: there is no certificate", ErrPeer)
	}
	leaf, now := s.PeerCertificates[0], c.now()
	if now.Before(leaf.NotBefore) || now.After(leaf.NotAfter) {
		return Name{}, fmt.Errorf("%w: the certificate holds from %s to %s, and it is %s", ErrPeer,
			leaf.NotBefore.UTC().Format(time.RFC3339), leaf.NotAfter.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	if _, err := leaf.Verify(x509.VerifyOptions{
		Roots: c.current.Load().roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	}); err != nil {
		return Name{}, fmt.Errorf("%w: %w", ErrPeer, err)
	}
	name, err := NameOf(leaf)
	switch {
	case err != nil:
		return Name{}, fmt.Errorf("%w: %w", ErrPeer, err)
	case name.Cluster != c.name.Cluster:
		return Name{}, fmt.Errorf("%w: %s is of another cluster", ErrPeer, name)
	case removed != nil && removed(name.Node):
		return Name{}, fmt.Errorf("%w: %s was removed", ErrPeer, name)
	}
	return name, nil
}

// PeerName is who is on the other side of a connection that was accepted.
func PeerName(s *tls.ConnectionState) (Name, error) {
	if s == nil || len(s.PeerCertificates) == 0 {
		return Name{}, fmt.Errorf("%w: there is no certificate", ErrPeer)
	}
	return NameOf(s.PeerCertificates[0])
}

// Pinned is the configuration of a joiner: it trusts the CA with that hash alone,
// and has no certificate to show.
func Pinned(token JoinToken) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{ProtocolJoin},
		InsecureSkipVerify: true, // VerifyConnection holds the chain against the token
		VerifyConnection: func(s tls.ConnectionState) error {
			if s.NegotiatedProtocol != ProtocolJoin {
				return fmt.Errorf("%w: the server does not speak %s", ErrPeer, ProtocolJoin)
			}
			for _, ca := range s.PeerCertificates[1:] {
				if PublicKeyHash(ca) != token.CAHash || !ca.IsCA {
					continue
				}
				leaf := s.PeerCertificates[0]
				roots := x509.NewCertPool()
				roots.AddCert(ca)
				if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
					return fmt.Errorf("%w: %w", ErrPeer, err)
				}
				if name, err := NameOf(leaf); err != nil || name.Role != cluster.Control {
					return fmt.Errorf("%w: it is no control node that answers", ErrPeer)
				}
				return nil
			}
			return fmt.Errorf("%w: the server's CA is not the token's: wrong cluster, or somebody in between", ErrPeer)
		},
	}
}
