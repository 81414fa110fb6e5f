package subservice

import (
	"sync"

	"github.com/tokenrouter/tokenrouter/api/generate"
)

// stream carries a request's events from the decode loop to its client loop.
//
// The decode loop pushes and never waits; the client loop takes all that is
// there. Its length is bounded by the request's token limit.
type stream struct {
	mu     sync.Mutex
	events []generate.Event
	// wake has room for one value: push sends without blocking, the client loop receives.
	wake chan struct{}
}

func newStream() *stream { return &stream{wake: make(chan struct{}, 1)} }

func (s *stream) push(e generate.Event) {
	s.mu.Lock()
	s.events = append(s.events, e)
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// take returns the events pushed since the last take.
func (s *stream) take() []generate.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.events
	s.events = nil
	return e
}
