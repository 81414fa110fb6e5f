package identity

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/internal/wholefile"
)

// Saved is what a node keeps of its identity, in a directory that it alone reads.
type Saved struct {
	Cluster string       `json:"cluster"`
	Role    cluster.Role `json:"role"`
	Node    string       `json:"node"`
	// Control are addresses of control nodes, host:port, to find the cluster again.
	Control []string `json:"control"`
	// Addr, Gossip and Public are the addresses that the node told the cluster.
	Addr   string `json:"addr"`
	Gossip string `json:"gossip,omitempty"`
	Public string `json:"public,omitempty"`
	// GossipGeneration is that of GossipKey.
	GossipGeneration uint64 `json:"gossip_generation,omitempty"`

	// Certificate and Key are PEM; CAs the trusted ones.
	Certificate []byte   `json:"-"`
	Key         []byte   `json:"-"`
	CAs         [][]byte `json:"-"`
	// Secrets are in files of their own. GossipKey is of every node, but not of
	// admins; the others are of control nodes alone, but for Pepper, by which gateways
	// too know API keys.
	GossipKey    []byte `json:"-"`
	AuthorityKey []byte `json:"-"`
	Pepper       []byte `json:"-"`
}

// Names of the files in the directory.
const (
	identityFile    = "identity.json"
	certificateFile = "node.crt"
	keyFile         = "node.key"
	casFile         = "ca.crt"
	gossipFile      = "gossip.key"
	authorityFile   = "ca.key"
	pepperFile      = "pepper.key"
)

// maxFile bounds each of them, in bytes.
const maxFile = 1 << 20

// ErrNoIdentity says that a directory holds no identity yet.
var ErrNoIdentity = errors.New("identity: the node has not joined a cluster")

// Load reads a directory. Errors name the file; that others may read a secret is one.
func Load(dir string) (*Saved, error) {
	text, err := read(dir, identityFile, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: there is no %s", ErrNoIdentity, filepath.Join(dir, identityFile))
	}
	if err != nil {
		return nil, err
	}
	s := new(Saved)
	if err := json.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("identity: %s: %w", filepath.Join(dir, identityFile), err)
	}
	var cas []byte
	for _, f := range []struct {
		name   string
		into   *[]byte
		secret bool
		needed bool
	}{
		{certificateFile, &s.Certificate, false, true}, {keyFile, &s.Key, true, true}, {casFile, &cas, false, true},
		{gossipFile, &s.GossipKey, true, s.Role != cluster.Admin}, {authorityFile, &s.AuthorityKey, true, s.Role == cluster.Control},
		{pepperFile, &s.Pepper, true, s.Role == cluster.Control || s.Role == cluster.Gateway},
	} {
		*f.into, err = read(dir, f.name, f.secret)
		if err != nil && (f.needed || !errors.Is(err, fs.ErrNotExist)) {
			return nil, err
		}
	}
	s.CAs = SplitPEM(cas)
	return s, nil
}

// Save writes the directory, secrets readable by the owner alone. The file that
// Load looks for first comes last, so that half an identity is none.
func (s *Saved) Save(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("identity: %w", err)
	}
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("identity: %w", err)
	}
	var cas []byte
	for _, ca := range s.CAs {
		cas = append(cas, ca...)
	}
	for _, f := range []struct {
		name string
		text []byte
	}{
		{keyFile, s.Key}, {gossipFile, s.GossipKey}, {authorityFile, s.AuthorityKey}, {pepperFile, s.Pepper},
		{casFile, cas}, {certificateFile, s.Certificate}, {identityFile, append(text, '\n')},
	} {
		if len(f.text) == 0 {
			continue
		}
		if err := wholefile.Write(filepath.Join(dir, f.name), f.text, 0o600); err != nil {
			return fmt.Errorf("identity: write %s: %w", filepath.Join(dir, f.name), err)
		}
	}
	return nil
}

// SplitPEM cuts a text after each END line.
func SplitPEM(text []byte) (blocks [][]byte) {
	for {
		block, rest, ok := nextPEM(text)
		if !ok {
			return blocks
		}
		blocks, text = append(blocks, block), rest
	}
}

func read(dir, name string, secret bool) ([]byte, error) {
	path := filepath.Join(dir, name)
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	stat, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	if secret && stat.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("identity: %s can be read by others (mode %04o); run: chmod 600 %s", path, stat.Mode().Perm(), path)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("identity: read %s: %w", path, err)
	}
	if len(text) > maxFile {
		return nil, fmt.Errorf("identity: %s has more than %d bytes", path, maxFile)
	}
	return text, nil
}
