package main

import (
	"errors"
	"fmt"

	controlclient "github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/internal/cluster/operator"
)

// quorumError is a cluster without a leader: nothing was changed, or that is not known.
type quorumError struct{ err error }

func (e *quorumError) Error() string { return e.err.Error() }
func (e *quorumError) Unwrap() error { return e.err }

// clusterError is an error of a call to a cluster, with the exit code that it has.
func clusterError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, controlclient.ErrNoLeader), errors.Is(err, controlclient.ErrNotLeader):
		return &quorumError{fmt.Errorf("%w; try again once a majority of the control nodes runs, or at one that has a leader", err)}
	case errors.Is(err, controlclient.ErrCertificate):
		return &serverError{fmt.Errorf("%w (is the --identity revoked? do the clocks differ?)", err)}
	case errors.Is(err, operator.ErrUnreachable):
		return &serverError{fmt.Errorf("%w (does a control node run here, with this --admin? is the --identity, if any, revoked?)", err)}
	}
	return &serverError{err}
}
