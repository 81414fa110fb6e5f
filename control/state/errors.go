package state

import (
	"errors"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// Errors of commands. They are results like any other: the command is in the log,
// and has changed nothing.
var (
	ErrInvalid  = errors.New("is not allowed")
	ErrNotFound = errors.New("does not exist")
	ErrExists   = errors.New("exists already")
	// ErrConflict says that the state has changed since the command was made.
	ErrConflict = errors.New("the state has changed since")
	// ErrToken says that a join token does not admit. It comes with one of the five
	// below.
	ErrToken        = errors.New("join token")
	ErrTokenUnknown = errors.New("is not known")
	ErrTokenExpired = errors.New("expired")
	ErrTokenRevoked = errors.New("was revoked")
	ErrTokenUsed    = errors.New("was used already")
	ErrTokenRole    = errors.New("is for another role")
)

// codes names the errors where they travel as text; the special comes before the
// general.
func codes() []struct {
	code string
	errs []error
} {
	return []struct {
		code string
		errs []error
	}{
		{"token_unknown", []error{ErrTokenUnknown, ErrToken}},
		{"token_expired", []error{ErrTokenExpired, ErrToken}},
		{"token_revoked", []error{ErrTokenRevoked, ErrToken}},
		{"token_used", []error{ErrTokenUsed, ErrToken}},
		{"token_role", []error{ErrTokenRole, ErrToken}},
		{"conflict", []error{ErrConflict}},
		{"not_found", []error{ErrNotFound}},
		{"exists", []error{ErrExists}},
		{"invalid", []error{ErrInvalid}},
		{"bad_command", []error{cluster.ErrCommand}},
		{"forgotten", []error{ErrForgotten}},
	}
}

// Code is the name of an error of this package, empty for others.
func Code(err error) string {
	for _, c := range codes() {
		if errors.Is(err, c.errs[0]) {
			return c.code
		}
	}
	return ""
}

// Coded is the error of a code with a text, nil if this package has no such code.
func Coded(code, text string) error {
	for _, c := range codes() {
		if c.code == code {
			return &coded{text, c.errs}
		}
	}
	return nil
}

// coded is an error that has travelled.
type coded struct {
	text string
	errs []error
}

func (c *coded) Error() string   { return c.text }
func (c *coded) Unwrap() []error { return c.errs }
