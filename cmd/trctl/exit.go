package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/tokenrouter/tokenrouter/engine"
)

// Exit codes. They are part of the interface: scripts test them.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitServer      = 3
	exitBound       = 4
	exitDevice      = 5
	exitNoQuorum    = 6
	exitInterrupted = 130
)

// exitTopic is what `trctl help exit-codes` prints.
const exitTopic = `Exit codes of every command:
    0  done; for serve and what joins a cluster: stopped by Ctrl-C or SIGTERM, before it served or after the requests in flight ended
    1  failed while running: a model that cannot be loaded, an address in use, a file that cannot be read, a disk that is full
    2  wrong usage or configuration; nothing was started
    3  the server or the cluster cannot be reached, or refused the request (chat, bench, eval --url, and what operates a cluster)
    4  eval, bench: a bound such as --min-accuracy or --max-error-rate does not hold; calibrate: no threshold does it; solve --check: an expected value
    5  serve, worker join, eval: a fault has spoiled a GPU for this process, or a step of a model does not end; start it again
    6  the cluster's control nodes have no leader, so nothing can be changed now; serving goes on (cluster, key, apply, delete, drain, gpu)
  130  interrupted before the work was done (a second Ctrl-C ends serve like this)
`

// errShown ends a command line that only asked for help or the version.
var errShown = errors.New("shown")

// usageError is a fault of the command line, the environment or a configuration
// file: nothing was started.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

// serverError is a server that did not answer, or refused.
type serverError struct{ err error }

func (e *serverError) Error() string { return e.err.Error() }
func (e *serverError) Unwrap() error { return e.err }

// boundError is a value, measured or computed, outside the bounds that the caller gave.
type boundError struct{ err error }

func (e *boundError) Error() string { return e.err.Error() }
func (e *boundError) Unwrap() error { return e.err }

// interruptedError is an interruption, with what it left undone. It wraps the
// context's error.
type interruptedError struct {
	what string
	err  error
}

func (e *interruptedError) Error() string { return e.what }
func (e *interruptedError) Unwrap() error { return e.err }

// stoppedCode is exitCode for a command that stays until it is stopped, and was. An interruption then was no failure: it may have
// come before the command had begun. Nor is a GPU that is lost, or a step that hangs, while the requests in flight end: nobody
// wants a new process.
func stoppedCode(err error) int {
	code := exitCode(err)
	if code == exitDevice || errors.Is(err, context.Canceled) {
		return exitDone
	}
	return code
}

// exitCode maps what a command returned to the process's exit code.
func exitCode(err error) int {
	var usage *usageError
	var server *serverError
	var bound *boundError
	var quorum *quorumError
	switch {
	case err == nil, errors.Is(err, errShown):
		return exitDone
	case errors.As(err, &usage):
		return exitUsage
	case errors.Is(err, engine.ErrDeviceLost), errors.Is(err, engine.ErrHung):
		return exitDevice
	case errors.Is(err, context.Canceled):
		return exitInterrupted
	case errors.As(err, &quorum):
		return exitNoQuorum
	case errors.As(err, &server):
		return exitServer
	case errors.As(err, &bound):
		return exitBound
	}
	return exitFailed
}
