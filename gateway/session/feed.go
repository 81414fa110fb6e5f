package session

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/sourcegraph/conc"
	"github.com/sourcegraph/conc/panics"
)

// Bounds of what one answer may have waiting in a Feed. An event that exceeds
// them is taken in whole, and the next one waits.
const (
	maxWaitingTokens = 256
	maxWaitingBytes  = 64 << 10
)

// tokenBytes is what a token or an alternative takes besides its text.
const tokenBytes = 64

// ErrPanic says that serving a request panicked; the log has the value.
var ErrPanic = errors.New("panic while serving the request")

// Event is what one of a feed's sessions has to tell. Exactly one of Admitted,
// a non-empty Update and Err is set.
type Event struct {
	// Choice is the session's index.
	Choice int
	// Admitted says that an entry has taken the request; PromptLen is then known.
	Admitted  bool
	PromptLen int
	Update
	// Err is the session's end without an answer; see Session.Open.
	Err error
}

// Feed runs sessions side by side and queues what they bring until it is taken.
// No session reads on before all are admitted. When an answer has
// maxWaitingTokens or maxWaitingBytes in the queue, its session stops reading,
// which holds the entry's stream back.
type Feed struct {
	cfg      *Config
	sessions []*Session
	// ready has room for one value: push sends without blocking, the taker receives.
	ready chan struct{}
	// opened is closed when all sessions are admitted, by the last of them.
	opened chan struct{}
	// room[i] has room for one value: Take sends without blocking, session i receives.
	room []chan struct{}

	mu      sync.Mutex
	events  []Event
	spare   []Event // what was taken last, used again
	waiting []load  // by session: what is in events
	absent  int     // sessions that are not admitted yet
}

// load is what an answer has in the queue.
type load struct{ tokens, bytes int }

func (l load) full() bool { return l.tokens >= maxWaitingTokens || l.bytes >= maxWaitingBytes }

// NewFeed returns a feed of sessions, which belong to it from now on.
func NewFeed(cfg *Config, sessions []*Session) *Feed {
	f := &Feed{
		cfg: cfg, sessions: sessions, ready: make(chan struct{}, 1), opened: make(chan struct{}),
		waiting: make([]load, len(sessions)), absent: len(sessions),
	}
	for range sessions {
		f.room = append(f.room, make(chan struct{}, 1))
	}
	return f
}

// Run serves all sessions and returns when every one has ended, with an update
// that is Done or an error, or because ctx has. It may be called once.
func (f *Feed) Run(ctx context.Context) {
	var pumps conc.WaitGroup
	for i, s := range f.sessions {
		pumps.Go(func() {
			if caught := panics.Try(func() { f.pump(ctx, i, s) }); caught != nil {
				f.cfg.Logger.Error("panic in a request", "request", s.ID(), "err", caught.AsError())
				f.push(Event{Choice: i, Err: fmt.Errorf("%w: %v", ErrPanic, caught.Value)})
			}
		})
	}
	pumps.Wait()
}

// Ready receives a value when there is something to take.
func (f *Feed) Ready() <-chan struct{} { return f.ready }

// Take returns what has come since the last call, in order, and lets the
// sessions go on. The slice is valid until the next Take; what its events hold
// is the caller's to keep.
func (f *Feed) Take() []Event {
	f.mu.Lock()
	defer f.mu.Unlock()
	events := f.events
	clear(f.spare)
	f.events, f.spare = f.spare[:0], events
	for i := range f.waiting {
		if f.waiting[i].full() {
			signal(f.room[i])
		}
		f.waiting[i] = load{}
	}
	return events
}

// signal wakes whoever receives from c, now or later.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// push queues an event and reports whether the session has to wait for room.
func (f *Feed) push(e Event) (full bool) {
	f.mu.Lock()
	f.events = append(f.events, e)
	l := &f.waiting[e.Choice]
	l.tokens += len(e.Tokens) + len(e.Prompt)
	l.bytes += e.size()
	full = l.full()
	f.mu.Unlock()
	signal(f.ready)
	return full
}

// size is about what an update takes in memory.
func (u *Update) size() int {
	n := len(u.Tail)
	for i := range u.Tokens {
		t := &u.Tokens[i]
		n += tokenBytes + len(t.Show) + len(t.Bytes)
		for j := range t.Top {
			n += tokenBytes + len(t.Top[j].Text) + len(t.Top[j].Bytes)
		}
	}
	for i := range u.Prompt {
		t := &u.Prompt[i]
		n += tokenBytes + len(t.Text) + len(t.Bytes)
		for j := range t.Top {
			n += tokenBytes + len(t.Top[j].Text) + len(t.Top[j].Bytes)
		}
	}
	return n
}

// pump queues everything that a session brings.
func (f *Feed) pump(ctx context.Context, i int, s *Session) {
	defer s.Close()
	if err := s.Open(ctx); err != nil {
		f.push(Event{Choice: i, Err: err})
		return
	}
	f.push(Event{Choice: i, Admitted: true, PromptLen: s.PromptLen()})
	if !f.admitted(ctx) {
		return
	}
	for {
		u, err := s.Next(ctx)
		if err != nil {
			f.push(Event{Choice: i, Err: err})
			return
		}
		done := u.Done
		full := f.push(Event{Choice: i, Update: u})
		if done {
			return
		}
		if full && !f.wait(ctx, i) {
			return
		}
	}
}

// admitted counts a session as admitted and waits for the others. It reports
// false if ctx ends first.
func (f *Feed) admitted(ctx context.Context) bool {
	f.mu.Lock()
	f.absent--
	if f.absent == 0 {
		close(f.opened)
	}
	f.mu.Unlock()
	select {
	case <-f.opened:
		return true
	case <-ctx.Done():
		return false
	}
}

// wait blocks until there is room for more of a session. It reports false if
// ctx ends first.
func (f *Feed) wait(ctx context.Context, i int) bool {
	for {
		select {
		case <-f.room[i]:
		case <-ctx.Done():
			return false
		}
		f.mu.Lock()
		full := f.waiting[i].full()
		f.mu.Unlock()
		if !full {
			return true
		}
	}
}
