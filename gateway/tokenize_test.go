package gateway

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sourcegraph/conc"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/gateway/session"
	"github.com/tokenrouter/tokenrouter/gateway/session/sessiontest"
)

func TestTokenize(t *testing.T) {
	e := &sessiontest.Entry{ID: "e1", Script: &sessiontest.Script{
		Finish: generate.FinishLength,
		Prompt: []generate.TokenEvent{{ID: 1, Text: "<s>"}, {ID: 7, Text: "a"}, {ID: 8, Text: " b"}},
	}}
	f := start(t, nil, e)
	for _, tc := range []struct{ name, path, body, want string }{
		{"text", pathTokenize, `{"model":"tiny","prompt":"a b"}`, `{"count":3,"max_model_len":512,"tokens":[1,7,8],"token_strs":null}`},
		{"any model", pathTokenize, `{"prompt":"a b","add_special_tokens":true,"return_token_strs":true}`, `{"count":3,"max_model_len":512,"tokens":[1,7,8],"token_strs":["<s>","a"," b"]}`},
		{"bare", pathTokenize, `{"prompt":"a b","add_special_tokens":false}`, `{"count":2,"max_model_len":512,"tokens":[7,8],"token_strs":null}`},
		{"bare already", pathTokenize, `{"prompt":"<s>a b","add_special_tokens":false}`, `{"count":3,"max_model_len":512,"tokens":[1,7,8],"token_strs":null}`},
		{"chat", pathTokenize + "/", `{"messages":[{"role":"developer","content":"x"}]}`, `{"count":3,"max_model_len":512,"tokens":[1,7,8],"token_strs":null}`},
		{"empty", pathTokenize, `{"prompt":""}`, `{"count":0,"max_model_len":512,"tokens":[],"token_strs":null}`},
		{"text of ids", pathDetokenize, `{"model":"tiny","tokens":[1,7,8]}`, `{"prompt":"<s>a b"}`},
		{"text of none", pathDetokenize, `{"tokens":[]}`, `{"prompt":""}`},
	} {
		if resp, body := f.post(tc.path, tc.body); resp.StatusCode != http.StatusOK || body != tc.want {
			t.Errorf("%s: %d %s\nwant %s", tc.name, resp.StatusCode, body, tc.want)
		}
	}
	for _, r := range e.Requests() {
		if !r.Echo || r.Sampling.MaxTokens != 0 || r.Sampling.Logprobs >= 0 || r.DefaultMaxTokens {
			t.Errorf("more than the prompt is asked for: %+v", r)
		}
	}
	for _, tc := range []struct {
		name, path, body string
		status           int
		code, param      string
	}{
		{"B41 null", pathTokenize, `{"model":"tiny","prompt":null}`, 400, "missing_required_parameter", "prompt"},
		{"B41 negative", pathDetokenize, `{"tokens":[-1]}`, 400, "invalid_value", "tokens"},
		{"no such id", pathDetokenize, `{"tokens":[1000]}`, 400, "invalid_value", "tokens"},
		{"no such model", pathTokenize, `{"model":"x","prompt":"a"}`, 404, "model_not_found", "model"},
	} {
		resp, body := f.post(tc.path, tc.body)
		wantError(t, tc.name, resp, body, tc.status, tc.code, tc.param)
	}
	e.Refuse = func(*generate.Request) error {
		return &generate.Error{Code: generate.CodeContextLength, Message: "513 > 512", Param: "prompt"}
	}
	resp, body := f.post(pathTokenize, `{"prompt":"a"}`)
	wantError(t, "too long", resp, body, 400, "context_length_exceeded", "prompt")
}

// What counts tokens is a request as others are: it needs a key, takes one of its
// requests and no tokens, and tells nothing of models that the key may not ask for.
func TestTokenizeWithKeys(t *testing.T) {
	m := &meter{settled: make(chan struct{}, 8)}
	f := start(t, func(c *Config) {
		c.Keys = holders{"a": {ID: "a", Quota: m}, "other": {ID: "other", Models: []string{"else"}}}
	}, &sessiontest.Entry{ID: "e1", Script: &sessiontest.Script{Finish: generate.FinishLength, Prompt: []generate.TokenEvent{{ID: 7, Text: "a"}}}})
	resp, body := f.post(pathTokenize, `{"prompt":"a"}`)
	wantError(t, "no key", resp, body, 401, "invalid_api_key", "")
	h := http.Header{"Authorization": {"Bearer a"}}
	if resp, body := f.send("POST", pathTokenize, `{"prompt":"a"}`, h); resp.StatusCode != http.StatusOK || len(m.reserved) != 1 || m.reserved[0] != 0 {
		t.Errorf("%s, reserved %v", body, m.reserved)
	}
	h = http.Header{"Authorization": {"Bearer other"}}
	resp, body = f.send("POST", pathTokenize, `{"model":"tiny","prompt":"a"}`, h)
	wantError(t, "another's model", resp, body, 403, "key_not_allowed", "model")
	resp, body = f.send("POST", pathTokenize, `{"prompt":"a"}`, h)
	wantError(t, "no model", resp, body, 503, "no_capacity", "")
	resp, body = f.send("GET", "/v1/models/tiny", "", h)
	wantError(t, "another's model", resp, body, 403, "key_not_allowed", "model")
	if _, body := f.send("GET", "/v1/models/tinny", "", h); body != `{"error":{"message":"the model \"tinny\" does not exist; GET /v1/models lists those that do","type":"invalid_request_error","param":"model","code":"model_not_found"}}` {
		t.Errorf("names of others: %s", body)
	}
}

// What counts tokens ends with the drain, and is told so, as others are.
func TestTokenizeEndsWithDrain(t *testing.T) {
	e := &sessiontest.Entry{ID: "e1", Script: sessiontest.Words(1), Added: func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}}
	url, stop, ended := run(t, Config{Deployments: []session.Deployment{deploy(e)}, DrainTimeout: time.Millisecond})
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	var asking conc.WaitGroup
	defer asking.Wait()
	asking.Go(func() {
		resp, err := client.Post(url+pathTokenize, "application/json", strings.NewReader(`{"prompt":"a"}`))
		if err != nil {
			t.Errorf("it was cut off: %v", err)
			return
		}
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(body), `"code":"draining"`) {
			t.Errorf("%d %s, %v", resp.StatusCode, body, err)
		}
	})
	eventually(t, "the entry works", func() bool { return e.Active.Load() == 1 })
	stop()
	if err := <-ended; err != nil {
		t.Errorf("Run: %v", err)
	}
}
