package operator

import (
	"log/slog"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/api/trace"
)

// Paths of operators' calls besides those of package api/cluster: API keys are made, and
// the workers are asked what they remember of a request.
const (
	PathKeys  = "/v1/operator/keys"
	PathTrace = "/v1/operator/trace"
)

// TraceRequest asks for a request by its id (trace.ID).
type TraceRequest struct {
	ID string `json:"id"`
}

// Trace is what the workers remember of a request. Silent are those that did not answer.
type Trace struct {
	Parts  []trace.Part `json:"parts"`
	Silent []string     `json:"silent,omitempty"`
}

// KeyRequest asks for a new API key. Its fields are those of cluster.Key.
type KeyRequest struct {
	Name              string    `json:"name,omitempty"`
	Expires           time.Time `json:"expires,omitzero"`
	Models            []string  `json:"models,omitempty"`
	Policies          []string  `json:"policies,omitempty"`
	RequestsPerMinute int64     `json:"requests_per_minute,omitempty"`
	TokensPerMinute   int64     `json:"tokens_per_minute,omitempty"`
	Concurrency       int       `json:"concurrency,omitempty"`
}

// NewKey is a key that was made. Its text is nowhere else.
type NewKey struct {
	Text string      `json:"key"`
	Key  cluster.Key `json:"object"`
}

// String leaves the secret out.
func (k NewKey) String() string { return "API key " + k.Key.ID }

// LogValue leaves the secret out.
func (k NewKey) LogValue() slog.Value { return slog.StringValue(k.String()) }

// GoString leaves the secret out.
func (k NewKey) GoString() string { return k.String() }
