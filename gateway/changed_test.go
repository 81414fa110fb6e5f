package gateway

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/gateway/session"
	"github.com/tokenrouter/tokenrouter/gateway/session/sessiontest"
)

// The deployment gets another entry model while a request is on its way to a worker that
// has heard of it already: the request is served by what the deployment is now.
func TestEntryModelChanges(t *testing.T) {
	unheard := &generate.Error{Code: generate.CodeNotFound, Message: "replica old is no entry of deployment \"tiny\"", Param: "model", Retryable: true}
	for name, tc := range map[string]struct {
		path, body, want string
		deleted          bool
		status           int
	}{
		"chat":       {chatPath, `{` + hi + `}`, " w0 w1 w2", false, 200},
		"stream":     {chatPath, `{` + hi + `,"stream":true,"n":3}`, "w2", false, 200},
		"completion": {"/v1/completions", `{"model":"tiny","prompt":["x","y"]}`, " w0 w1 w2", false, 200},
		"too long":   {chatPath, `{` + hi + `,"max_tokens":300}`, "max_tokens", false, 400},
		"tokenize":   {"/tokenize", `{"prompt":"x"}`, `"max_model_len":256`, false, 200},
		"detokenize": {"/detokenize", `{"tokens":[1,2,3]}`, `"prompt"`, false, 200},
		"deleted":    {chatPath, `{` + hi + `}`, "does not exist", true, 404},
	} {
		t.Run(name, func(t *testing.T) {
			script := sessiontest.Words(3)
			script.Prompt = []generate.TokenEvent{{ID: 1, Text: "a"}, {ID: 2, Text: "b"}, {ID: 3, Text: "c"}}
			var f *fixture
			var once sync.Once
			before := &sessiontest.Entry{ID: "old", Refuse: func(*generate.Request) error {
				once.Do(func() {
					var next []session.Deployment
					if !tc.deleted {
						d := deploy(&sessiontest.Entry{ID: "new", Script: script})
						d.Models, d.MaxContext = []string{"tiny-m", "tiny-l"}, 256
						next = append(next, d)
					}
					if err := f.Apply(next); err != nil {
						t.Error(err)
					}
				})
				return unheard
			}}
			f = start(t, nil, before)
			resp, body := f.post(tc.path, tc.body)
			if resp.StatusCode != tc.status || !strings.Contains(body, tc.want) {
				t.Errorf("%d %s", resp.StatusCode, body)
			}
			eventually(t, "one request is counted", func() bool { return f.metric("trctl_gateway_requests_total") == 1 })
			if resp.StatusCode == http.StatusOK && len(before.Requests()) == 0 {
				t.Error("void: the old entry was not asked")
			}
		})
	}
}
