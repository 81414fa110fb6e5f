package controlnode

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/internal/apikey"
	"github.com/tokenrouter/tokenrouter/internal/cluster/link"
	"github.com/tokenrouter/tokenrouter/internal/identity"
)

// Founding describes a new cluster and its first node.
type Founding struct {
	// Cluster is the cluster's name for people.
	Cluster string
	// Node is the node's name; empty for one of link.NewName.
	Node string
}

// foundingFile marks a node that is to begin its cluster. It goes once the cluster is
// there: a first node that has lost its log must not begin another cluster of the same
// name, but wait to be taken in by the others.
const foundingFile = "founding.json"

// gossipKeyBytes is the length of the key of the gossip.
const gossipKeyBytes = 32

// Found makes a new cluster's secrets and its first node's identity in dir, and
// returns the identity. A directory that has one already keeps it: founded is false.
// The caller holds the directory's lock (link.Lock).
func Found(dir string, f Founding, now time.Time) (saved *identity.Saved, founded bool, err error) {
	saved, err = identity.Load(dir)
	switch {
	case err == nil && saved.Role != cluster.Control:
		return nil, false, fmt.Errorf("%w: %s holds the identity of %s %s; a control node needs a directory of its own", link.ErrEntrance, dir, saved.Role, saved.Node)
	case err == nil && f.Node != "" && f.Node != saved.Node:
		return nil, false, fmt.Errorf("%w: %s holds the identity of %s, which cannot become %s", link.ErrEntrance, dir, saved.Node, f.Node)
	case err == nil:
		return saved, false, nil
	case !errors.Is(err, identity.ErrNoIdentity):
		return nil, false, err
	}
	if f.Node == "" {
		f.Node = link.NewName(cluster.Control)
	}
	if err := identity.CheckNode(f.Node); err != nil {
		return nil, false, fmt.Errorf("%w: %w", link.ErrEntrance, err)
	}
	if err := CheckText("cluster-name", f.Cluster); err != nil {
		return nil, false, fmt.Errorf("%w: %w", link.ErrEntrance, err)
	}
	id, err := random(8)
	if err != nil {
		return nil, false, err
	}
	own := cluster.Cluster{ID: hex.EncodeToString(id), Name: f.Cluster, Created: now.UTC().Truncate(time.Second)}
	if saved, err = newIdentity(own.ID, f.Node, now); err != nil {
		return nil, false, err
	}
	for _, ca := range saved.CAs {
		own.CAs = append(own.CAs, string(ca))
	}
	text, err := json.MarshalIndent(own, "", "  ")
	if err != nil {
		return nil, false, fmt.Errorf("encode the cluster: %w", err)
	}
	// The mark comes before the identity: without the latter nothing counts.
	if err := os.WriteFile(filepath.Join(dir, foundingFile), append(text, '\n'), 0o600); err != nil {
		return nil, false, fmt.Errorf("found a cluster: %w", err)
	}
	return saved, true, saved.Save(dir)
}

// newIdentity makes a CA and what its first node needs.
func newIdentity(clusterID, node string, now time.Time) (*identity.Saved, error) {
	authority, err := identity.NewAuthority(clusterID, now)
	if err != nil {
		return nil, err
	}
	saved := &identity.Saved{Cluster: clusterID, Role: cluster.Control, Node: node}
	ca, caKey, err := authority.PEM()
	if err != nil {
		return nil, err
	}
	saved.CAs, saved.AuthorityKey = [][]byte{ca}, caKey
	if saved.GossipKey, err = random(gossipKeyBytes); err != nil {
		return nil, err
	}
	if saved.Pepper, err = random(apikey.PepperBytes); err != nil {
		return nil, err
	}
	saved.Certificate, saved.Key, err = issue(authority, identity.Name{Cluster: clusterID, Role: cluster.Control, Node: node}, now)
	return saved, err
}

// issue makes a key and a certificate for it, PEM.
func issue(authority *identity.Authority, name identity.Name, now time.Time) (certificate, key []byte, err error) {
	signer, request, err := identity.NewKey()
	if err != nil {
		return nil, nil, err
	}
	if key, err = identity.EncodeKey(signer); err != nil {
		return nil, nil, err
	}
	certificate, err = authority.Issue(request, name, now)
	return certificate, key, err
}

func random(n int) ([]byte, error) {
	b := make([]byte, n)
	if _, err := rand.Read(b); err != nil {
		return nil, fmt.Errorf("make a secret: %w", err)
	}
	return b, nil
}

// maxFounding bounds the file, in bytes.
const maxFounding = 64 << 10

// founding is the cluster that the node is to begin, nil for a node that is not to.
func founding(dir string) (*cluster.Cluster, error) {
	path := filepath.Join(dir, foundingFile)
	stat, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && stat.Size() > maxFounding {
		err = fmt.Errorf("%s has %d bytes", path, stat.Size())
	}
	if err != nil {
		return nil, fmt.Errorf("founding: %w", err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("founding: %w", err)
	}
	own := new(cluster.Cluster)
	if err := json.Unmarshal(text, own); err != nil {
		return nil, fmt.Errorf("founding: %s: %w", path, err)
	}
	return own, nil
}
