package operator

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/internal/h2"
	"github.com/tokenrouter/tokenrouter/internal/identity"
)

var (
	// ErrUnreachable says that no control node answers.
	ErrUnreachable = errors.New("the control node cannot be reached")
	// ErrNoCluster says that a server answers which is no control node, such as
	// trctl serve.
	ErrNoCluster = errors.New("the server belongs to no cluster")
)

// Client is an operator's connection to a control node. All methods are safe for
// concurrent use.
type Client struct {
	rt    http.RoundTripper
	base  string
	close func() error
}

// dialTimeout bounds connecting.
const dialTimeout = 3 * time.Second

// OnSocket returns a Client of the control node behind a Unix socket. It connects
// nothing yet.
func OnSocket(path string) *Client {
	t := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		d := net.Dialer{Timeout: dialTimeout}
		return d.DialContext(ctx, "unix", path)
	}}
	return &Client{rt: t, base: "http://control", close: func() error { t.CloseIdleConnections(); return nil }}
}

// At returns a Client of the control node at host:port: its admin port or its cluster
// port. It connects nothing yet.
func At(addr string, credentials *identity.Credentials) (*Client, error) {
	return AtAny([]string{addr}, credentials)
}

// AtAny returns a Client of the first control node of a list that can be reached, by
// host:port. It connects nothing yet.
func AtAny(addrs []string, credentials *identity.Credentials) (*Client, error) {
	if len(addrs) == 0 {
		return nil, fmt.Errorf("%w: no address of one is known", ErrUnreachable)
	}
	t, err := h2.NewTransport(h2.Config{
		TLS: credentials.Client(identity.ProtocolHTTP, "", cluster.Control),
		Dial: func(ctx context.Context) (net.Conn, error) {
			var errs []error
			for _, addr := range addrs {
				d := net.Dialer{Timeout: dialTimeout / time.Duration(len(addrs))}
				conn, err := d.DialContext(ctx, "tcp", addr)
				if err == nil {
					return conn, nil
				}
				errs = append(errs, err)
			}
			return nil, errors.Join(errs...)
		},
	})
	if err != nil {
		return nil, err
	}
	return &Client{rt: t, base: "https://control", close: t.Close}, nil
}

// Close ends the connections.
func (c *Client) Close() error { return c.close() }

// do sends one request and returns the answer if it is 200. Other answers are errors
// of packages client and state, or ErrNoCluster.
func (c *Client) do(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", client.ErrBadRequest, err)
	}
	response, err := c.rt.RoundTrip(request)
	if err != nil {
		return nil, unanswered(ctx, err)
	}
	if response.StatusCode == http.StatusOK {
		return response, nil
	}
	defer func() { _ = response.Body.Close() }() // it was only read
	problem, err := client.ReadProblem(response.Body)
	switch {
	case err != nil:
		return nil, unanswered(ctx, fmt.Errorf("read the answer: %w", err))
	case problem.Code != "":
		return nil, client.Err(problem)
	case response.StatusCode == http.StatusNotFound:
		return nil, ErrNoCluster
	}
	return nil, fmt.Errorf("%w: it answers %s", ErrUnreachable, response.Status)
}

// unanswered is why there was no answer, or not all of it: the caller gave up, or the control node
// is gone.
func unanswered(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%w: %w", ErrUnreachable, err)
}

// call posts a value as JSON and reads the answer, of at most limit bytes. out may be a
// *[]byte, which gets the answer as it is.
func (c *Client) call(ctx context.Context, path string, in, out any, limit int64) error {
	body, raw := in.([]byte)
	if !raw {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return fmt.Errorf("%w: %w", client.ErrBadRequest, err)
		}
	}
	response, err := c.do(ctx, http.MethodPost, path, body)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // it was only read
	text, err := io.ReadAll(io.LimitReader(response.Body, limit+1))
	if err != nil {
		return unanswered(ctx, fmt.Errorf("read the answer: %w", err))
	}
	if int64(len(text)) > limit {
		return fmt.Errorf("%w: the answer has more than %d bytes", client.ErrBadRequest, limit)
	}
	if into, ok := out.(*[]byte); ok {
		*into = text
		return nil
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("%w: the answer: %w", client.ErrBadRequest, err)
	}
	return nil
}

// Propose has a change made and returns the index of the state that has it. With a request id
// (link.NewRequest), which makes repetitions harmless, it waits some seconds for a leader.
func (c *Client) Propose(ctx context.Context, kind cluster.Kind, request string, body any) (uint64, error) {
	command, err := cluster.NewCommand(kind, request, time.Now(), body)
	if err != nil {
		return 0, err
	}
	var reply cluster.ProposeReply
	once := func() error { return c.call(ctx, cluster.PathPropose, command, &reply, cluster.MaxCall) }
	if request == "" {
		err = once()
	} else {
		err = patiently(ctx, once)
	}
	return reply.Index, err
}

// Status is the leader's view of the consensus, or without one that of the node that
// answers.
func (c *Client) Status(ctx context.Context) (cluster.Status, error) {
	var out cluster.Status
	err := c.call(ctx, cluster.PathStatus, struct{}{}, &out, cluster.MaxCall)
	return out, err
}

// Loads is what the leader last heard of the nodes.
func (c *Client) Loads(ctx context.Context) (map[string]cluster.NodeLoad, error) {
	var out map[string]cluster.NodeLoad
	err := c.call(ctx, cluster.PathLoads, struct{}{}, &out, cluster.MaxBackup)
	return out, err
}

// Renew returns a new certificate for the caller's own name, for a signing request
// (DER).
func (c *Client) Renew(ctx context.Context, request []byte) (cluster.RenewResponse, error) {
	var out cluster.RenewResponse
	err := c.call(ctx, cluster.PathRenew, cluster.RenewRequest{Request: request}, &out, cluster.MaxCall)
	return out, err
}

// Backup returns a copy of the state (control.ParseBackup reads it). It waits some seconds for
// a leader.
func (c *Client) Backup(ctx context.Context) ([]byte, error) {
	var out []byte
	err := patiently(ctx, func() error { return c.call(ctx, cluster.PathBackup, struct{}{}, &out, cluster.MaxBackup) })
	return out, err
}

// Restore replaces the state by a backup's.
func (c *Client) Restore(ctx context.Context, backup []byte) error {
	var out struct{}
	return c.call(ctx, cluster.PathRestore, backup, &out, cluster.MaxCall)
}

// Transfer has the leader hand over, to a control node or (empty) to any.
func (c *Client) Transfer(ctx context.Context, to string) error {
	var out struct{}
	return c.call(ctx, cluster.PathTransfer, cluster.TransferRequest{To: to}, &out, cluster.MaxCall)
}

// CreateKey makes an API key. If it returns client.ErrNoLeader, a key may have been
// made that nobody knows; so it is asked for once.
func (c *Client) CreateKey(ctx context.Context, request KeyRequest) (NewKey, error) {
	var out NewKey
	err := c.call(ctx, PathKeys, request, &out, cluster.MaxCall)
	return out, err
}

// Trace asks the workers what they remember of a request, by its id (trace.ID).
func (c *Client) Trace(ctx context.Context, id string) (Trace, error) {
	var out Trace
	err := c.call(ctx, PathTrace, TraceRequest{ID: id}, &out, cluster.MaxBackup)
	return out, err
}

// errSeen ends a watch that has shown enough.
var errSeen = errors.New("seen")

// Bounds of what State waits for.
const (
	// indexWithin bounds the question how far the state must have come: a leader that is there
	// answers in a moment.
	indexWithin = time.Second
	// caughtUpWithin bounds the wait for a control node that lags behind.
	caughtUpWithin = 2 * time.Second
)

// State is the state with every change that was acknowledged before the call, at whatever
// control node, and whether the node that answers knows a leader. If there is none, or if that
// node does not catch up soon, it is the state as that node has it.
func (c *Client) State(ctx context.Context) (*state.State, bool, error) {
	least := c.acknowledged(ctx)
	var out *state.State
	led := false
	began := time.Now()
	err := c.Watch(ctx, func(s *state.State, leader string) error {
		out, led = s, leader != ""
		if s.Index < least && time.Since(began) < caughtUpWithin {
			return nil
		}
		return errSeen
	})
	if errors.Is(err, errSeen) {
		err = nil
	}
	return out, led, err
}

// acknowledged is the index of a state that has every change that was acknowledged before the
// call; 0 if nobody can tell, as without a leader, or if the control nodes are of an earlier
// build.
func (c *Client) acknowledged(ctx context.Context) uint64 {
	ctx, cancel := context.WithTimeout(ctx, indexWithin)
	defer cancel()
	var reply cluster.IndexReply
	if err := c.call(ctx, cluster.PathIndex, struct{}{}, &reply, cluster.MaxCall); err != nil {
		return 0
	}
	return reply.Index
}

// Watch calls see with the state, and again with every change and once a second at
// least, until see returns an error, which Watch then returns. leader is the node that
// leads, empty for none.
func (c *Client) Watch(ctx context.Context, see func(s *state.State, leader string) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	response, err := c.do(ctx, http.MethodGet, cluster.PathWatch+"?since=0", nil)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // it was only read
	lines := bufio.NewReaderSize(response.Body, 64<<10)
	follower := client.Follower{State: new(state.State)}
	for {
		text, err := readLine(lines)
		if err != nil {
			return unanswered(ctx, fmt.Errorf("the watch ended: %w", err))
		}
		line, _, err := follower.Read(text)
		if err != nil {
			return err
		}
		if line.More {
			continue
		}
		if err := see(follower.State, line.Leader); err != nil {
			return err
		}
	}
}

// readLine reads up to a newline, client.MaxLine bytes at most.
func readLine(r *bufio.Reader) ([]byte, error) {
	var out []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(out)+len(part) > client.MaxLine {
			return nil, fmt.Errorf("%w: a line has more than %d bytes", client.ErrBadRequest, client.MaxLine)
		}
		out = append(out, part...)
		if err == nil {
			return out, nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
	}
}
