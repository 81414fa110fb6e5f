package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/api/protocol"
	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/gateway/session"
	"github.com/tokenrouter/tokenrouter/gateway/session/sessiontest"
)

// serveEntry is the entry's side of the call, over any Entry.
func serveEntry(e session.Entry) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		req, err := generate.DecodeRequest(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		s, err := e.Generate(r.Context(), req)
		if err != nil {
			var refused *generate.Error
			if !errors.As(err, &refused) {
				panic(http.ErrAbortHandler)
			}
			w.WriteHeader(refused.HTTPStatus())
			_ = json.NewEncoder(w).Encode(refused)
			return
		}
		defer func() { _ = s.Close() }()
		w.Header().Set("Content-Type", generate.ContentType(protocol.GenerateNewest))
		out := generate.NewWriter(w)
		for {
			ev, err := s.Next()
			if err == io.EOF {
				return
			}
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			if out.Write(ev) != nil || http.NewResponseController(w).Flush() != nil {
				return
			}
		}
	}
}

// remote serves an entry over HTTP/2 and returns a client of it.
func remote(t *testing.T, h http.Handler) session.Entry {
	t.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	t.Cleanup(srv.Client().CloseIdleConnections)
	return session.NewEntryClient("remote", srv.Client().Transport, srv.URL+"/")
}

func TestEntryClient(t *testing.T) {
	mux := http.NewServeMux()
	e := &sessiontest.Entry{ID: "e1", Script: unicorn()}
	var overHTTP2 atomic.Bool
	mux.HandleFunc("POST "+generate.Path, func(w http.ResponseWriter, r *http.Request) {
		overHTTP2.Store(r.ProtoMajor == 2)
		serveEntry(e)(w, r)
	})
	f := start(t, nil, remote(t, mux))
	direct := start(t, nil, e)
	for _, fields := range []string{``, `,"stream":true`, `,"logprobs":true,"top_logprobs":1`} {
		_, got := f.post(chatPath, `{`+hi+fields+`}`)
		_, want := direct.post(chatPath, `{`+hi+fields+`}`)
		if stable(got) != stable(want) {
			t.Errorf("remote %s\ndirect %s", got, want)
		}
	}
	if !overHTTP2.Load() {
		t.Error("not over HTTP/2")
	}
	e.Refuse = func(*generate.Request) error {
		return &generate.Error{Code: generate.CodeContextLength, Message: "513 > 512", Param: "messages"}
	}
	resp, body := f.post(chatPath, `{`+hi+`}`)
	wantError(t, "refused", resp, body, 400, "context_length_exceeded", "messages")
}

// TestEntryClientFailover cuts the connection of a remote entry in the middle.
func TestEntryClientFailover(t *testing.T) {
	s := sessiontest.Words(10)
	want := undisturbed(t, s, `,"stream":true`)
	e := &sessiontest.Entry{ID: "e1", Script: s, Edit: func(r *generate.Request, at int, ev *generate.Event) ([]*generate.Event, error) {
		if r.Epoch < 4 && at == 2*int(r.Epoch) {
			return nil, sessiontest.ErrKilled
		}
		return sessiontest.Pass(ev)
	}}
	f := start(t, nil, remote(t, serveEntry(e)))
	_, body := f.post(chatPath, `{`+hi+`,"stream":true}`)
	if got := sameRun(body); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := f.metric("trctl_gateway_resubmissions_total"); got != 3 {
		t.Errorf("%g moves", got)
	}
}

// TestEntryClientCancel checks that the end of the context resets the stream.
func TestEntryClientCancel(t *testing.T) {
	e := &sessiontest.Entry{ID: "e1", Script: sessiontest.Words(3), Gate: waitFor(make(chan struct{}))}
	client := remote(t, serveEntry(e))
	ctx, cancel := context.WithCancel(t.Context())
	s, err := client.Generate(ctx, &generate.Request{Deployment: "tiny", Prompt: "x", Sampling: sampling.Params{TopP: 1, MaxTokens: 3, Logprobs: -1}})
	if err != nil {
		t.Fatal(err)
	}
	if ev, err := s.Next(); err != nil || ev.Kind != generate.EventAdmitted {
		t.Fatalf("%+v, %v", ev, err)
	}
	cancel()
	if _, err := s.Next(); err == nil {
		t.Error("the stream goes on")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	eventually(t, "the entry's context ends", func() bool { return e.Active.Load() == 0 })
}

func TestEntryClientProtocol(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"status without an error": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "gone", http.StatusBadGateway) },
		"JSON without a code":     func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500); _, _ = io.WriteString(w, `{}`) },
		"endless error": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(500)
			_, _ = io.WriteString(w, `{"code":"x","message":"`+strings.Repeat("a", 1<<20)+`"}`)
		},
		"other content": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/vnd.trctl.events.v1")
			w.WriteHeader(200)
		},
		"refused for its versions": func(w http.ResponseWriter, r *http.Request) {
			_, refused := generate.Choose("application/vnd.trctl.events.v99")
			w.WriteHeader(refused.HTTPStatus())
			_ = json.NewEncoder(w).Encode(refused)
		},
	} {
		c := remote(t, h)
		_, err := c.Generate(t.Context(), &generate.Request{Deployment: "tiny", Prompt: "x", Sampling: sampling.Params{TopP: 1, MaxTokens: 3, Logprobs: -1}})
		if !errors.Is(err, session.ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
	c := remote(t, http.NotFoundHandler())
	var refused *generate.Error
	if _, err := c.Generate(t.Context(), &generate.Request{}); !errors.As(err, &refused) || refused.Code != generate.CodeInvalid {
		t.Errorf("bad request: %v", err)
	}
}
