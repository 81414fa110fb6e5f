package gateway

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/api/openai"
	"github.com/tokenrouter/tokenrouter/gateway/session"
	"github.com/tokenrouter/tokenrouter/gateway/session/sessiontest"
)

// envelope is an error body.
type envelope struct {
	Error struct {
		Message, Type string
		Param, Code   *string
	}
}

// wantError checks an answer against a status, a code and a param ("" is null).
func wantError(t *testing.T, name string, resp *http.Response, body string, status int, code, param string) {
	t.Helper()
	var e envelope
	d := json.NewDecoder(strings.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil || e.Error.Code == nil || e.Error.Message == "" || e.Error.Type == "" {
		t.Errorf("%s: status %d, body %.300q", name, resp.StatusCode, body)
		return
	}
	got := ""
	if e.Error.Param != nil {
		got = *e.Error.Param
	}
	if resp.StatusCode != status || *e.Error.Code != code || got != param {
		t.Errorf("%s: %d %s param %q; want %d %s %q", name, resp.StatusCode, *e.Error.Code, got, status, code, param)
	}
	if resp.Header.Get("Content-Type") != "application/json" || resp.Header.Get("X-Request-Id") == "" {
		t.Errorf("%s: headers %v", name, resp.Header)
	}
}

func TestRefusals(t *testing.T) {
	e := &sessiontest.Entry{ID: "e1", Script: sessiontest.Words(2)}
	f := start(t, func(c *Config) {
		c.Deployments = append(c.Deployments, session.Deployment{Name: "idle", Models: []string{"x"}, MaxContext: 8, Vocab: 8})
	}, e)
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = z.Write([]byte(`{` + hi + `}`))
	_ = z.Close()
	big := `{` + hi + `,"x":"` + strings.Repeat("a", openai.MaxBody) + `"}`
	for _, tc := range []struct {
		name, method, path, body string
		header                   http.Header
		status                   int
		code, param              string
	}{
		{"unknown model", "POST", chatPath, `{"model":"tinny","messages":[{"role":"user","content":"hi"}]}`, nil, 404, "model_not_found", "model"},
		{"no entries", "POST", chatPath, `{"model":"idle","messages":[{"role":"user","content":"hi"}]}`, nil, 503, "no_capacity", ""},
		{"max_tokens over the context", "POST", chatPath, `{` + hi + `,"max_tokens":513}`, nil, 400, "context_length_exceeded", "max_tokens"},
		{"B21", "POST", chatPath, `{` + hi + `,"max_tokens":1000000000}`, nil, 400, "context_length_exceeded", "max_tokens"},
		{"B40", "POST", textPath, `{"model":"tiny","prompt":[1000],"max_tokens":1}`, nil, 400, "invalid_value", "prompt"},
		{"prompt over the context", "POST", textPath, `{"model":"tiny","prompt":[` + strings.Repeat("1,", 512) + `1]}`, nil, 400, "context_length_exceeded", "prompt"},
		{"B13", "POST", textPath, "{\"model\":\"tiny\",\"prompt\":\"\xff\xfe\"}", nil, 400, "invalid_json", "prompt"},
		{"B15", "POST", chatPath, `{:"model":"M"}`, nil, 400, "invalid_json", ""},
		{"no body", "POST", chatPath, ``, nil, 400, "invalid_json", ""},
		{"B08", "POST", chatPath, `{` + hi + `,"stop":[""]}`, nil, 400, "invalid_value", "stop"},
		{"too large", "POST", chatPath, big, nil, 413, "request_too_large", ""},
		{"gzip", "POST", chatPath, zipped.String(), http.Header{"Content-Encoding": {"gzip"}}, 415, "unsupported_media_type", ""},
		{"form", "POST", chatPath, `{` + hi + `}`, http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}, 415, "unsupported_media_type", ""},
		{"latin1", "POST", chatPath, `{` + hi + `}`, http.Header{"Content-Type": {"application/json; charset=latin1"}}, 415, "unsupported_media_type", ""},
		{"no path", "GET", "/v1/nothing", ``, nil, 404, "not_found", ""},
		{"root", "GET", "/", ``, nil, 404, "not_found", ""},
		{"method", "GET", chatPath, ``, nil, 405, "method_not_allowed", ""},
		{"method of models", "DELETE", "/v1/models/tiny", ``, nil, 405, "method_not_allowed", ""},
		{"no such model", "GET", "/v1/models/nope", ``, nil, 404, "model_not_found", "model"},
	} {
		resp, body := f.send(tc.method, tc.path, tc.body, tc.header)
		wantError(t, tc.name, resp, body, tc.status, tc.code, tc.param)
		if tc.status == 503 && resp.Header.Get("Retry-After") == "" {
			t.Errorf("%s: no Retry-After", tc.name)
		}
	}
	if len(e.Requests()) != 0 {
		t.Errorf("%d bad requests reached the entry", len(e.Requests()))
	}
	// B20: none of this counts against the worker.
	if resp, body := f.post(chatPath, `{`+hi+`}`); resp.StatusCode != http.StatusOK {
		t.Errorf("a good request afterwards: %s", body)
	}
	if _, body := f.post(chatPath, `{"model":"tinny","messages":[{"role":"user","content":"hi"}]}`); !strings.Contains(body, "did you mean tiny?") {
		t.Errorf("no near name: %s", body)
	}
	eventually(t, "both are counted as other", func() bool { return f.metric("trctl_gateway_requests_total", "route=other") == 2 })
}

func TestEntryErrors(t *testing.T) {
	for _, tc := range []struct {
		err    error
		status int
		code   string
	}{
		{&generate.Error{Code: generate.CodeContextLength, Message: "513 > 512", Param: "messages"}, 400, "context_length_exceeded"},
		{&generate.Error{Code: generate.CodeTemplate, Message: "roles must alternate", Param: "messages"}, 400, "template_error"},
		{&generate.Error{Code: generate.CodeInvalid, Message: "m", Param: "messages"}, 400, "invalid_request"},
		{&generate.Error{Code: generate.CodeNotFound, Message: "m", Param: "messages"}, 503, "model_unavailable"},
		{&generate.Error{Code: generate.CodeQueueFull, Message: "m", Param: "messages"}, 429, "queue_full"},
		{&generate.Error{Code: generate.CodeKVExhausted, Message: "m", Param: "messages"}, 429, "kv_exhausted"},
		{&generate.Error{Code: generate.CodeUnavailable, Message: "m", Param: "messages"}, 503, "model_unavailable"},
		{&generate.Error{Code: generate.CodeInternal, Message: "secret"}, 500, "internal_error"},
		{&generate.Error{Code: generate.CodePolicy, Message: "the routing policy \"mine\" failed"}, 500, "policy_failed"},
		{&generate.Error{Code: "new_code", Message: "secret"}, 500, "internal_error"},
		{errors.New("secret: connection refused"), 503, "model_unavailable"},
	} {
		e := &sessiontest.Entry{ID: "e1", Script: sessiontest.Words(2), Refuse: func(*generate.Request) error { return tc.err }}
		f := start(t, nil, e)
		for _, stream := range []string{"true", "false"} {
			resp, body := f.post(chatPath, `{`+hi+`,"stream":`+stream+`}`)
			param := "messages"
			if tc.status == 500 || tc.err == error(nil) || !errors.As(tc.err, new(*generate.Error)) {
				param = ""
			}
			wantError(t, tc.code, resp, body, tc.status, tc.code, param)
			if strings.Contains(body, "secret") {
				t.Errorf("internal text reached the client: %s", body)
			}
			retry := resp.Header.Get("Retry-After") != ""
			if want := (tc.status == 429 || tc.status == 503) && tc.code != "kv_exhausted"; retry != want {
				t.Errorf("%s: Retry-After %t", tc.code, retry)
			}
		}
	}
}

func TestModels(t *testing.T) {
	f := start(t, func(c *Config) {
		d := deploy()
		d.Name = "org/tiny-l"
		c.Deployments = append(c.Deployments, d)
	})
	_, body := f.send("GET", "/v1/models", "", nil)
	want := `{"object":"list","data":[{"id":"tiny","object":"model","created":1700000000,"owned_by":"tokenrouter","max_model_len":512},` +
		`{"id":"org/tiny-l","object":"model","created":1700000000,"owned_by":"tokenrouter","max_model_len":512}]}`
	if body != want {
		t.Errorf("list: %s", body)
	}
	for _, path := range []string{"/v1/models/tiny", "/v1/models/org/tiny-l", "/v1/models/org%2Ftiny-l"} {
		if resp, body := f.send("GET", path, "", nil); resp.StatusCode != http.StatusOK || !strings.Contains(body, `"object":"model"`) {
			t.Errorf("%s: %s", path, body)
		}
	}
}

func TestProbes(t *testing.T) {
	ready := errors.New("tiny-l is loading")
	f := start(t, func(c *Config) { c.Ready = func() error { return ready } })
	for _, path := range []string{"/healthz", "/health"} {
		if resp, _ := f.send("GET", path, "", nil); resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %d", path, resp.StatusCode)
		}
	}
	resp, body := f.send("GET", "/readyz", "", nil)
	wantError(t, "not ready", resp, body, 503, "not_ready", "")
	ready = nil
	if resp, _ := f.send("HEAD", "/readyz", "", nil); resp.StatusCode != http.StatusOK {
		t.Errorf("ready: %d", resp.StatusCode)
	}
	if _, body := f.send("GET", "/metrics", "", nil); !strings.Contains(body, `trctl_gateway_requests_total{code="200",route="/healthz"} 1`) {
		t.Errorf("metrics: %.300s", body)
	}
}

func TestKeys(t *testing.T) {
	f := start(t, func(c *Config) {
		c.Keys = hashedKeys{sha256.Sum256([]byte("tr-one")), sha256.Sum256([]byte("tr-two"))}
	}, &sessiontest.Entry{ID: "e1", Script: sessiontest.Words(1)})
	router, ok := f.Handler().(*echo.Echo)
	if !ok {
		t.Fatal("the handler is not the router")
	}
	// B66: the list of routes comes from the router itself.
	routes := router.Routes()
	if len(routes) < 8 {
		t.Fatalf("%d routes", len(routes))
	}
	for _, r := range append(routes, &echo.Route{Method: "GET", Path: "/none"}, &echo.Route{Method: "GET", Path: "/healthz/"}, &echo.Route{Method: "POST", Path: "//v1/completions"}) {
		path := strings.ReplaceAll(r.Path, "*", "tiny")
		resp, body := f.send(r.Method, path, "", nil)
		switch {
		case isProbe(tidy(path)):
			if resp.StatusCode != http.StatusOK {
				t.Errorf("probe %s: %d", path, resp.StatusCode)
			}
			continue
		case r.Method == http.MethodHead: // has no body
			if resp.StatusCode != http.StatusUnauthorized {
				t.Errorf("HEAD %s: %d", path, resp.StatusCode)
			}
			continue
		}
		wantError(t, r.Method+" "+path, resp, body, 401, "invalid_api_key", "")
	}
	for name, h := range map[string]http.Header{
		"wrong":      {"Authorization": {"Bearer tr-three"}},
		"empty":      {"Authorization": {"Bearer "}},
		"no scheme":  {"Authorization": {"tr-one"}},
		"basic":      {"Authorization": {"Basic tr-one"}},
		"two":        {"Authorization": {"Bearer tr-one", "Bearer tr-one"}},
		"very long":  {"Authorization": {"Bearer " + strings.Repeat("x", 10000)}},
		"with space": {"Authorization": {"Bearer  tr-one"}},
	} {
		resp, body := f.send("GET", "/v1/models", "", h)
		wantError(t, name, resp, body, 401, "invalid_api_key", "")
	}
	for _, key := range []string{"Bearer tr-one", "bearer tr-two"} {
		if resp, body := f.send("POST", chatPath, `{`+hi+`}`, http.Header{"Authorization": {key}}); resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", key, body)
		}
	}
	if resp, _ := f.send("OPTIONS", chatPath, "", nil); resp.StatusCode != http.StatusNoContent {
		t.Errorf("preflight: %d", resp.StatusCode)
	}
}

func TestRequestIDs(t *testing.T) {
	f := start(t, nil)
	for sent, echoed := range map[string]bool{
		"abc-123_X.y:z/=+":       true,
		"":                       false,
		"with space":             false,
		"<script>":               false,
		strings.Repeat("a", 128): true,
		strings.Repeat("a", 129): false,
	} {
		resp, _ := f.send("GET", "/healthz", "", http.Header{"X-Request-Id": {sent}})
		got := resp.Header.Get("X-Request-Id")
		if (got == sent) != echoed || got == "" {
			t.Errorf("%q became %q", sent, got)
		}
	}
}

func TestTooManyInFlight(t *testing.T) {
	block := make(chan struct{})
	e := &sessiontest.Entry{ID: "e1", Script: sessiontest.Words(1), Gate: waitFor(block)}
	f := start(t, func(c *Config) { c.MaxInFlight = 2 }, e)
	resp, err := f.server.Client().Post(f.server.URL+chatPath, "application/json", strings.NewReader(`{`+hi+`,"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	r, body := f.post(textPath, `{"model":"tiny","prompt":["a","b"]}`)
	wantError(t, "two more", r, body, 429, "queue_full", "")
	if r.Header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	r, body = f.post(textPath, `{"model":"tiny","prompt":["a","b","c"]}`)
	wantError(t, "never", r, body, 400, "invalid_value", "prompt")
	close(block)
	if r, body := f.post(textPath, `{"model":"tiny","prompt":"a"}`); r.StatusCode != http.StatusOK {
		t.Errorf("one more: %s", body)
	}
}

func TestLogHasNoText(t *testing.T) {
	var log bytes.Buffer
	e := &sessiontest.Entry{ID: "e1", Script: &sessiontest.Script{Finish: generate.FinishStop, Tokens: []generate.TokenEvent{{ID: 1, Text: "canary-out"}}}}
	f := start(t, func(c *Config) { c.Logger = slog.New(slog.NewJSONHandler(&log, nil)) }, e)
	f.post(chatPath, `{"model":"tiny","messages":[{"role":"user","content":"canary-in"}],"stop":["canary-stop"]}`)
	f.post(chatPath, `{"model":"tiny","messages":[{"role":"user","content":"canary-in"}],"stream":true}`)
	f.server.Close() // waits for the handlers
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) != 2 || strings.Contains(log.String(), "canary") {
		t.Fatalf("log: %s", log.String())
	}
	for _, want := range []string{`"cause":"stop"`, `"completion_tokens":1`, `"large_share":0`, `"deployment":"tiny"`} {
		if !strings.Contains(lines[1], want) {
			t.Errorf("no %s in %s", want, lines[1])
		}
	}
}

func TestConfigRefused(t *testing.T) {
	e := &sessiontest.Entry{ID: "e1"}
	for name, change := range map[string]func(*Config){
		"no name":     func(c *Config) { c.Deployments[0].Name = "" },
		"same name":   func(c *Config) { c.Deployments = append(c.Deployments, c.Deployments[0]) },
		"no models":   func(c *Config) { c.Deployments[0].Models = nil },
		"no context":  func(c *Config) { c.Deployments[0].MaxContext = 0 },
		"no vocab":    func(c *Config) { c.Deployments[0].Vocab = 0 },
		"same entry":  func(c *Config) { c.Deployments[0].Entries = []session.Entry{e, e} },
		"nil entry":   func(c *Config) { c.Deployments[0].Entries = []session.Entry{nil} },
		"temperature": func(c *Config) { c.Deployments[0].Defaults.Temperature = 3 },
		"limit":       func(c *Config) { c.MaxInFlight = -1 },
		"timeout":     func(c *Config) { c.WriteTimeout = -1 },
	} {
		cfg := Config{Deployments: []session.Deployment{deploy(e)}}
		change(&cfg)
		if _, err := New(cfg); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A probe that is told to wait is no reason to warn.
func TestProbesAreNotWarnings(t *testing.T) {
	var log bytes.Buffer
	f := start(t, func(c *Config) {
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
		c.Ready = func() error { return errors.New("starting") }
	}, &sessiontest.Entry{ID: "e1", Script: sessiontest.Words(3)})
	if r, _ := f.send("GET", pathReadyz, "", nil); r.StatusCode != http.StatusServiceUnavailable {
		t.Fatalf("status %d", r.StatusCode)
	}
	f.post(chatPath, `{"model":"tiny","messages":[{"role":"user","content":"x"}]}`)
	f.server.Close() // waits for the handlers
	if s := log.String(); strings.Contains(s, pathReadyz) || !strings.Contains(s, "large_share") {
		t.Errorf("log: %s", s)
	}
}
