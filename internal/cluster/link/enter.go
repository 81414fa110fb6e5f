package link

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/api/protocol"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/internal/identity"
)

// Entrance says how a node gets its identity.
type Entrance struct {
	// Dir keeps it.
	Dir  string
	Role cluster.Role
	// Node is the name to join under; empty for one of NewName. A node that has joined
	// keeps its name.
	Node string
	// Address is where a control node is reached, Token a join token's text. A node that
	// has joined needs neither.
	Address, Token string
	Build          string
}

var (
	// ErrEntrance says that an identity cannot be had as Entrance asks for it.
	ErrEntrance = errors.New("cannot enter the cluster")
	// ErrNotJoined says that there is no saved identity, and not enough to get one.
	ErrNotJoined = errors.New("the node has not joined a cluster yet")
	// ErrDirTaken says that another process uses the directory.
	ErrDirTaken = errors.New("another process uses the directory")
)

// Check says what keeps Enter from an identity before anybody is asked. It writes nothing.
func (e *Entrance) Check() error {
	_, _, err := e.look()
	return err
}

// look returns the saved identity, nil if there is none, or the token for a new one.
func (e *Entrance) look() (saved *identity.Saved, token identity.JoinToken, err error) {
	if e.Token != "" {
		if token, err = identity.ParseJoinToken(e.Token); err != nil {
			return nil, token, fmt.Errorf("%w: %w", ErrEntrance, err)
		}
	}
	if e.Node != "" {
		if err := identity.CheckNode(e.Node); err != nil {
			return nil, token, fmt.Errorf("%w: %w", ErrEntrance, err)
		}
	}
	saved, err = identity.Load(e.Dir)
	switch {
	case err == nil:
		return saved, token, e.check(saved, token)
	case !errors.Is(err, identity.ErrNoIdentity):
		return nil, token, err
	case e.Address == "" || e.Token == "":
		return nil, token, fmt.Errorf("%w: %s holds no identity, and the address of a control node and a token are needed for one", ErrNotJoined, e.Dir)
	}
	return nil, token, nil
}

// Enter returns the saved identity, or joins and saves a new one; joined tells which.
// The caller holds the directory's lock (Lock).
func (e *Entrance) Enter(ctx context.Context) (saved *identity.Saved, joined bool, err error) {
	saved, token, err := e.look()
	if err != nil || saved != nil {
		return saved, false, err
	}
	name := e.Node
	if name == "" {
		name = NewName(e.Role)
	}
	saved, err = client.Join(ctx, e.Address, token, client.Joiner{Role: e.Role, Node: name, Build: e.Build, Speaks: protocol.Cluster()})
	if err != nil {
		return nil, false, err
	}
	if err := saved.Save(e.Dir); err != nil {
		return nil, false, err
	}
	return saved, true, nil
}

// check compares a saved identity with what is asked for.
func (e *Entrance) check(saved *identity.Saved, token identity.JoinToken) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s holds the identity of %s %s: %s", ErrEntrance, e.Dir, saved.Role, saved.Node, fmt.Sprintf(format, args...))
	}
	if saved.Role != e.Role {
		return bad("a %s needs a directory of its own", e.Role)
	}
	if e.Node != "" && e.Node != saved.Node {
		return bad("it cannot become %s; use an empty directory for a new node", e.Node)
	}
	if e.Token == "" {
		return nil
	}
	for _, text := range saved.CAs {
		if ca, err := identity.ParseCertificate(text); err == nil && identity.PublicKeyHash(ca) == token.CAHash {
			return nil // the token is not needed any more
		}
	}
	return bad("the token is of another cluster than %s; use an empty directory to join that one", saved.Cluster)
}

// NewName makes a name that nobody else has: role, host and four random digits.
func NewName(role cluster.Role) string {
	host, err := os.Hostname()
	if err != nil {
		host = ""
	}
	host, _, _ = strings.Cut(host, ".")
	host = strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '-':
			return r
		}
		return -1
	}, host)
	var digits [2]byte
	_, _ = rand.Read(digits[:]) // never fails
	parts := []string{string(role), host[:min(len(host), 32)], hex.EncodeToString(digits[:])}
	if parts[1] == "" {
		parts = append(parts[:1], parts[2])
	}
	return strings.Join(parts, "-")
}

// lockFile is in the directory of a running process.
const lockFile = "lock"

// Lock makes the directory, readable by its owner alone, and takes it for this
// process until unlock is called or the process ends.
func Lock(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	unlock, taken, err := lock(filepath.Join(dir, lockFile))
	switch {
	case taken:
		return nil, fmt.Errorf("%w: %s", ErrDirTaken, dir)
	case err != nil:
		return nil, fmt.Errorf("data directory: %w", err)
	}
	return unlock, nil
}
