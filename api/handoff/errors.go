package handoff

import "errors"

var (
	// ErrTruncated is returned when a frame ends before its layout does.
	ErrTruncated = errors.New("handoff: frame is truncated")
	// ErrTooLarge is returned when a count or a length is over its limit.
	ErrTooLarge = errors.New("handoff: frame is over a limit")
	// ErrMalformed is returned when a value is out of its range, a flag is
	// unknown, or bytes are left over.
	ErrMalformed = errors.New("handoff: frame is malformed")
	// ErrKind is returned when the kind of a frame is unknown.
	ErrKind = errors.New("handoff: frame kind is unknown")
	// ErrVersion is returned when a Hello speaks no version that this build does. It
	// comes with a *protocol.Mismatch.
	ErrVersion = errors.New("handoff: refused hello")
	// ErrConflict is returned by Fence.Check when a turn arrives twice with
	// different content. Its code on the wire is CodeConflict.
	ErrConflict = errors.New("handoff: same turn with different content")
	// ErrStale is returned by Fence.Check for a turn older than the last applied one.
	ErrStale = errors.New("handoff: turn is stale")
	// ErrGap is returned by Fence.Check for progress that skips positions.
	ErrGap = errors.New("handoff: progress skips positions")
)

// Codes of Release frames that this package defines.
const (
	CodeConflict = "handoff_conflict"
)
