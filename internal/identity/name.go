package identity

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// Name is who a certificate belongs to.
type Name struct {
	Cluster string
	Role    cluster.Role
	Node    string
}

// scheme is of the URI in a certificate.
const scheme = "tr"

// ErrName says that a certificate does not name a node of a cluster.
var ErrName = errors.New("identity: the certificate names no node")

// URI is the name as a certificate carries it.
func (n Name) URI() *url.URL {
	return &url.URL{Scheme: scheme, Host: n.Cluster, Path: "/" + string(n.Role) + "/" + n.Node}
}

func (n Name) String() string { return n.URI().String() }

// valid says that the name's parts can stand in a URI as they are.
func (n Name) valid() bool {
	return validPart(n.Cluster) && validPart(n.Node) && n.Role.Valid()
}

func validPart(part string) bool {
	return part != "" && len(part) <= cluster.MaxID && strings.Trim(part, letters) == "" && !strings.ContainsRune("-._", rune(part[0]))
}

// ErrNode says that no node can be called so.
var ErrNode = errors.New("names have letters, digits, and - . _ after the first")

// CheckNode says what is wrong with the name of a node, which is to stand in a
// certificate. Errors wrap ErrNode.
func CheckNode(name string) error {
	switch {
	case validPart(name):
		return nil
	case len(name) > cluster.MaxID:
		return fmt.Errorf("name %.32q… has %d bytes, at most %d are allowed: %w", name, len(name), cluster.MaxID, ErrNode)
	}
	return fmt.Errorf("name %q cannot be used: %w", name, ErrNode)
}

const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._"

// NameOf reads the one URI of a certificate.
func NameOf(c *x509.Certificate) (Name, error) {
	if len(c.URIs) != 1 {
		return Name{}, fmt.Errorf("%w: it has %d URIs", ErrName, len(c.URIs))
	}
	u := c.URIs[0]
	role, node, ok := strings.Cut(strings.TrimPrefix(u.Path, "/"), "/")
	n := Name{u.Host, cluster.Role(role), node}
	// The comparison refuses whatever a URI may have besides: user, query, escapes.
	if !ok || !n.valid() || u.String() != n.String() {
		return Name{}, fmt.Errorf("%w: %.200q", ErrName, u.String())
	}
	return n, nil
}
