package sim

import (
	"errors"
	"fmt"
	"time"

	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/schedule"
)

// ErrConfig says that a configuration makes no sense.
var ErrConfig = errors.New("simulation: bad configuration")

// Limits of a simulation.
const (
	MaxModels      = 8
	MaxRequests    = 1 << 20
	MaxTokens      = 1 << 14 // of one answer
	MaxConcurrency = 512
)

// Model is one model of the group, with one replica.
type Model struct {
	Name string
	// Step are the times of a step by batch size, from 1 on; a larger batch takes
	// the last one.
	Step []time.Duration
	// Slowed is by how much a step slows down while another model's runs: its speed
	// is then 1/Slowed. 0 means 1.
	Slowed float64
	// Prefill is how much longer a step takes for every prompt whose first pass is in it.
	// The sequence does not count in the batch then.
	Prefill time.Duration
	// Jitter varies every step, uniformly by up to this share of its time.
	Jitter float64
	// Threshold, LongestWait and MaxRows are as in scheduler.Config; 0 means 1,
	// automatic, and 64.
	Threshold   int
	LongestWait time.Duration
	MaxRows     int
}

// time is the time of a step that runs alone, of so many first passes of prompts and
// other sequences.
func (m *Model) time(prompts, others int) time.Duration {
	if m.Prefill == 0 {
		prompts, others = 0, prompts+others
	}
	took := m.Prefill * time.Duration(prompts)
	if others > 0 {
		took += m.Step[min(others, len(m.Step))-1]
	}
	return took
}

// Request is one request of a run.
type Request struct {
	// At is when it arrives; Cancel is when its client goes away, 0 for never.
	At, Cancel time.Duration
	// Prompt and Tokens are the lengths of prompt and answer.
	Prompt, Tokens int
	Seed           uint64
	// Path, if set, gives the model that writes each token, by index; every token
	// is kept and the turn goes on with it. It replaces the policy, and Tokens.
	Path []policies.ModelID
}

// Config is a simulation.
type Config struct {
	// Models are the group, the entry model first.
	Models   []Model
	Policy   string
	Settings policies.Settings
	// P and Commit, if set, replace the policy: after a step on i a request goes to j
	// with probability P[i][j], and its token is kept with probability Commit[i][j].
	P, Commit [][]float64
	Schedule  schedule.Rule
	// Requests arrive at their time, or with Concurrency, that many at a time: the
	// next one when one has ended.
	Requests    []Request
	Concurrency int
	// Transit is how long a hand-off is on its way.
	Transit time.Duration
	// Seed makes the steps' jitter.
	Seed uint64
	// Pages of PageSize tokens each model has; 0 means enough for all.
	Pages, PageSize int
	// Record keeps every step in Result.Steps, Visits every request's in Result.Visits.
	Record, Visits bool
	// Checked verifies every batch and, after every event, the invariants of the
	// schedulers. It is slow.
	Checked bool
	// MaxEvents bounds the run; 0 means no bound.
	MaxEvents int
}

func (c *Config) validate() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{ErrConfig}, args...)...)
	}
	if len(c.Models) < 1 || len(c.Models) > MaxModels {
		return bad("%d models, want 1 to %d", len(c.Models), MaxModels)
	}
	for i, m := range c.Models {
		if len(m.Step) == 0 || len(m.Step) > MaxConcurrency {
			return bad("model %d: %d step times, want 1 to %d", i, len(m.Step), MaxConcurrency)
		}
		for b, d := range m.Step {
			if d <= 0 {
				return bad("model %d: a step of %d takes %s", i, b+1, d)
			}
		}
		if m.Threshold < 0 || m.LongestWait < 0 || m.MaxRows < 0 || m.Slowed < 0 || m.Prefill < 0 || !(m.Jitter >= 0 && m.Jitter < 1) {
			return bad("model %d: a negative value, or a jitter of 1 or more", i)
		}
	}
	if n := len(c.Requests); n < 1 || n > MaxRequests {
		return bad("%d requests, want 1 to %d", n, MaxRequests)
	}
	if c.Concurrency < 0 || c.Concurrency > MaxConcurrency {
		return bad("concurrency %d, want 0 to %d", c.Concurrency, MaxConcurrency)
	}
	if c.P != nil {
		if err := c.checkChain(bad); err != nil {
			return err
		}
	}
	for i := range c.Requests {
		r := &c.Requests[i]
		n := r.length()
		if r.Prompt < 0 || n < 1 || r.Prompt+n > MaxTokens || r.At < 0 || r.Cancel < 0 {
			return bad("request %d: prompt of %d, answer of %d tokens, at %s", i, r.Prompt, n, r.At)
		}
		for _, k := range r.Path {
			if int(k) >= len(c.Models) {
				return bad("request %d: its path has model %d", i, k)
			}
		}
	}
	return nil
}

func (r *Request) length() int {
	if len(r.Path) > 0 {
		return len(r.Path)
	}
	return r.Tokens
}

// Closed returns n requests alike for a closed loop, each with its own seed.
func Closed(n, prompt, tokens int) []Request {
	list := make([]Request, n)
	for i := range list {
		list[i] = Request{Prompt: prompt, Tokens: tokens, Seed: uint64(i + 1)}
	}
	return list
}
