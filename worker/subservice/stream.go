package subservice

import (
	"sync"
	"time"

	"github.com/tokenrouter/tokenrouter/api/generate"
)

// maxStreamTokens is how many tokens wait for a slow gateway before the request
// is held back.
const maxStreamTokens = 256

// stream carries a request's events from the decode loop to its client loop.
//
// The decode loop pushes and never waits; tokens go only when the next step has been
// launched, so that waking client loops holds no step up. When the client loop is behind by
// maxStreamTokens the decode loop holds the sequence back (its pages are kept,
// its place in the batch is free) until the client loop has caught up. A
// collaborator in the middle of a visit is not held, so the queue's real bound
// is the request's token limit.
type stream struct {
	mu     sync.Mutex
	events []generate.Event
	tokens int
	// held says that the decode loop waits for caughtUp.
	held bool
	// pushed is when the last event was pushed, in the decode loop's time.
	pushed time.Duration
	// sink, if set, takes all events at once, and nothing is queued.
	sink func(generate.Event)
	// wake has room for one value: push sends without blocking, the client loop receives.
	wake chan struct{}
}

func newStream() *stream { return &stream{wake: make(chan struct{}, 1)} }

func (s *stream) push(now time.Duration, e generate.Event) {
	s.mu.Lock()
	s.events = append(s.events, e)
	s.tokens += len(e.Tokens)
	s.pushed = now
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// hold reports whether the client loop is too far behind, and remembers that
// the decode loop waits for it.
func (s *stream) hold() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = s.tokens >= maxStreamTokens
	return s.held
}

// silentSince is when the last event was pushed.
func (s *stream) silentSince() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pushed
}

// take returns the events pushed since the last take, and whether the decode
// loop must be told that the client loop has caught up.
func (s *stream) take() (events []generate.Event, caughtUp bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	events, caughtUp = s.events, s.held
	s.events, s.tokens, s.held = nil, 0, false
	return events, caughtUp
}
