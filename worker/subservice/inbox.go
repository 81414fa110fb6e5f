package subservice

import "sync"

// inbox is the queue in front of the decode loop. Any goroutine posts; the
// decode loop takes everything at once.
//
// It has no bound of its own, because each kind of message has one where it
// comes from: submissions by Config.MaxQueue, frames by the links' credits,
// cancellations and link changes by the number of requests and links.
type inbox struct {
	mu     sync.Mutex
	queue  []message
	spare  []message // the slice taken last time, reused
	closed bool
	// wake has room for one value: the decode loop receives, post sends without
	// blocking. It is never closed.
	wake chan struct{}
}

// message is one thing for the decode loop to apply.
type message interface{ apply(*Subservice) }

func newInbox() *inbox { return &inbox{wake: make(chan struct{}, 1)} }

// post adds m and wakes the loop. It reports false once the loop has ended.
func (b *inbox) post(m message) bool {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return false
	}
	b.queue = append(b.queue, m)
	b.mu.Unlock()
	b.poke()
	return true
}

// poke wakes the loop although nothing was posted.
func (b *inbox) poke() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// take returns all messages in the order they were posted. The slice is valid
// until the next take.
func (b *inbox) take() []message {
	b.mu.Lock()
	defer b.mu.Unlock()
	taken := b.queue
	clear(b.spare)
	b.queue, b.spare = b.spare[:0], taken
	return taken
}

// close refuses further messages and returns those not taken.
func (b *inbox) close() []message {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	rest := b.queue
	b.queue = nil
	return rest
}
