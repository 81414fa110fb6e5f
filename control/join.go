package control

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/sourcegraph/conc"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/api/protocol"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/internal/identity"
)

// Bounds of joins.
const (
	// joinTime is from the accepted connection to the answer's last byte.
	joinTime = 8 * time.Second
	// maxJoins bounds the connections at a time; more wait in the kernel.
	maxJoins = 64
	// maxTries are the bad tries that an address has in tryWindow.
	maxTries  = 10
	tryWindow = time.Minute
	// maxTriers bounds the addresses that are remembered.
	maxTriers = 4096
)

// ServeJoins admits nodes by token: the connections of the protocol
// identity.ProtocolJoin. It returns when the listener is closed or ctx ends. Nothing
// is known of who connects but the token that they show.
func (n *Node) ServeJoins(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() }) // it ends Accept
	defer stop()
	var conns conc.WaitGroup
	defer conns.Wait()
	free := make(chan struct{}, maxJoins)
	for {
		select {
		case free <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return fmt.Errorf("control: accept joins: %w", err)
		}
		conns.Go(func() {
			defer func() { <-free }()
			n.serveJoin(ctx, conn)
		})
	}
}

// serveJoin reads the one request of a connection and answers it.
func (n *Node) serveJoin(ctx context.Context, conn net.Conn) {
	ctx, cancel := context.WithTimeout(ctx, joinTime)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	defer func() { _ = conn.Close() }()
	address, _, err := net.SplitHostPort(conn.RemoteAddr().String())
	if err != nil {
		address = conn.RemoteAddr().String()
	}
	var request cluster.JoinRequest
	var response *cluster.JoinResponse
	err = n.tries.allowed(time.Now(), address)
	if err == nil {
		if err = readJoin(conn, &request); err == nil {
			response, err = n.admit(ctx, &request)
		}
		if err != nil && !errors.Is(err, ErrNoLeader) {
			n.tries.bad(time.Now(), address)
		}
	}
	peer := address
	if identity.CheckNode(request.Node) == nil {
		peer = request.Node + " at " + address
	}
	if err != nil {
		n.refused.Note(n.log, "join refused", peer, err, "request", request)
		problem := client.Problem(err)
		response = &cluster.JoinResponse{Problem: &problem}
	} else {
		n.refused.Forget(peer)
		n.log.Info("node admitted", "remote", address, "request", request)
	}
	text, err := json.Marshal(response)
	if err == nil {
		_, err = conn.Write(append(text, '\n'))
	}
	if err != nil {
		n.log.Warn("join not answered", "remote", address, "err", err)
	}
}

// readJoin reads a line of at most cluster.MaxJoinRequest bytes.
func readJoin(r io.Reader, into *cluster.JoinRequest) error {
	line, err := bufio.NewReaderSize(io.LimitReader(r, cluster.MaxJoinRequest), cluster.MaxJoinRequest).ReadSlice('\n')
	if err != nil {
		return fmt.Errorf("%w: no line of at most %d bytes", client.ErrBadRequest, cluster.MaxJoinRequest)
	}
	if err := json.Unmarshal(line, into); err != nil {
		// The library's error may repeat what it has read.
		*into = cluster.JoinRequest{}
		return fmt.Errorf("%w: it is no join request", client.ErrBadRequest)
	}
	return nil
}

// admit checks the token and signs the joiner's key. The token's use is a command, so
// that it counts once in the whole cluster.
func (n *Node) admit(ctx context.Context, r *cluster.JoinRequest) (*cluster.JoinResponse, error) {
	who := cluster.Node{ID: r.Node, Role: r.Role, Build: r.Build, Protocol: r.Protocol, MinProtocol: r.MinProtocol}
	if err := fits(n.State(), n.cfg.Self.ID, protocol.Cluster(), &who); err != nil {
		return nil, err
	}
	if err := n.checkToken(ctx, r); err != nil {
		return nil, err
	}
	name := identity.Name{Cluster: n.cfg.Credentials.Name().Cluster, Role: r.Role, Node: r.Node}
	now := time.Now()
	token, _ := n.State().Token(r.Token)
	until := certificateEnd(now, token.IdentityExpires)
	certificate, err := n.cfg.Authority.IssueUntil(r.Request, name, now, until)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", client.ErrBadRequest, err)
	}
	// The same joiner may repeat its request if the answer was lost.
	hash := sha256.Sum256(r.Request)
	use, err := cluster.NewCommand(cluster.KindUseToken, "join/"+r.Token+"/"+hex.EncodeToString(hash[:16]), now,
		n.admission(r, until))
	if err != nil {
		return nil, err
	}
	if _, err := n.Propose(ctx, use); err != nil {
		return nil, err
	}
	return n.welcome(r.Role, certificate)
}

// checkToken refuses a request before it can reach the log.
func (n *Node) checkToken(ctx context.Context, r *cluster.JoinRequest) error {
	if _, ok := n.State().Token(r.Token); !ok {
		// It may have been made a moment ago.
		if err := n.Sync(ctx); err != nil {
			return err
		}
	}
	token, err := n.State().Admits(r.Token, r.Role)
	if err != nil && errors.Is(err, state.ErrTokenUnknown) {
		return err
	}
	shown := identity.JoinToken{ID: r.Token}
	if len(r.Secret) != len(shown.Secret) {
		return unknownToken(r.Token)
	}
	copy(shown.Secret[:], r.Secret)
	if !shown.Matches(token.Hash) {
		return unknownToken(r.Token) // who guesses learns nothing of the token
	}
	if errors.Is(err, state.ErrTokenUsed) {
		return nil // the log knows whether this is the same joiner again
	}
	return err
}

func unknownToken(id string) error {
	return fmt.Errorf("%w %q %w", state.ErrToken, id, state.ErrTokenUnknown)
}

// welcome is what a node of a role gets.
func (n *Node) welcome(role cluster.Role, certificate []byte) (*cluster.JoinResponse, error) {
	out := &cluster.JoinResponse{
		Cluster: n.cfg.Credentials.Name().Cluster, Certificate: string(certificate), CAs: n.cas(),
	}
	for _, node := range n.State().AllNodes() {
		if node.Role == cluster.Control {
			out.Control = append(out.Control, node.Addr)
		}
	}
	if role != cluster.Admin {
		var err error
		out.GossipGeneration = n.gossipRing()[0]
		if out.GossipKey, err = n.GossipKey(out.GossipGeneration); err != nil {
			return nil, err
		}
	}
	if role == cluster.Control || role == cluster.Gateway {
		out.Pepper = n.cfg.Pepper
	}
	if role == cluster.Control {
		_, key, err := n.cfg.Authority.PEM()
		if err != nil {
			return nil, err
		}
		out.AuthorityKey = string(key)
	}
	return out, nil
}

// tries counts the bad tries by address.
type tries struct {
	mu sync.Mutex
	at map[string][]time.Time
	// swept is when old tries were last looked for among all.
	swept time.Time
}

func newTries() *tries { return &tries{at: map[string][]time.Time{}} }

// allowed says that an address may try.
func (t *tries) allowed(now time.Time, address string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.recent(now, address)) >= maxTries {
		return fmt.Errorf("%w from %s; wait a minute", client.ErrTooMany, address)
	}
	return nil
}

// bad notes a bad try.
func (t *tries) bad(now time.Time, address string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := append(t.recent(now, address), now)
	if len(t.at) >= maxTriers && now.Sub(t.swept) > time.Second {
		t.swept = now
		for other := range t.at {
			t.recent(now, other)
		}
	}
	if len(t.at) >= maxTriers && len(list) == 1 {
		return // so many that one more does not matter
	}
	t.at[address] = list
}

// recent drops the tries that are old. mu is held.
func (t *tries) recent(now time.Time, address string) []time.Time {
	list := t.at[address]
	for len(list) > 0 && now.Sub(list[0]) >= tryWindow {
		list = list[1:]
	}
	if len(list) == 0 {
		delete(t.at, address)
		return nil
	}
	t.at[address] = list
	return list
}
