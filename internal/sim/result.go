package sim

import (
	"time"

	"github.com/tokenrouter/tokenrouter/policies"
)

// Result is what a run did.
type Result struct {
	// Elapsed is the time of the last event.
	Elapsed time.Duration
	// Full is how long Config.Concurrency requests were in flight: until no new one
	// was left to arrive. FullTokens were committed by then.
	Full       time.Duration
	FullTokens int
	// Tokens were committed; Finished and Failed requests have ended, Cancelled
	// ones were given up by their clients.
	Tokens, Finished, Failed, Cancelled int
	// Ended[i] is when request i ended, Digests[i] a hash of its answer: ids and the
	// models that wrote them.
	Ended   []time.Duration
	Digests []uint64
	// By model, as configured.
	Models []ModelResult
	// Steps are all steps in order of their start, with Config.Record.
	Steps []Step
	// Visits[i] are the steps of request i in order, with Config.Visits.
	Visits [][]Visit
	// Events counts events, steps' ends among them.
	Events int
}

// ModelResult is what one model did.
type ModelResult struct {
	Steps, Rows int
	// Busy is the time in steps.
	Busy time.Duration
	// Committed counts the tokens that it wrote, Handoffs the turns that it gave away.
	Committed, Handoffs int
}

// Throughput is tokens a second. Of a closed loop the end, with fewer and fewer
// requests in flight, does not count.
func (r *Result) Throughput() float64 {
	if r.Full > 0 {
		return float64(r.FullTokens) / r.Full.Seconds()
	}
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(r.Tokens) / r.Elapsed.Seconds()
}

// MeanBatch is the mean number of sequences in a step.
func (m *ModelResult) MeanBatch() float64 {
	if m.Steps == 0 {
		return 0
	}
	return float64(m.Rows) / float64(m.Steps)
}

// MeanEnd is the mean time at which requests ended.
func (r *Result) MeanEnd() time.Duration {
	var sum time.Duration
	for _, d := range r.Ended {
		sum += d
	}
	return sum / time.Duration(max(1, len(r.Ended)))
}

// Step is one step of one model.
type Step struct {
	Model      policies.ModelID
	Start, End time.Duration
	Rows       []Row
}

// Visit is one step of one request.
type Visit struct {
	Model policies.ModelID
	// Kept says that its token was committed.
	Kept bool
}

// Row is one request's part of a step.
type Row struct {
	Request int
	// Position is the number of tokens that the answer had.
	Position int
}
