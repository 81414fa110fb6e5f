package session

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tokenrouter/tokenrouter/api/generate"
)

// Metrics are those of sessions. Labels come from configuration and from fixed
// lists alone, so the number of series is bounded.
type Metrics struct {
	moves      *prometheus.CounterVec // reason
	stale      prometheus.Counter
	conflicts  prometheus.Counter
	tokens     *prometheus.CounterVec   // deployment, model
	firstToken *prometheus.HistogramVec // deployment; seconds
	interToken *prometheus.HistogramVec // deployment; seconds
	ended      *prometheus.CounterVec   // deployment, cause
	prompt     *prometheus.CounterVec   // deployment; tokens
	duration   *prometheus.HistogramVec // deployment; seconds
}

// NewMetrics builds the metrics under trctl_<subsystem>_ and registers them.
func NewMetrics(r *prometheus.Registry, subsystem string) (*Metrics, error) {
	m := newMetrics(subsystem)
	for _, c := range []prometheus.Collector{m.moves, m.stale, m.conflicts, m.tokens, m.firstToken, m.interToken, m.ended, m.prompt, m.duration} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

func newMetrics(subsystem string) *Metrics {
	const namespace = "trctl"
	opts := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}
	}
	seconds := func(name, help string, first float64) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: name, Help: help,
			Buckets: prometheus.ExponentialBuckets(first, 2, 16),
		}, []string{"deployment"})
	}
	return &Metrics{
		moves:      prometheus.NewCounterVec(opts("resubmissions_total", "Re-submissions of a request in a new epoch."), []string{"reason"}),
		stale:      prometheus.NewCounter(opts("stale_frames_total", "Events refused because they were of another epoch.")),
		conflicts:  prometheus.NewCounter(opts("conflicts_total", "Committed positions sent again with another content. Never expected.")),
		tokens:     prometheus.NewCounterVec(opts("tokens_total", "Committed tokens, by the model that wrote them."), []string{"deployment", "model"}),
		firstToken: seconds("time_to_first_token_seconds", "From the request's arrival to its first committed token.", 0.001),
		interToken: seconds("inter_token_latency_seconds", "Between committed tokens of one answer.", 0.0001),
		ended:      prometheus.NewCounterVec(opts("ended_total", "Requests for answers that ended, by cause."), []string{"deployment", "cause"}),
		prompt:     prometheus.NewCounterVec(opts("prompt_tokens_total", "Tokens of the prompts of answers that have begun."), []string{"deployment"}),
		duration:   seconds("request_duration_seconds", "From the request's arrival to the end of its answer, of answers that were completed.", 0.001),
	}
}

// Series are a deployment's own metrics, looked up once for a request.
type Series struct {
	tokens                 []prometheus.Counter // by model index
	firstToken, interToken prometheus.Observer
}

// Series returns the metrics of a deployment.
func (m *Metrics) Series(d *Served) *Series {
	s := &Series{firstToken: m.firstToken.WithLabelValues(d.Name), interToken: m.interToken.WithLabelValues(d.Name)}
	for _, model := range d.Models {
		s.tokens = append(s.tokens, m.tokens.WithLabelValues(d.Name, model))
	}
	return s
}

// Count counts committed tokens.
func (s *Series) Count(tokens []Token) {
	for i := range tokens {
		s.tokens[tokens[i].Model].Inc()
	}
}

// First observes the seconds to the first token, Between those between two tokens.
func (s *Series) First(seconds float64) { s.firstToken.Observe(seconds) }

// Between observes the seconds between two tokens.
func (s *Series) Between(seconds float64) { s.interToken.Observe(seconds) }

// Ended counts a request by its cause. deployment is the name of one, or empty
// for a request that named none that exists.
func (m *Metrics) Ended(deployment string, c Cause) {
	m.ended.WithLabelValues(deployment, string(c)).Inc()
}

// Answered observes a request whose answer has begun, by its prompts' tokens, and by its
// duration in seconds if the answer was completed.
func (m *Metrics) Answered(deployment string, c Cause, prompt int, seconds float64) {
	if prompt > 0 {
		m.prompt.WithLabelValues(deployment).Add(float64(prompt))
	}
	switch c {
	case CauseDone, CauseStop, CauseLength:
		m.duration.WithLabelValues(deployment).Observe(seconds)
	}
}

// Cause is why a request ended: one word for logs and metrics.
type Cause string

// Causes.
const (
	// CauseDone is the end of what needs no finish: an answer whose choices
	// ended differently, or a route that generates nothing.
	CauseDone         Cause = "done"
	CauseStop         Cause = "stop"
	CauseLength       Cause = "length"
	CauseClientClosed Cause = "client_closed"
	CauseDeadline     Cause = "deadline"
	CauseWorkerLost   Cause = "worker_lost"
	CauseShed         Cause = "shed"
	CauseTooSlow      Cause = "too_slow"
	CauseBadRequest   Cause = "bad_request"
	// CauseInternal is a fault of ours.
	CauseInternal Cause = "internal"
)

// CauseOf is the cause that a list of finishes amounts to.
func CauseOf(finishes ...generate.Finish) Cause {
	var all Cause
	for _, f := range finishes {
		c := CauseStop
		if f == generate.FinishLength {
			c = CauseLength
		}
		if all != "" && all != c {
			return CauseDone
		}
		all = c
	}
	return all
}

// CauseOfError is the cause of an error that a Session has ended with.
func CauseOfError(err error) Cause {
	var refused *generate.Error
	switch {
	case errors.As(err, &refused):
		switch refused.HTTPStatus() {
		case http.StatusBadRequest, http.StatusNotFound:
			return CauseBadRequest
		case http.StatusTooManyRequests:
			return CauseShed
		case http.StatusServiceUnavailable:
			return CauseWorkerLost
		}
		return CauseInternal
	case errors.Is(err, ErrNoCapacity):
		return CauseShed
	case errors.Is(err, ErrLost), errors.Is(err, ErrChanged):
		return CauseWorkerLost
	case errors.Is(err, ErrSettings):
		return CauseBadRequest
	case errors.Is(err, context.DeadlineExceeded):
		return CauseDeadline
	case errors.Is(err, context.Canceled):
		return CauseClientClosed
	}
	return CauseInternal
}
