package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tokenrouter/tokenrouter/api/generate"
)

// session drives one request over as many entries as it takes. One goroutine
// calls open, then next until an answer ends or an error comes, then close.
type session struct {
	cfg     *Config
	metrics *metrics
	log     *slog.Logger
	d       *deployment
	req     generate.Request
	ledger  ledger

	stream  Stream
	replica *replica
	cancel  context.CancelFunc

	// failures counts submissions since the last new token, tried the replicas
	// that they went to.
	failures int
	tried    []*replica
}

func newSession(g *Gateway, d *deployment, req generate.Request) *session {
	return &session{
		cfg: &g.cfg, metrics: g.metrics, log: g.cfg.Logger, d: d, req: req,
		ledger: ledger{limit: int(req.Sampling.MaxTokens), models: len(d.Models), vocab: d.Vocab},
	}
}

// open submits the request and returns once an entry has admitted it.
func (s *session) open(ctx context.Context) error {
	for {
		r := s.d.pick(time.Now(), s.tried)
		if r == nil {
			return errNoCapacity
		}
		err := s.submit(ctx, r)
		if err == nil {
			return nil
		}
		s.close()
		if err := s.again(ctx, r, err); err != nil {
			return err
		}
	}
}

// submit opens a stream in a new epoch and waits for its admission.
func (s *session) submit(ctx context.Context, r *replica) error {
	s.req.Epoch = s.ledger.begin()
	s.req.Resume = s.ledger.resume()
	ctx, s.cancel = context.WithCancel(ctx)
	s.replica = r
	r.inFlight.Add(1)
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

// update is what a session has to tell: new tokens, or the end.
type update struct {
	tokens []generate.TokenEvent
	done   bool
	finish generate.Finish
	tail   string
	epoch  uint32
}

// next returns the next committed tokens, or the end. It moves the request to
// another entry when its own is lost.
func (s *session) next(ctx context.Context) (update, error) {
	for {
		u, err := s.read()
		if err == nil {
			if len(u.tokens) > 0 {
				s.failures, s.tried = 0, s.tried[:0]
			}
			if len(u.tokens) > 0 || u.done {
				return u, nil
			}
			continue
		}
		r := s.replica
		s.close()
		if err := s.again(ctx, r, err); err != nil {
			return update{}, err
		}
		if err := s.open(ctx); err != nil {
			return update{}, err
		}
	}
}

// read takes one event.
func (s *session) read() (update, error) {
	e, err := s.stream.Next()
	if err != nil {
		return update{}, lost(err)
	}
	u := update{epoch: s.ledger.epoch}
	switch e.Kind {
	case generate.EventFinish:
		err = s.ledger.end(e)
		u.done, u.finish, u.tail = err == nil, e.Finish, e.Tail
	case generate.EventError:
		if err = errStale; e.Epoch == s.ledger.epoch && e.Err != nil {
			err = e.Err
		}
	default:
		u.tokens, err = s.ledger.accept(e)
	}
	if s.stale(err) {
		return update{}, nil
	}
	return u, err
}

// stale counts an event of another epoch, which is dropped.
func (s *session) stale(err error) bool {
	if !errors.Is(err, errStale) {
		return false
	}
	s.metrics.stale.Inc()
	return true
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
func (s *session) again(ctx context.Context, r *replica, err error) error {
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
		reason = "refused"
	case errors.Is(err, errConflict):
		reason = "conflict"
		s.metrics.conflicts.Inc()
		s.log.Error("an entry changed committed tokens", "request", s.req.ID, "replica", r.entry.Name(), "epoch", s.ledger.epoch, "err", err)
	case errors.Is(err, errGap), errors.Is(err, errEvent), errors.Is(err, ErrProtocol):
		reason = "protocol"
	}
	busy := refused != nil && refused.Code == generate.CodeQueueFull
	if !busy {
		r.eject(time.Now(), s.cfg.EjectFor)
	}
	s.failures++
	s.tried = append(s.tried, r)
	all := s.triedAll()
	if s.failures >= s.cfg.MaxAttempts || int(s.ledger.epoch) > s.cfg.MaxMoves || busy && all {
		if refused != nil {
			return refused
		}
		return fmt.Errorf("%w: %w", errEntriesLost, err)
	}
	s.metrics.moves.WithLabelValues(reason).Inc()
	s.log.Warn("request moves", "request", s.req.ID, "replica", r.entry.Name(), "epoch", s.ledger.epoch, "reason", reason, "err", err)
	if !all {
		return nil
	}
	s.tried = s.tried[:0]
	return s.pause(ctx)
}

// retryable reports whether another replica may do better than the one that refused.
func retryable(e *generate.Error) bool {
	switch e.Code {
	case generate.CodeQueueFull, generate.CodeStaleEpoch, generate.CodeConflict:
		return true
	}
	return e.Retryable
}

func (s *session) triedAll() bool {
	for _, r := range s.d.replicas {
		if !slices.Contains(s.tried, r) {
			return false
		}
	}
	return true
}

// pause waits for the backoff of the present failure: between half and all of
// Backoff·2^(failures-1), at most 32 times Backoff.
func (s *session) pause(ctx context.Context) error {
	d := s.cfg.Backoff << min(s.failures-1, 5)
	timer := time.NewTimer(d/2 + rand.N(d/2+1))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// close gives up the present stream, if there is one. The entry sees its
// context end.
func (s *session) close() {
	if s.cancel != nil {
		s.cancel()
		s.cancel = nil
		s.replica.inFlight.Add(-1)
	}
	if s.stream != nil {
		_ = s.stream.Close() // best effort: the cancelled context says the same
		s.stream = nil
	}
}
