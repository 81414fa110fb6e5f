package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tokenrouter/tokenrouter/api/generate"
)

var (
	// ErrNoCapacity says that a deployment has no entry at the moment.
	ErrNoCapacity = errors.New("no replica of the entry model")
	// ErrLost says that every try to serve a request failed. Its text has the last failure.
	ErrLost = errors.New("no entry could serve the request")
	// ErrChanged says that the deployment has got other models, or is no more, before any
	// entry had admitted the request. Whoever looks it up again finds what it is now.
	ErrChanged = errors.New("the deployment has changed")
	// errStalled says that an entry was silent for Config.StallAfter.
	errStalled = errors.New("the entry stalled")
)

// Request is one answer to compute.
type Request struct {
	generate.Request
	// Stops are strings that end the answer and are not part of it: at most
	// MaxStops, of 1 to MaxStopBytes bytes each.
	Stops []string
}

// Session drives one request over as many entries as it takes. One goroutine
// calls Open, then Next until an answer ends or an error comes, then Close.
type Session struct {
	cfg    *Config
	d      *Served
	req    generate.Request
	ledger ledger
	stop   *stopMatcher // nil without stop strings
	// sticky names the request's conversation.
	sticky uint64

	stream  Stream
	replica *replica
	// ctx is the stream's own, kept to see why it ended.
	ctx    context.Context
	cancel context.CancelCauseFunc
	// silence ends the stream's context when the entry is silent for too long;
	// it runs only while the session waits for the entry.
	silence *time.Timer
	// alive says that the entry has shown a sign of life since admission.
	alive bool

	// failures counts submissions since the last new token, tried the replicas
	// that they went to.
	failures int
	tried    []*replica
	// unheard is since when entries refuse because they do not know the deployment; zero
	// if the last one did not.
	unheard time.Time
}

// New returns a session for an answer of d. cfg has its defaults filled in and
// must outlive the session.
func New(cfg *Config, d *Served, r *Request) *Session {
	s := &Session{
		cfg: cfg, d: d, req: r.Request, sticky: stickyKey(&r.Request), stop: newStopMatcher(r.Stops),
		ledger: ledger{limit: int(r.Sampling.MaxTokens), models: len(d.Models), vocab: d.Vocab, echo: r.Echo},
	}
	if !d.sticky.hot(s.sticky) {
		s.req.ID = placed(s.req.ID, s.sticky)
	}
	return s
}

// ID is the request's.
func (s *Session) ID() uint64 { return s.req.ID }

// PromptLen is the number of the prompt's tokens, known once Open has returned.
func (s *Session) PromptLen() int { return len(s.ledger.prompt) }

// Open submits the request and returns once an entry has admitted it. Errors
// are a *generate.Error (an entry's refusal), wrap ErrNoCapacity, ErrLost or
// ErrChanged, or are the cause of ctx's end.
func (s *Session) Open(ctx context.Context) error {
	for {
		r, move := s.d.place(time.Now(), s.tried, s.sticky)
		switch {
		case r == nil && s.superseded():
			return ErrChanged
		case r == nil:
			return ErrNoCapacity
		}
		s.d.sticky.began(s.sticky, r, move)
		err := s.submit(ctx, r)
		if err == nil {
			return nil
		}
		err = s.blame(err)
		s.Close()
		if err := s.again(ctx, r, err); err != nil {
			return err
		}
	}
}

// submit opens a stream in a new epoch and waits for its admission, no longer
// than StallAfter.
func (s *Session) submit(ctx context.Context, r *replica) error {
	s.req.Epoch = s.ledger.begin()
	s.req.Resume = s.ledger.resume()
	// What was recited is not asked for again, unless there is nothing else to ask.
	recited := s.ledger.prompt != nil && s.ledger.echoed == len(s.ledger.prompt)
	s.req.Echo = s.ledger.echo && (!recited || s.req.Sampling.MaxTokens == 0)
	ctx, cancel := context.WithCancelCause(ctx)
	s.ctx, s.cancel, s.alive = ctx, cancel, false
	s.replica = r
	r.inFlight.Add(1)
	if s.cfg.StallAfter > 0 {
		s.silence = time.AfterFunc(s.cfg.StallAfter, func() { cancel(errStalled) })
		defer s.silence.Stop()
	}
	stream, err := r.entry.Generate(ctx, &s.req)
	if err != nil {
		return err
	}
	s.stream = stream
	for {
		e, err := stream.Next()
		if err != nil {
			return lost(err)
		}
		if e.Kind == generate.EventError && e.Epoch == s.ledger.epoch && e.Err != nil {
			return e.Err
		}
		if err := s.ledger.admit(e); !s.stale(err) {
			return err
		}
	}
}

// Token is one committed token.
type Token struct {
	generate.TokenEvent
	// Show is the text that may be shown once this token is there. It differs
	// from Text only while stop strings are looked for: text that may become one
	// is shown with a later token, or not at all.
	Show string
}

// Update is what a session has to tell: new tokens, or the end, or both.
type Update struct {
	// Prompt are tokens of the prompt, if they were asked for. They come before
	// the first of Tokens.
	Prompt []generate.TokenEvent
	Tokens []Token
	// Cached is the number of prompt tokens that came from the prefix cache,
	// once it is known.
	Cached int
	// Alone says that the entry model has written Tokens alone, as no other model
	// could be reached.
	Alone bool
	Done  bool
	// Finish and Tail count when Done: why the answer ended, and what is shown
	// after the last token.
	Finish generate.Finish
	Tail   string
	Epoch  uint32
}

// empty says that there is nothing to tell.
func (u *Update) empty() bool { return len(u.Tokens) == 0 && len(u.Prompt) == 0 && !u.Done }

// Next returns the next committed tokens, or the end. It moves the request to
// another entry when its own is lost. Errors are as for Open; after one, or
// after an update with Done, Next must not be called again.
func (s *Session) Next(ctx context.Context) (Update, error) {
	for {
		u, err := s.read()
		if err == nil {
			if !u.empty() {
				s.failures, s.tried, s.unheard = 0, s.tried[:0], time.Time{}
				return u, nil
			}
			continue
		}
		r := s.replica
		err = s.blame(err)
		s.Close()
		if err := s.again(ctx, r, err); err != nil {
			return Update{}, err
		}
		if err := s.Open(ctx); err != nil {
			return Update{}, err
		}
	}
}

// read takes one event.
func (s *Session) read() (Update, error) {
	if s.alive && s.silence != nil {
		s.silence.Reset(s.cfg.StallAfter)
		defer s.silence.Stop()
	}
	e, err := s.stream.Next()
	if err != nil {
		return Update{}, lost(err)
	}
	u := Update{Epoch: s.ledger.epoch, Cached: int(e.Cached)}
	switch e.Kind {
	case generate.EventFinish:
		if err = s.ledger.end(e); err == nil {
			s.finish(&u, e)
		}
	case generate.EventError:
		if err = errStale; e.Epoch == s.ledger.epoch && e.Err != nil {
			err = e.Err
		}
	case generate.EventPrompt:
		u.Prompt, err = s.ledger.recite(e)
	case generate.EventAlive:
		if e.Epoch != s.ledger.epoch {
			err = errStale
		}
	default:
		var fresh []generate.TokenEvent
		if fresh, err = s.ledger.accept(e); err == nil {
			u.Alone = e.Alone && len(fresh) > 0
			s.show(&u, fresh)
		}
	}
	if s.stale(err) {
		return Update{}, nil
	}
	s.alive = s.alive || err == nil
	return u, err
}

// show passes new tokens on, up to the one that completes a stop string.
func (s *Session) show(u *Update, fresh []generate.TokenEvent) {
	if len(fresh) == 0 {
		return
	}
	first := len(s.ledger.tokens) - len(fresh)
	u.Tokens = make([]Token, len(fresh))
	for i := range fresh {
		u.Tokens[i] = Token{TokenEvent: fresh[i], Show: fresh[i].Text}
		if s.stop == nil {
			continue
		}
		var stopped bool
		u.Tokens[i].Show, stopped = s.stop.next(fresh[i].Text, s.tooShort(first+i+1))
		if stopped {
			u.Tokens = u.Tokens[:i+1]
			s.ledger.cut(first + i + 1)
			u.Done, u.Finish = true, generate.FinishStop
			return
		}
	}
}

// tooShort says that an answer of n tokens must not end yet.
func (s *Session) tooShort(n int) bool { return n < int(s.req.Sampling.MinTokens) }

// finish ends the answer as the entry did, unless its last text completes a stop.
func (s *Session) finish(u *Update, e *generate.Event) {
	u.Done, u.Finish, u.Tail = true, e.Finish, e.Tail
	if s.stop == nil {
		return
	}
	show, stopped := s.stop.next(e.Tail, s.tooShort(len(s.ledger.tokens)))
	if stopped {
		u.Finish = generate.FinishStop
	}
	u.Tail = show + s.stop.rest()
}

// stale counts an event of another epoch, which is dropped.
func (s *Session) stale(err error) bool {
	if !errors.Is(err, errStale) {
		return false
	}
	s.cfg.Metrics.stale.Inc()
	return true
}

// blame replaces an error of the stream that stems from our own watch over it.
func (s *Session) blame(err error) error {
	if s.ctx != nil && context.Cause(s.ctx) == errStalled {
		return fmt.Errorf("%w for %s", errStalled, s.cfg.StallAfter)
	}
	return err
}

// lost turns the end of a stream before its last event into an error.
func lost(err error) error {
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("entry lost: %w", err)
}

// again decides, after a submission to r has failed with err, whether to try
// once more; nil means yes. It pauses first if all replicas were tried.
func (s *Session) again(ctx context.Context, r *replica, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	reason := "lost"
	var refused *generate.Error
	switch {
	case errors.As(err, &refused):
		if !retryable(refused) {
			return refused
		}
		if reason = "refused"; refused.Code == generate.CodeNotFound {
			reason = "unheard"
		}
	case errors.Is(err, errConflict):
		reason = "conflict"
		s.cfg.Metrics.conflicts.Inc()
		s.cfg.Logger.Error("an entry changed committed tokens", "request", s.req.ID, "replica", r.entry.Name(), "epoch", s.ledger.epoch, "err", err)
	case errors.Is(err, errGap), errors.Is(err, errEvent), errors.Is(err, ErrProtocol):
		reason = "protocol"
	case errors.Is(err, errStalled):
		reason = "stalled"
	}
	if s.superseded() {
		return fmt.Errorf("%w: %v", ErrChanged, err)
	}
	busy := refused != nil && refused.Code == generate.CodeQueueFull
	unheard := reason == "unheard"
	if !busy && !unheard {
		r.eject(time.Now(), s.cfg.EjectFor)
	}
	s.failures++
	s.tried = append(s.tried, r)
	all := s.triedAll()
	if s.spent(unheard) || busy && all {
		switch {
		case unheard:
			// The deployment does exist, as the gateway knows.
			return &generate.Error{Code: generate.CodeUnavailable, Message: refused.Message, Param: refused.Param}
		case refused != nil:
			return refused
		}
		// As a text: a dial that was given up has the error of a context, which callers would
		// take for the end of their own.
		return fmt.Errorf("%w: %v", ErrLost, err)
	}
	s.cfg.Metrics.moves.WithLabelValues(reason).Inc()
	s.cfg.Logger.Warn("request moves", "request", s.req.ID, "replica", r.entry.Name(), "epoch", s.ledger.epoch, "reason", reason, "err", err)
	if !all {
		return nil
	}
	s.tried = s.tried[:0]
	return s.pause(ctx)
}

// spent says that a request was submitted often enough, or for long enough to entries
// that have not heard of its deployment.
func (s *Session) spent(unheard bool) bool {
	switch {
	case int(s.ledger.epoch) > s.cfg.MaxMoves:
		return true
	case !unheard:
		s.unheard = time.Time{}
		return s.failures >= s.cfg.MaxAttempts
	case s.unheard.IsZero():
		s.unheard = time.Now()
	}
	return time.Since(s.unheard) >= s.cfg.HearWithin
}

// superseded says that the request can begin anew with what its deployment is now.
func (s *Session) superseded() bool {
	select {
	case <-s.d.replicas.superseded:
		return s.ledger.prompt == nil
	default:
		return false
	}
}

// retryable reports whether another replica may do better than the one that refused. One
// that does not know a deployment may have heard of a change later than the gateway, or
// earlier.
func retryable(e *generate.Error) bool {
	switch e.Code {
	case generate.CodeQueueFull, generate.CodeStaleEpoch, generate.CodeConflict, generate.CodeNotFound:
		return true
	}
	return e.Retryable
}

func (s *Session) triedAll() bool {
	for _, r := range s.d.replicas.all() {
		if !slices.Contains(s.tried, r) {
			return false
		}
	}
	return true
}

// pause waits for the backoff of the present failure: between half and all of
// Backoff·2^(failures-1), at most 32 times Backoff, or 8 times for a deployment that is
// not heard of yet.
func (s *Session) pause(ctx context.Context) error {
	doublings := 5
	if !s.unheard.IsZero() {
		doublings = 3
	}
	d := s.cfg.Backoff << min(s.failures-1, doublings)
	timer := time.NewTimer(d/2 + rand.N(d/2+1))
	defer timer.Stop()
	var superseded <-chan struct{} // never, once an entry has admitted the request
	if s.ledger.prompt == nil {
		superseded = s.d.replicas.superseded
	}
	select {
	case <-timer.C:
		return nil
	case <-superseded:
		return ErrChanged
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Close gives up the present stream, if there is one. The entry sees its
// context end. It may be called at any time between the other methods.
func (s *Session) Close() {
	if s.cancel != nil {
		s.cancel(nil)
		s.cancel, s.ctx = nil, nil
		s.replica.inFlight.Add(-1)
		s.d.sticky.ended(s.sticky)
	}
	if s.silence != nil {
		s.silence.Stop()
		s.silence = nil
	}
	if s.stream != nil {
		_ = s.stream.Close() // best effort: the cancelled context says the same
		s.stream = nil
	}
}
