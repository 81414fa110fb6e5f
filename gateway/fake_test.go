package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/tokenrouter/tokenrouter/api/generate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errKilled = errors.New("fake entry killed")

// script is an answer: what every replica computes for any prompt.
type script struct {
	tokens []generate.TokenEvent
	finish generate.Finish
	tail   string
}

// words is a script of n tokens, every fifth written by model 1.
func words(n int) *script {
	s := &script{finish: generate.FinishStop}
	for i := range n {
		t := generate.TokenEvent{ID: int32(10 + i), Text: fmt.Sprintf(" w%d", i)}
		if i%5 == 4 {
			t.Model = 1
		}
		s.tokens = append(s.tokens, t)
	}
	return s
}

func (s *script) text() string {
	var b strings.Builder
	for _, t := range s.tokens {
		b.WriteString(t.Text)
	}
	return b.String() + s.tail
}

// fakeEntry answers with a script. Its hooks may be nil.
type fakeEntry struct {
	name   string
	script *script
	// refuse is returned instead of a stream if it is not nil.
	refuse func(r *generate.Request) error
	// edit may change, add, or (with an error) replace the event at the given
	// position of the answer: -1 for the admission, len(tokens) for the finish.
	edit func(r *generate.Request, position int, e *generate.Event) ([]*generate.Event, error)
	// gate is waited for before every token, if it is not nil.
	gate func(ctx context.Context, position int) error

	active atomic.Int64 // streams whose context has not ended
	mu     sync.Mutex
	seen   []generate.Request
}

func (f *fakeEntry) Name() string { return f.name }

func (f *fakeEntry) requests() []generate.Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]generate.Request(nil), f.seen...)
}

func (f *fakeEntry) Generate(ctx context.Context, r *generate.Request) (Stream, error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	f.mu.Lock()
	f.seen = append(f.seen, *r)
	f.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if f.refuse != nil {
		if err := f.refuse(r); err != nil {
			return nil, err
		}
	}
	f.active.Add(1)
	context.AfterFunc(ctx, func() { f.active.Add(-1) })
	s := &fakeStream{f: f, ctx: ctx, r: *r, position: -1}
	return s, nil
}

// fakeStream is one run over the script. State of the policy is the position,
// so that a test sees that it travels.
type fakeStream struct {
	f        *fakeEntry
	ctx      context.Context
	r        generate.Request
	position int
	queue    []*generate.Event
}

func (s *fakeStream) Close() error { return nil }

func (s *fakeStream) Next() (*generate.Event, error) {
	if err := s.ctx.Err(); err != nil {
		return nil, err
	}
	if len(s.queue) > 0 {
		e := s.queue[0]
		s.queue = s.queue[1:]
		return e, nil
	}
	script := s.f.script
	limit := min(len(script.tokens), int(s.r.Sampling.MaxTokens))
	e := &generate.Event{Epoch: s.r.Epoch}
	at := s.position
	switch {
	case at < 0:
		e.Kind, e.Replica, e.PromptIDs = generate.EventAdmitted, s.f.name, []int32{1, 2, 3}
		s.position = 0
		if s.r.Resume != nil {
			s.position = len(s.r.Resume.Tokens)
		}
	case at < limit:
		if s.f.gate != nil {
			if err := s.f.gate(s.ctx, at); err != nil {
				return nil, err
			}
		}
		t := script.tokens[at]
		if s.r.Sampling.Logprobs < 0 {
			t.Bytes, t.Logprob, t.Top = nil, 0, nil
		}
		e.Kind, e.Base, e.Tokens = generate.EventTokens, int32(at), []generate.TokenEvent{t}
		e.Turn, e.Owner, e.State = true, t.Model, []byte{byte(at + 1)}
		s.position++
	case at == limit:
		e.Kind, e.Finish, e.Tail = generate.EventFinish, script.finish, script.tail
		if limit < len(script.tokens) {
			e.Finish = generate.FinishLength
		}
		s.position++
	default:
		return nil, io.EOF
	}
	if s.f.edit == nil {
		return e, nil
	}
	events, err := s.f.edit(&s.r, at, e)
	if err != nil {
		return nil, err
	}
	s.queue = events[1:]
	return events[0], nil
}

// pass is what edit returns to change nothing.
func pass(e *generate.Event) ([]*generate.Event, error) { return []*generate.Event{e}, nil }

// deploy is a deployment "tiny" of two models with the given entries.
func deploy(entries ...Entry) Deployment {
	return Deployment{
		Name: "tiny", Models: []string{"tiny-s", "tiny-l"}, Entries: entries, Policy: "r2r",
		MaxContext: 512, Vocab: 1000, Created: time.Unix(1700000000, 0),
		Defaults: Defaults{Temperature: 0.6, TopP: 0.95, TopK: 20},
	}
}

// fixture is a gateway on a test server.
type fixture struct {
	*Gateway
	t        *testing.T
	server   *httptest.Server
	registry *prometheus.Registry
}

// start serves a gateway until the test ends. change may be nil.
func start(t *testing.T, change func(*Config), entries ...Entry) *fixture {
	t.Helper()
	f := &fixture{t: t, registry: prometheus.NewRegistry()}
	cfg := Config{Deployments: []Deployment{deploy(entries...)}, Metrics: f.registry, ServeMetrics: true, Backoff: time.Microsecond}
	if change != nil {
		change(&cfg)
	}
	g, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	f.Gateway = g
	f.server = httptest.NewServer(g.Handler())
	t.Cleanup(func() {
		f.server.CloseClientConnections()
		f.server.Close()
		f.server.Client().CloseIdleConnections()
	})
	return f
}

// post sends a body and returns the answer with its whole body.
func (f *fixture) post(path, body string) (*http.Response, string) {
	f.t.Helper()
	return f.send(http.MethodPost, path, body, nil)
}

func (f *fixture) send(method, path, body string, header http.Header) (*http.Response, string) {
	f.t.Helper()
	req, err := http.NewRequestWithContext(f.t.Context(), method, f.server.URL+path, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for k, v := range header {
		req.Header[k] = v
	}
	resp, err := f.server.Client().Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return resp, string(b)
}

// metric sums the samples of a metric whose labels contain all of want
// ("name=value").
func (f *fixture) metric(name string, want ...string) float64 {
	f.t.Helper()
	families, err := f.registry.Gather()
	if err != nil {
		f.t.Fatal(err)
	}
	sum := 0.0
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			labels := ""
			for _, l := range m.GetLabel() {
				labels += "," + l.GetName() + "=" + l.GetValue()
			}
			matches := true
			for _, w := range want {
				matches = matches && strings.Contains(labels+",", ","+w+",")
			}
			if matches {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}
