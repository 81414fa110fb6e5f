package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/api/routing"
)

// asking is how problems are put to a server.
type asking struct {
	client                 *client
	name                   string // of the model to ask
	maxTokens, concurrency int
	// override goes with every request; nil for nothing.
	override *routing.Override
}

// measure asks every problem, greedily, and adds up the answers. If ctx ends
// before, the report of those answered comes with the error. record may be nil; it
// then has an entry for every problem that was answered.
func (a *asking) measure(ctx context.Context, p process, problems []problem, record []*recorded) (*evalReport, error) {
	t := newTally(a.name)
	bar := newProgress(ctx, p, len(problems))
	start := time.Now()
	asks := pool.New().WithContext(ctx).WithCancelOnError().WithFirstError().WithMaxGoroutines(a.concurrency)
	for i, q := range problems {
		asks.Go(func(ctx context.Context) error {
			req := a.request(i, q)
			r, err := a.client.complete(ctx, req)
			if err != nil {
				return err
			}
			if record != nil {
				record[i] = recordOf(req, r)
			}
			bar.step(t.add(q, r), time.Since(start))
			return nil
		})
	}
	err := asks.Wait()
	bar.end()
	return t.report(time.Since(start)), err
}

// request asks the i-th problem. The seed is for policies that draw; the answers
// themselves are greedy.
func (a *asking) request(i int, q problem) chatRequest {
	zero, seed := 0.0, int64(i)
	return chatRequest{
		Model: a.name, Messages: []message{{Role: "user", Content: q.Question}},
		MaxTokens: a.maxTokens, Temperature: &zero, Seed: &seed, Routing: a.override,
	}
}

// recorded is a request with its answer, one line of a recording.
type recorded struct {
	chatRequest
	Text       string `json:"text"`
	Policy     string `json:"policy,omitempty"`
	Provenance []span `json:"provenance,omitempty"`
	// Entry is the entry model's name.
	Entry string `json:"entry,omitempty"`
	// line is where it stands in the recording, from 1.
	line int
}

func recordOf(req chatRequest, r *reply) *recorded {
	out := &recorded{chatRequest: req, Text: r.Choices[0].Message.Content}
	if r.Routing != nil {
		out.Policy, out.Provenance = r.Routing.Policy, r.Routing.Provenance
		if len(r.Routing.Models) > 0 {
			out.Entry = r.Routing.Models[0]
		}
	}
	return out
}

// span is a stretch of tokens that one model wrote, in JSON [model, tokens].
type span struct {
	Model string
	N     int
}

// MarshalJSON writes [model, tokens].
func (s span) MarshalJSON() ([]byte, error) { return json.Marshal([]any{s.Model, s.N}) }

// UnmarshalJSON reads [model, tokens].
func (s *span) UnmarshalJSON(text []byte) error {
	pair := []any{&s.Model, &s.N}
	if err := json.Unmarshal(text, &pair); err != nil {
		return err
	}
	if len(pair) != 2 || s.N < 0 || s.N > maxRecordBytes {
		return fmt.Errorf("%q is not [model, tokens]", text)
	}
	return nil
}

// maxRecordBytes bounds a recording.
const maxRecordBytes = 1 << 30

// writeRecord writes a recording, one request a line. Requests without an answer
// are left out.
func writeRecord(name string, list []*recorded) error {
	f, err := os.Create(name)
	if err != nil {
		return &usageError{fmt.Errorf("write recording: %w", err)}
	}
	enc := json.NewEncoder(f)
	enc.SetEscapeHTML(false)
	for _, r := range list {
		if r == nil {
			continue
		}
		if err = enc.Encode(r); err != nil {
			break
		}
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return fmt.Errorf("write recording: %w", err)
	}
	return nil
}
