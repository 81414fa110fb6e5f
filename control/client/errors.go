package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/internal/h2"
)

// Errors of calls, besides those of package state.
var (
	// ErrNoLeader says that the control nodes have no leader, or cannot be reached.
	// Whether a command was applied is not known; repeat it with the same Request.
	ErrNoLeader = errors.New("no_quorum: the control nodes have no leader")
	// ErrNotLeader says that a forwarded call met a node that leads no more.
	ErrNotLeader = errors.New("the control node leads no more")
	// ErrForbidden says that the role may not do that.
	ErrForbidden = errors.New("forbidden")
	// ErrRemoved says that the caller was removed from the cluster.
	ErrRemoved = errors.New("the node was removed from the cluster")
	// ErrCertificate says that no control node that can be reached takes the caller's
	// certificate: the node was removed, or a clock is wrong.
	ErrCertificate = errors.New("the control nodes refuse this node's certificate")
	// ErrElsewhere says that another process has started with the caller's identity.
	ErrElsewhere = errors.New("another process has started with a copy of this node's identity")
	// ErrBadRequest says that a call or an answer cannot be read.
	ErrBadRequest = errors.New("bad request")
	// ErrVersion says that not all control nodes speak a command's version, or that a
	// node speaks none that they do.
	ErrVersion = errors.New("protocol versions do not fit")
	// ErrTooMany says that there were too many bad tries from this address.
	ErrTooMany = errors.New("too many bad tries")
	// ErrInternal says that the control node failed; its log says why.
	ErrInternal = errors.New("the control node failed")
)

// sentinels are the codes that are not of package state.
func sentinels() []struct {
	code string
	err  error
} {
	return []struct {
		code string
		err  error
	}{
		{cluster.CodeNoQuorum, ErrNoLeader}, {cluster.CodeNotLeader, ErrNotLeader},
		{cluster.CodeForbidden, ErrForbidden}, {cluster.CodeRemoved, ErrRemoved},
		{cluster.CodeBadRequest, ErrBadRequest}, {cluster.CodeVersion, ErrVersion},
		{cluster.CodeTooMany, ErrTooMany}, {cluster.CodeInternal, ErrInternal},
	}
}

// Problem is an error as it travels. Errors without a code become CodeInternal, and
// keep their text to themselves.
func Problem(err error) cluster.Problem {
	for _, s := range sentinels() {
		if errors.Is(err, s.err) {
			return cluster.Problem{Code: s.code, Text: err.Error()}
		}
	}
	if code := state.Code(err); code != "" {
		return cluster.Problem{Code: code, Text: err.Error()}
	}
	return cluster.Problem{Code: cluster.CodeInternal, Text: ErrInternal.Error()}
}

// Err is the error that a Problem was.
func Err(p cluster.Problem) error {
	if err := state.Coded(p.Code, p.Text); err != nil {
		return err
	}
	for _, s := range sentinels() {
		if s.code == p.Code {
			return &travelled{p.Text, s.err}
		}
	}
	return fmt.Errorf("%s: %s", p.Code, p.Text)
}

// ReadProblem reads the body of a refusal. An error says that it did not come whole: the
// connection ended, and what the other side wanted to say is not known. A body that is no
// Problem gives one without a code.
func ReadProblem(body io.Reader) (cluster.Problem, error) {
	text, err := io.ReadAll(io.LimitReader(body, cluster.MaxCall))
	if err != nil {
		return cluster.Problem{}, err
	}
	var p cluster.Problem
	if err := json.Unmarshal(text, &p); err != nil {
		return cluster.Problem{}, nil // of somebody else, such as a proxy
	}
	return p, nil
}

// refusesCertificate says that the other side, having shown who it is, has ended the
// connection because of the caller's certificate. What comes during the caller's part of the
// handshake does not count: anybody on the way may have sent it.
func refusesCertificate(err error) bool {
	var remote *net.OpError
	return !errors.Is(err, h2.ErrHandshake) && errors.As(err, &remote) && remote.Op == "remote error" && remote.Err.Error() == "tls: bad certificate"
}

// travelled is an error with the text that it had elsewhere.
type travelled struct {
	text string
	is   error
}

func (t *travelled) Error() string { return t.text }
func (t *travelled) Unwrap() error { return t.is }
