package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/gateway/session"
	"github.com/tokenrouter/tokenrouter/gateway/session/sessiontest"
)

// waitFor is a gate that opens when ch is closed.
func waitFor(ch <-chan struct{}) func(context.Context, int) error {
	return func(ctx context.Context, _ int) error {
		select {
		case <-ch:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// undisturbed is the stream of an entry that never fails, with the parts that
// tell about the run taken out.
func undisturbed(t *testing.T, s *sessiontest.Script, fields string) string {
	t.Helper()
	f := start(t, nil, &sessiontest.Entry{ID: "e1", Script: s})
	_, body := f.post(chatPath, `{`+hi+fields+`}`)
	return sameRun(body)
}

func sameRun(body string) string {
	body = stable(body)
	for e := range 64 {
		body = strings.ReplaceAll(body, fmt.Sprintf(`"epoch":%d,`, e), `"epoch":N,`)
	}
	return body
}

// TestDieAtEveryToken kills the entry before and after every event, with one
// and with two replicas, streamed and not. The client must not see a difference.
func TestDieAtEveryToken(t *testing.T) {
	s := sessiontest.Words(12)
	s.Tail = "�"
	for _, fields := range []string{`,"stream":true,"stream_options":{"include_usage":true}`, ``, `,"stream":true,"logprobs":true,"top_logprobs":1`} {
		want := undisturbed(t, s, fields)
		for position := -1; position <= 12; position++ {
			for _, replicas := range []int{1, 2} {
				edit := func(r *generate.Request, at int, e *generate.Event) ([]*generate.Event, error) {
					if at == position && r.Epoch == 1 {
						return nil, sessiontest.ErrKilled
					}
					return sessiontest.Pass(e)
				}
				var entries []session.Entry
				for i := range replicas {
					entries = append(entries, &sessiontest.Entry{ID: fmt.Sprintf("e%d", i), Script: s, Edit: edit})
				}
				f := start(t, nil, entries...)
				_, body := f.post(chatPath, `{`+hi+fields+`}`)
				if got := sameRun(body); got != want {
					t.Fatalf("killed at %d of %d replicas:\ngot  %s\nwant %s", position, replicas, got, want)
				}
				if got := f.metric("trctl_gateway_resubmissions_total", "reason=lost"); got != 1 {
					t.Errorf("%g re-submissions", got)
				}
			}
		}
	}
}

// TestDieAfterEveryToken has an entry that dies after each single token.
func TestDieAfterEveryToken(t *testing.T) {
	s := sessiontest.Words(30)
	want := undisturbed(t, s, `,"stream":true`)
	e := &sessiontest.Entry{ID: "e1", Script: s}
	e.Edit = func(r *generate.Request, at int, ev *generate.Event) ([]*generate.Event, error) {
		first := 0
		if r.Resume != nil {
			first = len(r.Resume.Tokens)
		}
		if at > first && at < len(s.Tokens) {
			return nil, sessiontest.ErrKilled
		}
		return sessiontest.Pass(ev)
	}
	f := start(t, nil, e)
	_, body := f.post(chatPath, `{`+hi+`,"stream":true}`)
	if got := sameRun(body); got != want {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
	// What travelled: ids, owner and state of the last committed token.
	for i, r := range e.Requests() {
		if int(r.Epoch) != i+1 || r.ID != e.Requests()[0].ID || r.Sampling.Seed != e.Requests()[0].Sampling.Seed {
			t.Errorf("request %d: epoch %d", i, r.Epoch)
		}
		if i == 0 {
			continue
		}
		n := len(r.Resume.Tokens)
		last := s.Tokens[n-1]
		if n != i || r.Resume.Owner != last.Model || !slices.Equal(r.Resume.State, []byte{byte(n)}) ||
			r.Resume.Tokens[n-1] != (generate.Token{ID: last.ID, Model: last.Model}) || !slices.Equal(r.Resume.PromptIDs, []int32{1, 2, 3}) {
			t.Errorf("resume %d: %+v", i, r.Resume)
		}
	}
	// MaxMoves bounds it.
	f = start(t, func(c *Config) { c.Session.MaxMoves = 3 }, e)
	_, body = f.post(chatPath, `{`+hi+`,"stream":true}`)
	chunks := events(t, body)
	if last := chunks[len(chunks)-1]; last.Error == nil || *last.Error.Code != "model_unavailable" || joined(chunks, 0) != " w0 w1 w2 w3" {
		t.Errorf("after three moves: %s", body)
	}
}

// fenceCase is what an entry sends at one position of its first epoch.
type fenceCase struct {
	name   string
	at     int
	edit   func(e *generate.Event) ([]*generate.Event, error)
	moves  float64
	metric string
}

// fenceCases are the events of broken and late entries, around script s.
func fenceCases(s *sessiontest.Script) []fenceCase {
	late := func(epoch uint32, base int32, ids ...int32) *generate.Event {
		return &generate.Event{Kind: generate.EventTokens, Epoch: epoch, Base: base, Tokens: tokenEvents(ids...)}
	}
	return []fenceCase{
		{"stale tokens", 4, func(e *generate.Event) ([]*generate.Event, error) {
			return []*generate.Event{late(0, 4, 99), e}, nil
		}, 0, "trctl_gateway_stale_frames_total"},
		{"future tokens", 4, func(e *generate.Event) ([]*generate.Event, error) {
			return []*generate.Event{late(9, 4, 99), e}, nil
		}, 0, "trctl_gateway_stale_frames_total"},
		{"stale finish", 4, func(e *generate.Event) ([]*generate.Event, error) {
			return []*generate.Event{{Kind: generate.EventFinish, Epoch: 7, Finish: generate.FinishStop}, e}, nil
		}, 0, "trctl_gateway_stale_frames_total"},
		{"stale error", 4, func(e *generate.Event) ([]*generate.Event, error) {
			return []*generate.Event{{Kind: generate.EventError, Epoch: 7, Err: &generate.Error{Code: "x"}}, e}, nil
		}, 0, "trctl_gateway_stale_frames_total"},
		{"duplicate", 4, func(e *generate.Event) ([]*generate.Event, error) {
			return []*generate.Event{e, {Kind: generate.EventTokens, Epoch: e.Epoch, Base: 3, Tokens: slices.Clone(s.Tokens[3:5])}}, nil
		}, 0, ""},
		{"conflict", 4, func(e *generate.Event) ([]*generate.Event, error) {
			return []*generate.Event{late(e.Epoch, 2, 99)}, nil
		}, 1, "trctl_gateway_conflicts_total"},
		{"gap", 4, func(e *generate.Event) ([]*generate.Event, error) {
			return []*generate.Event{late(e.Epoch, 6, 99)}, nil
		}, 1, ""},
		{"id out of range", 4, func(e *generate.Event) ([]*generate.Event, error) {
			return []*generate.Event{late(e.Epoch, 4, 1000)}, nil
		}, 1, ""},
		{"unknown model", 4, func(e *generate.Event) ([]*generate.Event, error) {
			e.Tokens[0].Model = 2
			return sessiontest.Pass(e)
		}, 1, ""},
		{"second admission", 4, func(e *generate.Event) ([]*generate.Event, error) {
			return []*generate.Event{{Kind: generate.EventAdmitted, Epoch: e.Epoch, PromptIDs: []int32{1, 2, 3}}}, nil
		}, 1, ""},
		{"unknown kind", 4, func(e *generate.Event) ([]*generate.Event, error) {
			return []*generate.Event{{Kind: 77, Epoch: e.Epoch}}, nil
		}, 1, ""},
		{"error without a reason", 4, func(e *generate.Event) ([]*generate.Event, error) {
			return []*generate.Event{{Kind: generate.EventError, Epoch: e.Epoch}, e}, nil
		}, 0, "trctl_gateway_stale_frames_total"},
		{"tokens before admission", -1, func(e *generate.Event) ([]*generate.Event, error) {
			return []*generate.Event{late(e.Epoch, 0, 10)}, nil
		}, 1, ""},
		{"retryable error", 4, func(e *generate.Event) ([]*generate.Event, error) {
			return []*generate.Event{{Kind: generate.EventError, Epoch: e.Epoch, Err: &generate.Error{Code: generate.CodeUnavailable, Retryable: true}}}, nil
		}, 1, ""},
		{"retryable error at once", -1, func(e *generate.Event) ([]*generate.Event, error) {
			return []*generate.Event{{Kind: generate.EventError, Epoch: e.Epoch, Err: &generate.Error{Code: generate.CodeUnavailable, Retryable: true}}}, nil
		}, 1, ""},
		{"the prompt changes", -1, func(e *generate.Event) ([]*generate.Event, error) {
			return []*generate.Event{{Kind: generate.EventAdmitted, Epoch: e.Epoch, PromptIDs: []int32{5000}}}, nil
		}, 1, ""},
	}
}

// TestFence sends what a broken or late entry could send. In every case the
// client must get the undisturbed answer; never another text.
func TestFence(t *testing.T) {
	s := sessiontest.Words(8)
	want := undisturbed(t, s, `,"stream":true`)
	for _, tc := range fenceCases(s) {
		t.Run(tc.name, func(t *testing.T) {
			edit := func(r *generate.Request, at int, e *generate.Event) ([]*generate.Event, error) {
				if r.Epoch == 1 && at == tc.at {
					return tc.edit(e)
				}
				return sessiontest.Pass(e)
			}
			f := start(t, nil, &sessiontest.Entry{ID: "e1", Script: s, Edit: edit}, &sessiontest.Entry{ID: "e2", Script: s, Edit: edit})
			_, body := f.post(chatPath, `{`+hi+`,"stream":true}`)
			if got := sameRun(body); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
			if got := f.metric("trctl_gateway_resubmissions_total"); got != tc.moves {
				t.Errorf("%g moves, want %g", got, tc.moves)
			}
			if tc.metric != "" && f.metric(tc.metric) != 1 {
				t.Errorf("%s is %g", tc.metric, f.metric(tc.metric))
			}
		})
	}
}

// TestErrorAfterStart checks that a final error after the status line arrives
// in the stream, in the same form, before [DONE] (O3).
func TestErrorAfterStart(t *testing.T) {
	edit := func(_ *generate.Request, at int, e *generate.Event) ([]*generate.Event, error) {
		if at == 3 {
			return []*generate.Event{{Kind: generate.EventError, Epoch: e.Epoch, Err: &generate.Error{Code: generate.CodeInternal, Message: "secret"}}}, nil
		}
		return sessiontest.Pass(e)
	}
	f := start(t, nil, &sessiontest.Entry{ID: "e1", Script: sessiontest.Words(8), Edit: edit})
	resp, body := f.post(chatPath, `{`+hi+`,"stream":true}`)
	chunks := events(t, body)
	if last := chunks[len(chunks)-1]; resp.StatusCode != http.StatusOK || len(chunks) != 4 || last.Error == nil ||
		*last.Error.Code != "internal_error" || last.Error.Type != "server_error" || last.Error.Param != nil || len(last.Choices) != 0 {
		t.Errorf("stream: %s", body)
	}
	if strings.Contains(body, "secret") || strings.Count(body, `"error"`) != 1 {
		t.Errorf("stream: %s", body)
	}
	resp, body = f.post(chatPath, `{`+hi+`}`)
	wantError(t, "not streamed", resp, body, 500, "internal_error", "")
	eventually(t, "both are counted", func() bool { return f.metric("trctl_gateway_requests_total", "code=500") == 2 })
}

// TestRefusedThenServed checks who is tried next, and that a full queue is not
// asked again (B73, B69).
func TestRefusedThenServed(t *testing.T) {
	full := &sessiontest.Entry{ID: "full", Script: sessiontest.Words(2), Refuse: func(*generate.Request) error { return &generate.Error{Code: generate.CodeQueueFull, Message: "full"} }}
	dead := &sessiontest.Entry{ID: "dead", Script: sessiontest.Words(2), Refuse: func(*generate.Request) error { return errors.New("connection refused") }}
	good := &sessiontest.Entry{ID: "good", Script: sessiontest.Words(2)}
	f := start(t, func(c *Config) { c.Session.EjectFor = time.Hour }, full, dead, good)
	for range 30 {
		if resp, body := f.post(chatPath, `{`+hi+`}`); resp.StatusCode != http.StatusOK {
			t.Fatal(body)
		}
	}
	if n := len(dead.Requests()); n != 1 {
		t.Errorf("a dead entry was asked %d times", n)
	}
	f = start(t, nil, full)
	before := len(full.Requests())
	resp, body := f.post(chatPath, `{`+hi+`}`)
	wantError(t, "full", resp, body, 429, "queue_full", "")
	if n := len(full.Requests()) - before; n != 1 {
		t.Errorf("a full entry was asked %d times", n)
	}
	f = start(t, func(c *Config) { c.Session.MaxAttempts = 4 }, dead)
	before = len(dead.Requests())
	resp, body = f.post(chatPath, `{`+hi+`}`)
	wantError(t, "dead", resp, body, 503, "model_unavailable", "")
	if n := len(dead.Requests()) - before; n != 4 {
		t.Errorf("a dead entry alone was asked %d times", n)
	}
}

func TestApply(t *testing.T) {
	block := make(chan struct{})
	old := &sessiontest.Entry{ID: "old", Script: sessiontest.Words(3), Gate: waitFor(block)}
	f := start(t, nil, old)
	resp, err := f.server.Client().Post(f.server.URL+chatPath, "application/json", strings.NewReader(`{`+hi+`,"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	next := &sessiontest.Entry{ID: "next", Script: sessiontest.Words(1)}
	if err := f.Apply([]session.Deployment{deploy(next)}); err != nil {
		t.Fatal(err)
	}
	if _, body := f.post(chatPath, `{`+hi+`}`); !strings.Contains(body, `"content":" w0"`) || len(next.Requests()) != 1 {
		t.Errorf("new requests: %s", body)
	}
	close(block)
	var all strings.Builder
	if _, err := fmt.Fprint(&all, readAll(t, resp)); err != nil || joined(events(t, all.String()), 0) != old.Script.Text() {
		t.Errorf("old request: %s", all.String())
	}
	if err := f.Apply([]session.Deployment{{}}); !errors.Is(err, ErrConfig) {
		t.Errorf("bad deployments: %v", err)
	}
}

// waitAt is a gate that opens when ch is closed, at one position alone.
func waitAt(position int, ch <-chan struct{}) func(context.Context, int) error {
	return func(ctx context.Context, at int) error {
		if at != position {
			return nil
		}
		return waitFor(ch)(ctx, at)
	}
}
