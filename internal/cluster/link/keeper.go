package link

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/internal/identity"
)

// Keeper writes down what a restart of a node needs: its newest certificate, where the
// control nodes are, and whom to trust. All methods are safe for concurrent use.
type Keeper struct {
	dir         string
	credentials *identity.Credentials
	log         *slog.Logger

	mu    sync.Mutex
	saved identity.Saved
}

// NewKeeper returns a Keeper of a directory that has saved now.
func NewKeeper(dir string, saved *identity.Saved, credentials *identity.Credentials, log *slog.Logger) *Keeper {
	return &Keeper{dir: dir, saved: *saved, credentials: credentials, log: log}
}

// Renewed writes a new certificate, which the credentials have already.
func (k *Keeper) Renewed(certificate, key []byte, cas [][]byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.saved.Certificate, k.saved.Key, k.saved.CAs = certificate, key, cas
	return k.saved.Save(k.dir)
}

// KeepGossip writes the key by which the gossip is to begin.
func (k *Keeper) KeepGossip(key []byte, generation uint64) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	next := k.saved
	next.GossipKey, next.GossipGeneration = key, generation
	if err := next.Save(k.dir); err != nil {
		return err
	}
	k.saved = next
	return nil
}

// Run follows the state until ctx ends, and returns its cause. What cannot be written
// is logged, and tried again when more has changed.
func (k *Keeper) Run(ctx context.Context, view *client.View) error {
	for {
		changed := view.Changed()
		if err := k.note(view.State()); err != nil {
			k.log.Warn("identity not saved", "err", err)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// note saves what is new in a state.
func (k *Keeper) note(s *state.State) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	next := k.saved
	if control := controlAddrs(s); len(control) > 0 {
		next.Control = control
	}
	own, _ := s.Cluster()
	if cas := trusted(own.CAs); len(cas) > 0 {
		next.CAs = cas
	}
	rotated := !slices.EqualFunc(next.CAs, k.saved.CAs, slices.Equal[[]byte])
	if !rotated && slices.Equal(next.Control, k.saved.Control) {
		return nil
	}
	if rotated {
		if err := k.credentials.Replace(next.Certificate, next.Key, next.CAs); err != nil {
			return fmt.Errorf("trust the cluster's CAs: %w", err)
		}
		k.log.Info("trusted CAs changed", "number", len(next.CAs))
	}
	if err := next.Save(k.dir); err != nil {
		return err
	}
	k.saved = next
	return nil
}

// controlAddrs are where the control nodes of a state are.
func controlAddrs(s *state.State) (out []string) {
	for _, n := range s.AllNodes() {
		if n.Role == cluster.Control {
			out = append(out, n.Addr)
		}
	}
	return out
}

// trusted are CAs in the form that identity has them.
func trusted(cas []string) (out [][]byte) {
	for _, ca := range cas {
		out = append(out, identity.SplitPEM([]byte(ca))...)
	}
	return out
}

// Renew puts a new certificate and its key into the credentials and writes them.
func (k *Keeper) Renew(certificate, key []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.credentials.Replace(certificate, key, k.saved.CAs); err != nil {
		return err
	}
	k.saved.Certificate, k.saved.Key = certificate, key
	return k.saved.Save(k.dir)
}
