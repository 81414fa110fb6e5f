package client

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/api/protocol"
	"github.com/tokenrouter/tokenrouter/internal/identity"
)

// Joiner is who wants to join.
type Joiner struct {
	Role  cluster.Role
	Node  string
	Build string
	// Speaks are the versions of the cluster's protocol that its build speaks.
	Speaks protocol.Range
}

// joinTimeout bounds a join; joinPause is between tries while the control nodes elect a leader.
const (
	joinTimeout = 10 * time.Second
	joinPause   = 200 * time.Millisecond
)

// ErrUnreachable says that nothing answers at an address.
var ErrUnreachable = errors.New("cannot be reached")

// Join presents a token at a control node's address and returns the identity that
// it got; its key never left this process. The token's secret is sent only after
// the server has shown the CA that the token names. Refusals are state.ErrToken with
// its reason, ErrTooMany, or another error of this package. While the control nodes elect
// a leader it asks again, ErrNoLeader is for when they have none in the whole time.
func Join(ctx context.Context, address string, token identity.JoinToken, who Joiner) (*identity.Saved, error) {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	key, request, err := identity.NewKey()
	if err != nil {
		return nil, err
	}
	// The same request each time: a use of the token counts once, whatever became of it.
	question := cluster.JoinRequest{
		Token: token.ID, Secret: token.Secret[:], Role: who.Role, Node: who.Node,
		Request: request, Build: who.Build, Protocol: who.Speaks.Newest, MinProtocol: who.Speaks.Oldest,
	}
	response, err := ask(ctx, address, token, question)
	for errors.Is(err, ErrNoLeader) {
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(joinPause):
		}
		var again error
		if response, again = ask(ctx, address, token, question); again == nil || ctx.Err() == nil {
			err = again
		}
	}
	if err != nil {
		return nil, err
	}
	saved := &identity.Saved{
		Cluster: response.Cluster, Role: who.Role, Node: who.Node, Control: response.Control,
		Certificate: []byte(response.Certificate), GossipKey: response.GossipKey, GossipGeneration: response.GossipGeneration,
		AuthorityKey: []byte(response.AuthorityKey), Pepper: response.Pepper,
	}
	if len(saved.Control) == 0 {
		saved.Control = []string{address}
	}
	for _, ca := range response.CAs {
		saved.CAs = append(saved.CAs, []byte(ca))
	}
	if saved.Key, err = identity.EncodeKey(key); err != nil {
		return nil, err
	}
	return saved, checkIdentity(saved)
}

// ask is one try of Join.
func ask(ctx context.Context, address string, token identity.JoinToken, question cluster.JoinRequest) (*cluster.JoinResponse, error) {
	d := tls.Dialer{NetDialer: &net.Dialer{Timeout: dialTimeout * 3}, Config: identity.Pinned(token)}
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		if errors.Is(err, identity.ErrPeer) {
			return nil, fmt.Errorf("join at %s: %w", address, err)
		}
		if op := (*net.OpError)(nil); !errors.As(err, &op) || op.Op != "dial" {
			err = fmt.Errorf("%w; somebody listens there: is it the cluster port of a control node?", err)
		}
		return nil, fmt.Errorf("join: %s %w: %w", address, ErrUnreachable, err)
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	response, err := present(conn, question)
	if err != nil {
		return nil, fmt.Errorf("join at %s: %w", address, err)
	}
	return response, nil
}

// present sends the one request and reads the one answer.
func present(conn net.Conn, request cluster.JoinRequest) (*cluster.JoinResponse, error) {
	text, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadRequest, err)
	}
	if len(text)+1 > cluster.MaxJoinRequest {
		return nil, fmt.Errorf("%w: the request has more than %d bytes", ErrBadRequest, cluster.MaxJoinRequest)
	}
	if _, err := conn.Write(append(text, '\n')); err != nil {
		return nil, fmt.Errorf("send the request: %w", err)
	}
	line, err := bufio.NewReader(io.LimitReader(conn, cluster.MaxJoinResponse)).ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	var response cluster.JoinResponse
	if err := json.Unmarshal(line, &response); err != nil {
		return nil, fmt.Errorf("%w: the answer: %w", ErrBadRequest, err)
	}
	if response.Problem != nil {
		return nil, Err(*response.Problem)
	}
	return &response, nil
}

// checkIdentity makes sure that what came is whole and is what was asked for.
func checkIdentity(s *identity.Saved) error {
	c, err := identity.NewCredentials(s.Certificate, s.Key, s.CAs, nil)
	if err != nil {
		return fmt.Errorf("join: %w", err)
	}
	if want := (identity.Name{Cluster: s.Cluster, Role: s.Role, Node: s.Node}); c.Name() != want {
		return fmt.Errorf("join: %w: the certificate is of %s, not of %s", identity.ErrName, c.Name(), want)
	}
	return nil
}
