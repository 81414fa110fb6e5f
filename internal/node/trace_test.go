package node

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/trace"
)

// What is remembered of a request agrees with what the client was told of it: who wrote
// how many tokens, how often the turn changed hands, and why the answer ended.
func TestTrace(t *testing.T) {
	r := start(t, nil)
	body := `{"model":"tiny","messages":[{"role":"user","content":"What is 48 + 72 * 29?"}]}`
	resp, err := http.Post(r.url+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var told struct {
		ID    string
		Usage struct {
			Prompt int `json:"prompt_tokens"`
			Answer int `json:"completion_tokens"`
		}
		Trctl struct{ Tokens map[string]int }
	}
	if err := json.NewDecoder(resp.Body).Decode(&told); err != nil {
		t.Fatal(err)
	}
	parts := r.trace(told.ID)
	if len(parts) != 2 {
		t.Fatalf("%d parts: %+v", len(parts), parts)
	}
	entry, other := parts[0], parts[1]
	if !entry.Entry || other.Entry || entry.Epoch != 1 || entry.End != "stop" || entry.Prompt != told.Usage.Prompt || entry.Answer != told.Usage.Answer {
		t.Errorf("%+v; the client was told %+v", entry, told)
	}
	visited := map[string]int{}
	var last time.Duration
	for i, v := range entry.Visits {
		visited[v.Model] += v.Tokens
		if v.Hop != uint32(i) || v.Try != 0 || v.From < last || v.Replica == "" {
			t.Errorf("visit %d: %+v", i, v)
		}
		last = v.From + v.Took
	}
	if last > entry.Took {
		t.Errorf("the visits end at %s, the request at %s", last, entry.Took)
	}
	for _, p := range parts {
		if want := told.Trctl.Tokens[p.Model]; p.Tokens != want || visited[p.Model] != want || p.Steps < want {
			t.Errorf("%s wrote %d, %d in its visits, %d steps; the client was told %d", p.Model, p.Tokens, visited[p.Model], p.Steps, want)
		}
	}
	if parts := r.trace("chatcmpl-0123456789abcdef"); len(parts) != 0 {
		t.Errorf("%+v", parts)
	}
}

// trace asks the admin endpoint. The parts of collaborators come when they are told of
// the end.
func (r *running) trace(id string) (parts []trace.Part) {
	r.t.Helper()
	r.awaitIdle()
	w := httptest.NewRecorder()
	r.Admin().ServeHTTP(w, httptest.NewRequest(http.MethodGet, trace.Path+"?id="+id, nil))
	if err := json.Unmarshal(w.Body.Bytes(), &parts); err != nil || w.Code != http.StatusOK {
		r.t.Fatalf("%d %s: %v", w.Code, w.Body, err)
	}
	return parts
}
