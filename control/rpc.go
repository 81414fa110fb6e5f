package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/internal/identity"
)

// call is one call of a peer whose certificate was checked.
type call struct {
	peer identity.Name
	// hop says that another control node has forwarded it.
	hop bool
	// body is bounded.
	body io.Reader
}

// read decodes the call's body.
func (c *call) read(into any) error {
	d := json.NewDecoder(c.body)
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("%w: %w", client.ErrBadRequest, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: text after the end", client.ErrBadRequest)
	}
	return nil
}

// Handler serves the calls under /v1/cluster/ on the cluster port's HTTP/2. It works
// while Run does. Who calls is known by the TLS certificate alone.
func (n *Node) Handler() http.Handler {
	const small, large = cluster.MaxCall, cluster.MaxBackup
	every := cluster.Roles()
	running := []cluster.Role{cluster.Control, cluster.Worker, cluster.Gateway}
	operators := []cluster.Role{cluster.Control, cluster.Admin}
	mux := http.NewServeMux()
	for _, c := range []struct {
		path  string
		limit int64
		roles []cluster.Role
		serve func(context.Context, *call) (any, error)
	}{
		{cluster.PathPropose, small, every, n.servePropose},
		{cluster.PathHeartbeat, small, running, n.serveBeat},
		{cluster.PathLoads, small, every, n.serveLoads},
		{cluster.PathSlices, small, []cluster.Role{cluster.Control, cluster.Gateway}, n.serveSlices},
		{cluster.PathMeasures, small, []cluster.Role{cluster.Control, cluster.Worker}, n.serveMeasures},
		{cluster.PathRenew, small, every, n.serveRenew},
		{cluster.PathGossip, small, running, n.serveGossip},
		{cluster.PathStatus, small, every, n.serveStatus},
		{cluster.PathBackup, small, operators, n.serveBackup},
		{cluster.PathRestore, large, operators, n.serveRestore},
		{cluster.PathTransfer, small, operators, n.serveTransfer},
		{cluster.PathAddress, small, []cluster.Role{cluster.Control}, n.serveAddress},
		{cluster.PathIndex, small, every, n.serveIndex},
	} {
		mux.HandleFunc(http.MethodPost+" "+c.path, func(w http.ResponseWriter, r *http.Request) {
			peer, err := n.peer(r, c.roles)
			if err != nil {
				n.refuse(w, r, peer, err)
				return
			}
			hop := peer.Role == cluster.Control && r.URL.Query().Get("hop") == "1"
			out, err := c.serve(r.Context(), &call{peer, hop, http.MaxBytesReader(w, r.Body, c.limit)})
			if err != nil {
				n.refuse(w, r, peer, err)
				return
			}
			n.answer(w, http.StatusOK, out)
		})
	}
	mux.HandleFunc(http.MethodGet+" "+cluster.PathWatch, func(w http.ResponseWriter, r *http.Request) {
		peer, err := n.peer(r, every)
		if err == nil {
			err = n.serveWatch(w, r, peer)
		}
		if err != nil {
			n.refuse(w, r, peer, err)
		}
	})
	return mux
}

// peer is who calls, if one of the roles.
func (n *Node) peer(r *http.Request, roles []cluster.Role) (identity.Name, error) {
	peer, err := identity.PeerName(r.TLS)
	switch {
	case err != nil:
		return peer, fmt.Errorf("%w: %w", client.ErrForbidden, err)
	case peer.Cluster != n.cfg.Credentials.Name().Cluster:
		return peer, fmt.Errorf("%w: %s is of another cluster", client.ErrForbidden, peer)
	case n.view.Removed(peer.Node):
		return peer, fmt.Errorf("%w: %s", client.ErrRemoved, peer)
	case time.Now().After(r.TLS.PeerCertificates[0].NotAfter):
		// The connection is older than the certificate's end.
		return peer, fmt.Errorf("%w: the certificate of %s has expired", client.ErrForbidden, peer)
	case !slices.Contains(roles, peer.Role):
		return peer, fmt.Errorf("%w: a %s may not call %s", client.ErrForbidden, peer.Role, r.URL.Path)
	}
	return peer, nil
}

func (n *Node) answer(w http.ResponseWriter, status int, out any) {
	raw, ok := out.([]byte)
	if !ok {
		var err error
		if raw, err = json.Marshal(out); err != nil {
			n.log.Error("answer not encoded", "err", err)
			status, raw = http.StatusInternalServerError, []byte("{}")
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(raw) // the caller is gone if this fails
}

// refuse answers with an error.
func (n *Node) refuse(w http.ResponseWriter, r *http.Request, peer identity.Name, err error) {
	p := client.Problem(err)
	level := n.log.Debug
	switch p.Code {
	case cluster.CodeInternal:
		level = n.log.Error
	case cluster.CodeForbidden, cluster.CodeRemoved:
		level = n.log.Warn
	}
	level("call refused", "path", r.URL.Path, "peer", peer.Node, "role", string(peer.Role), "err", err)
	n.answer(w, status(p.Code), p)
}

// status is a problem's HTTP status.
func status(code string) int {
	switch code {
	case cluster.CodeNoQuorum, cluster.CodeNotLeader:
		return http.StatusServiceUnavailable
	case cluster.CodeForbidden, cluster.CodeRemoved:
		return http.StatusForbidden
	case cluster.CodeTooMany:
		return http.StatusTooManyRequests
	case cluster.CodeInternal:
		return http.StatusInternalServerError
	case "not_found":
		return http.StatusNotFound
	case "conflict", "exists":
		return http.StatusConflict
	}
	return http.StatusBadRequest
}

func (n *Node) servePropose(ctx context.Context, c *call) (any, error) {
	var command cluster.Command
	if err := c.read(&command); err != nil {
		return nil, err
	}
	if err := authorise(c.peer, &command); err != nil {
		return nil, err
	}
	if c.hop {
		index, err := n.apply(command)
		return cluster.ProposeReply{Index: index}, err
	}
	if c.peer.Role != cluster.Control && command.Request != "" {
		// Nobody answers for another's request.
		command.Request = string(c.peer.Role) + "/" + c.peer.Node + "/" + command.Request
	}
	index, err := n.Propose(ctx, command)
	return cluster.ProposeReply{Index: index}, err
}

// onLeader serves a call here if this node leads, else at the leader.
func (n *Node) onLeader(ctx context.Context, c *call, path string, in, out any, here func() error) error {
	r, _ := n.leader.now()
	if r.self {
		return here()
	}
	if c != nil && c.hop {
		return client.ErrNotLeader
	}
	err := n.forward(ctx, &r, path, in, out)
	if again(err) {
		return fmt.Errorf("%w (%w)", ErrNoLeader, err)
	}
	return err
}

func (n *Node) serveBeat(ctx context.Context, c *call) (any, error) {
	var beat cluster.Beat
	if err := c.read(&beat); err != nil {
		return nil, err
	}
	if beat.Node != c.peer.Node && !c.hop {
		return nil, fmt.Errorf("%w: %s may not beat for %q", client.ErrForbidden, c.peer, beat.Node)
	}
	return n.hear(ctx, c, beat)
}

// hear brings a heartbeat to the leader.
func (n *Node) hear(ctx context.Context, c *call, beat cluster.Beat) (cluster.BeatReply, error) {
	var reply cluster.BeatReply
	err := n.onLeader(ctx, c, cluster.PathHeartbeat, beat, &reply, func() error {
		n.heard.note(time.Now(), beat)
		s := n.State()
		_, known := s.Node(beat.Node)
		reply = cluster.BeatReply{Index: s.Index, Leader: n.cfg.Self.ID, Known: known}
		return nil
	})
	return reply, err
}

func (n *Node) serveLoads(ctx context.Context, c *call) (any, error) {
	out := map[string]cluster.NodeLoad{}
	err := n.onLeader(ctx, c, cluster.PathLoads, struct{}{}, &out, func() error {
		out = n.heard.all(time.Now())
		return nil
	})
	return out, err
}

func (n *Node) serveSlices(ctx context.Context, c *call) (any, error) {
	var ask cluster.SliceAsk
	if err := c.read(&ask); err != nil {
		return nil, err
	}
	if ask.Gateway != c.peer.Node && !c.hop {
		return nil, fmt.Errorf("%w: %s may not ask for %q", client.ErrForbidden, c.peer, ask.Gateway)
	}
	var out cluster.Slice
	err := n.onLeader(ctx, c, cluster.PathSlices, ask, &out, func() (err error) {
		key, ok := n.State().Key(ask.Key)
		if !ok || key.Revoked {
			return fmt.Errorf("key %q %w", ask.Key, state.ErrNotFound)
		}
		limit := cluster.Amount{Requests: key.RequestsPerMinute, Tokens: key.TokensPerMinute}
		out, err = n.rates.ask(time.Now(), limit, &ask)
		return err
	})
	return out, err
}

func (n *Node) serveRenew(ctx context.Context, c *call) (any, error) {
	var request cluster.RenewRequest
	if err := c.read(&request); err != nil {
		return nil, err
	}
	now := time.Now()
	until, err := n.renewable(c.peer, now)
	if err != nil {
		return nil, err
	}
	certificate, err := n.cfg.Authority.IssueUntil(request.Request, c.peer, now, until)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", client.ErrBadRequest, err)
	}
	n.noteRenewal(ctx, c.peer, until)
	n.log.Info("certificate renewed", "node", c.peer.Node, "role", string(c.peer.Role))
	return cluster.RenewResponse{Certificate: string(certificate), CAs: n.cas()}, nil
}

// cas are the trusted CAs, PEM.
func (n *Node) cas() []string {
	if own, ok := n.State().Cluster(); ok && len(own.CAs) > 0 {
		return own.CAs
	}
	certificate, _, err := n.cfg.Authority.PEM()
	if err != nil {
		return nil // a CA without a key that can be encoded signs nothing either
	}
	return []string{string(certificate)}
}

func (n *Node) serveStatus(ctx context.Context, c *call) (any, error) {
	if !c.hop {
		return n.LeaderStatus(ctx), nil
	}
	r, _ := n.leader.now()
	if !r.self {
		return nil, client.ErrNotLeader
	}
	// Who asks takes what is applied here for all that was committed (Sync): a new leader has
	// what those before it have acknowledged in its log, but perhaps not in its state.
	if err := r.settled(ctx); err != nil {
		return nil, err
	}
	return n.Status(), nil
}

func (n *Node) serveBackup(ctx context.Context, _ *call) (any, error) { return n.Backup(ctx) }

func (n *Node) serveRestore(ctx context.Context, c *call) (any, error) {
	text, err := io.ReadAll(c.body)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", client.ErrBadRequest, err)
	}
	if _, self := n.Leader(); c.hop && !self {
		return nil, client.ErrNotLeader
	}
	return struct{}{}, n.Restore(ctx, text)
}

func (n *Node) serveTransfer(ctx context.Context, c *call) (any, error) {
	var request cluster.TransferRequest
	if err := c.read(&request); err != nil {
		return nil, err
	}
	var out struct{}
	return out, n.onLeader(ctx, c, cluster.PathTransfer, request, &out, func() error { return n.transfer(request.To) })
}

// beat sends this node's own heartbeats.
func (n *Node) beat(ctx context.Context) error {
	ticker := time.NewTicker(beatEvery)
	defer ticker.Stop()
	for {
		attempt, cancel := context.WithTimeout(ctx, n.cfg.Patience)
		own := cluster.Beat{Node: n.cfg.Self.ID, Index: n.State().Index}
		if n.cfg.Gossip != nil {
			own.Gossip = n.cfg.Gossip()
		}
		// What fails is repeated with the next tick. Without a leader the consensus does not know of this node yet, or this node was removed
		// and its connections for the log were cut before that could say so.
		var err error
		if leader, _ := n.Leader(); leader == "" {
			_, err = n.contacts.Heartbeat(attempt, own)
		} else {
			_, err = n.hear(attempt, nil, own)
		}
		cancel()
		if errors.Is(err, client.ErrRemoved) {
			return n.leave(ctx)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// beatEvery is how often control nodes are heard.
const beatEvery = 250 * time.Millisecond
