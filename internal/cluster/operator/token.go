package operator

import (
	"context"
	"fmt"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/internal/identity"
)

// TokenRequest asks for a new join token.
type TokenRequest struct {
	Role cluster.Role
	// Life is how long it admits nodes, Uses how many.
	Life    time.Duration
	Uses    int
	Comment string
	// IdentityExpires is when the identities end that a token of the role admin admits;
	// zero for never.
	IdentityExpires time.Time
}

// Token makes a join token for a cluster, and what the cluster is to keep of it. It
// proposes nothing.
func (r *TokenRequest) Token(s *state.State, now time.Time) (identity.JoinToken, cluster.Token, error) {
	own, exists := s.Cluster()
	if !exists || len(own.CAs) == 0 {
		return identity.JoinToken{}, cluster.Token{}, fmt.Errorf("cluster %w: it has not begun yet", state.ErrNotFound)
	}
	ca, err := identity.ParseCertificate([]byte(own.CAs[0]))
	if err != nil {
		return identity.JoinToken{}, cluster.Token{}, err
	}
	token, err := identity.NewJoinToken(identity.PublicKeyHash(ca))
	if err != nil {
		return token, cluster.Token{}, err
	}
	now = now.UTC().Truncate(time.Second)
	return token, cluster.Token{
		ID: token.ID, Role: r.Role, Hash: token.Hash(), Created: now, Expires: now.Add(r.Life), Uses: r.Uses, Comment: r.Comment,
		IdentityExpires: r.IdentityExpires,
	}, nil
}

// CreateToken makes a join token here, so that its secret goes nowhere, and tells the
// cluster of it.
func (c *Client) CreateToken(ctx context.Context, r TokenRequest) (identity.JoinToken, cluster.Token, error) {
	s, _, err := c.State(ctx)
	if err != nil {
		return identity.JoinToken{}, cluster.Token{}, err
	}
	token, object, err := r.Token(s, time.Now())
	if err != nil {
		return token, object, err
	}
	_, err = c.Propose(ctx, cluster.KindPutToken, "token/"+token.ID, object)
	return token, object, err
}
