package node

import (
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/sourcegraph/conc/pool"
	"go.uber.org/goleak"
)

// answers asks everything, several at a time.
func (r *running) answers(list []ask, atOnce int) []answer {
	r.t.Helper()
	out := make([]answer, len(list))
	group := pool.New().WithErrors().WithMaxGoroutines(atOnce)
	for i, a := range list {
		group.Go(func() (err error) {
			out[i], err = r.chat(a)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		r.t.Fatal(err)
	}
	return out
}

// TestCutStreamsFreeEverything cuts streams at random points. Pages, slots,
// sequences of both models and goroutines must come back.
func TestCutStreamsFreeEverything(t *testing.T) {
	n := 500
	if testing.Short() {
		n = 50
	}
	r := start(t, nil)
	list := questions(100, "tiny", 300)
	if _, err := r.chat(list[0]); err != nil {
		t.Fatal(err)
	}
	http.DefaultClient.CloseIdleConnections()
	baseline := goleak.IgnoreCurrent()
	rng := rand.New(rand.NewPCG(1, 2))
	group := pool.New().WithErrors().WithMaxGoroutines(16)
	for i := range n {
		a, events := list[i%len(list)], rng.IntN(60)
		group.Go(func() error { return r.cut(a, events) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	r.awaitIdle()
	http.DefaultClient.CloseIdleConnections()
	if err := goleak.Find(baseline); err != nil {
		t.Error(err)
	}
	if _, err := r.chat(list[0]); err != nil {
		t.Errorf("after the cuts: %v", err)
	}
}

// TestBadRequestsDisturbNothing sends requests that must be refused, each with
// the field at fault, while good ones run.
func TestBadRequestsDisturbNothing(t *testing.T) {
	r := start(t, nil)
	good := questions(4, "tiny", 200)
	want := r.answers(good, 4)
	for _, c := range []struct{ name, body, param, code string }{
		{"no messages", `{"model":"tiny","messages":[]}`, "messages", ""},
		{"null content", `{"model":"tiny","messages":[{"role":"user","content":null}]}`, "messages", ""},
		{"invalid UTF-8", "{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\",\"content\":\"\xff\xfe\"}]}", "", ""},
		{"max_tokens", `{"model":"tiny","messages":[{"role":"user","content":"hi"}],"max_tokens":1000000000}`, "max_tokens", ""},
		{"long prompt", `{"model":"tiny","messages":[{"role":"user","content":"` + strings.Repeat("1 ", 5000) + `"}]}`, "messages", "context_length_exceeded"},
		{"truncated", `{"model":"tiny","messages":[{"role":"user"`, "", ""},
		{"empty stop", `{"model":"tiny","messages":[{"role":"user","content":"hi"}],"stop":[""]}`, "stop", ""},
		{"unknown bias", `{"model":"tiny","messages":[{"role":"user","content":"hi"}],"logit_bias":{"191222999":-100}}`, "logit_bias", ""},
		{"B23", `{"model":"tiny","messages":[{"role":"user","content":"hi"}],"min_tokens":10,"max_tokens":5}`, "min_tokens", ""},
		{"stop ids", `{"model":"tiny","messages":[{"role":"user","content":"hi"}],"stop_token_ids":[191222999]}`, "stop_token_ids", ""},
		{"n", `{"model":"tiny","messages":[{"role":"user","content":"hi"}],"n":1000000}`, "n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, e := r.refused(c.body)
			if status != http.StatusBadRequest || !strings.HasPrefix(e.Param, c.param) || c.code != "" && e.Code != c.code {
				t.Errorf("status %d, error %+v", status, e)
			}
		})
	}
	if status, e := r.refused(`{"model":"tiney","messages":[{"role":"user","content":"hi"}]}`); status != http.StatusNotFound || e.Code != "model_not_found" {
		t.Errorf("unknown model: status %d, error %+v", status, e)
	}
	for i, got := range r.answers(good, 4) {
		if got.Text != want[i].Text {
			t.Errorf("request %d changed", i)
		}
	}
	r.awaitIdle()
}

// An assistant turn may have null content beside tool calls.
func TestNullContentBesideToolCalls(t *testing.T) {
	r := start(t, nil)
	resp, err := http.Post(r.url+"/v1/chat/completions", "application/json", strings.NewReader(
		`{"model":"tiny","max_tokens":8,"messages":[{"role":"user","content":"t?"},{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"t","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c1","content":"12:00"},{"role":"user","content":"2 + 2?"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("status %d", resp.StatusCode)
	}
}
