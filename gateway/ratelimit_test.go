package gateway

import (
	"context"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/gateway/quota"
	"github.com/tokenrouter/tokenrouter/gateway/session/sessiontest"
)

// lessor gives what is left of a minute that never ends.
type lessor struct{ left cluster.Amount }

func (l *lessor) Slice(_ context.Context, a cluster.SliceAsk) (cluster.Slice, error) {
	given := cluster.Amount{Requests: min(a.Want.Requests, l.left.Requests), Tokens: min(a.Want.Tokens, l.left.Tokens)}
	l.left.Requests -= given.Requests
	l.left.Tokens -= given.Tokens
	return cluster.Slice{Given: given, Life: cluster.SliceLife, Retry: 41500 * time.Millisecond}, nil
}

// limits is the part of an answer's headers that tells of rates.
func limits(h http.Header) map[string]string {
	got := map[string]string{}
	for name := range h {
		if short, ok := strings.CutPrefix(name, "X-Ratelimit-"); ok {
			got[short] = h.Get(name)
		}
	}
	return got
}

// The limits of a key are on every answer to it; what is used up, and until when, on the
// refusal alone. Nothing is told to who has no limits, or no key.
func TestRateLimitHeaders(t *testing.T) {
	type told = map[string]string
	const small, large = `,"max_tokens":10}`, `,"max_tokens":400}`
	for _, tc := range []struct {
		name string
		// rates are the key's, left what its minute still has.
		rates, left        quota.Rates
		key                string
		method, path, body string
		status             int
		want               told
	}{
		{"200", quota.Rates{Requests: 60, Tokens: 60000}, quota.Rates{Requests: 60, Tokens: 60000}, "a", "POST", chatPath, `{` + hi + small, 200, told{"Limit-Requests": "60", "Limit-Tokens": "60000"}},
		{"stream", quota.Rates{Requests: 60, Tokens: 60000}, quota.Rates{Requests: 60, Tokens: 60000}, "a", "POST", chatPath, `{` + hi + `,"stream":true` + small, 200, told{"Limit-Requests": "60", "Limit-Tokens": "60000"}},
		{"requests alone", quota.Rates{Requests: 60}, quota.Rates{Requests: 60}, "a", "POST", chatPath, `{` + hi + small, 200, told{"Limit-Requests": "60"}},
		{"models", quota.Rates{Tokens: 7}, quota.Rates{}, "a", "GET", "/v1/models", ``, 200, told{"Limit-Tokens": "7"}},
		{"no such path", quota.Rates{Tokens: 7}, quota.Rates{}, "a", "GET", "/v1/nothing", ``, 404, told{"Limit-Tokens": "7"}},
		{"requests are used up", quota.Rates{Requests: 60, Tokens: 60000}, quota.Rates{Tokens: 60000}, "a", "POST", chatPath, `{` + hi + small, 429, told{"Limit-Requests": "60", "Limit-Tokens": "60000", "Remaining-Requests": "0", "Reset-Requests": "41.5s"}},
		{"tokens are used up", quota.Rates{Requests: 60, Tokens: 60000}, quota.Rates{Requests: 60, Tokens: 5}, "a", "POST", chatPath, `{` + hi + `,"stream":true` + small, 429, told{"Limit-Requests": "60", "Limit-Tokens": "60000", "Remaining-Tokens": "0", "Reset-Tokens": "41.5s"}},
		{"both are used up", quota.Rates{Requests: 60, Tokens: 60000}, quota.Rates{}, "a", "POST", chatPath, `{` + hi + small, 429, told{"Limit-Requests": "60", "Limit-Tokens": "60000", "Remaining-Requests": "0", "Reset-Requests": "41.5s", "Remaining-Tokens": "0", "Reset-Tokens": "41.5s"}},
		{"tokenize", quota.Rates{Requests: 60}, quota.Rates{}, "a", "POST", pathTokenize, `{"prompt":"a"}`, 429, told{"Limit-Requests": "60", "Remaining-Requests": "0", "Reset-Requests": "41.5s"}},
		{"larger than the rate", quota.Rates{Tokens: 100}, quota.Rates{Tokens: 100}, "a", "POST", chatPath, `{` + hi + large, 200, told{"Limit-Tokens": "100"}},
		{"larger than the rate, too late", quota.Rates{Tokens: 100}, quota.Rates{Tokens: 99}, "a", "POST", chatPath, `{` + hi + large, 429, told{"Limit-Tokens": "100", "Remaining-Tokens": "0", "Reset-Tokens": "41.5s"}},
		{"no limits", quota.Rates{Requests: 60}, quota.Rates{}, "free", "POST", chatPath, `{` + hi + small, 200, told{}},
		{"wrong key", quota.Rates{Requests: 60}, quota.Rates{}, "b", "POST", chatPath, `{` + hi + small, 401, told{}},
		{"probe", quota.Rates{Requests: 60}, quota.Rates{}, "a", "GET", pathHealthz, ``, 200, told{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			book := quota.NewBook(quota.Config{Gateway: "g", Lessor: &lessor{tc.left}, Gateways: func() int { return 1 }, Timeout: time.Minute})
			f := start(t, func(c *Config) {
				c.Keys = holders{"a": {ID: "a", Quota: book.Account("a", tc.rates)}, "free": {ID: "free"}}
			}, &sessiontest.Entry{ID: "e1", Script: sessiontest.Words(1)})
			resp, body := f.send(tc.method, tc.path, tc.body, http.Header{"Authorization": {"Bearer " + tc.key}})
			if got := limits(resp.Header); resp.StatusCode != tc.status || !maps.Equal(got, tc.want) {
				t.Errorf("status %d, %v\nwant   %d, %v\n%s", resp.StatusCode, got, tc.status, tc.want, body)
			}
			if retry := resp.Header.Get("Retry-After"); tc.status == http.StatusTooManyRequests && retry != "42" {
				t.Errorf("Retry-After %q, want 42", retry)
			}
			wantMs := ""
			if tc.status == http.StatusTooManyRequests {
				wantMs = "41500"
			}
			if ms := resp.Header.Get("retry-after-ms"); ms != wantMs {
				t.Errorf("retry-after-ms %q, want %q", ms, wantMs)
			}
		})
	}
}

// A refusal for the answers in flight has the limits, and says nothing of rates.
func TestRateLimitHeadersOfConcurrency(t *testing.T) {
	book := quota.NewBook(quota.Config{Gateway: "g", Lessor: &lessor{}, Gateways: func() int { return 1 }})
	f := start(t, func(c *Config) {
		c.Keys = holders{"a": {ID: "a", Concurrency: 1, Quota: book.Account("a", quota.Rates{Requests: 60})}}
	}, &sessiontest.Entry{ID: "e1", Script: sessiontest.Words(1)})
	resp, body := f.send("POST", chatPath, `{`+hi+`,"n":2}`, http.Header{"Authorization": {"Bearer a"}})
	wantError(t, "two at once", resp, body, 429, "concurrency_exceeded", "")
	if got := limits(resp.Header); !maps.Equal(got, map[string]string{"Limit-Requests": "60"}) {
		t.Errorf("%v", got)
	}
}

// Without keys nothing is told; pages of other origins may read what is.
func TestRateLimitHeadersOfOrigins(t *testing.T) {
	f := start(t, func(c *Config) { c.AllowOrigins = []string{"*"} }, &sessiontest.Entry{ID: "e1", Script: sessiontest.Words(1)})
	resp, body := f.send("POST", chatPath, `{`+hi+`}`, http.Header{"Origin": {"https://a.example"}})
	if got := limits(resp.Header); resp.StatusCode != http.StatusOK || len(got) > 0 {
		t.Errorf("status %d, %v: %s", resp.StatusCode, got, body)
	}
	exposed := strings.ToLower(resp.Header.Get("Access-Control-Expose-Headers")) + ","
	if !strings.Contains(exposed, " retry-after-ms,") {
		t.Errorf("retry-after-ms is not exposed: %s", exposed)
	}
	for _, what := range []string{"limit", "remaining", "reset"} {
		for _, of := range []string{"requests", "tokens"} {
			if name := "x-ratelimit-" + what + "-" + of; !strings.Contains(exposed, " "+name+",") {
				t.Errorf("%s is not exposed: %s", name, exposed)
			}
		}
	}
}

// A wait is told in whole seconds and in milliseconds, never as less than it is, but as
// less than a minute where two such waits are enough. The reset tells all of it.
func TestRetryAfter(t *testing.T) {
	for _, tc := range []struct {
		after                  time.Duration
		seconds, millis, reset string
		message                string
	}{
		{0, "1", "1", "0s", "try again in 1 s"},
		{100 * time.Millisecond, "1", "100", "100ms", "try again in 1 s"},
		{2500*time.Millisecond + 1, "3", "2501", "2.501s", "try again in 3 s"},
		{59 * time.Second, "59", "59000", "59s", "try again in 59 s"},
		{62500 * time.Millisecond, "59", "59000", "1m2.5s", "try again in 63 s"},
		{118 * time.Second, "59", "59000", "1m58s", "try again in 118 s"},
		{5 * time.Minute, "300", "300000", "5m0s", "try again in 300 s"},
	} {
		for _, used := range []quota.Refusal{{}, {Requests: true}, {Tokens: true}, {Requests: true, Tokens: true}} {
			h := http.Header{}
			used.After = tc.after
			e := setRefusal(h, used)
			setRetryHeaders(h, e)
			reset := tc.reset
			if !used.Requests {
				reset = ""
			}
			if s, ms, r := h.Get("Retry-After"), h.Get("retry-after-ms"), h.Get("x-ratelimit-reset-requests"); s != tc.seconds || ms != tc.millis || r != reset {
				t.Errorf("%v: %q s, %q ms, reset %q; want %q, %q, %q", tc.after, s, ms, r, tc.seconds, tc.millis, reset)
			}
			if !strings.HasSuffix(e.Message, tc.message) || strings.Contains(e.Message, "requests") != used.Requests || strings.Contains(e.Message, "tokens") != used.Tokens {
				t.Errorf("%+v: %s", used, e.Message)
			}
		}
	}
}

func TestResetText(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 0: "0s", 1: "1ms", 20 * time.Millisecond: "20ms", 1500*time.Millisecond - 1: "1.5s",
		time.Second: "1s", 6 * time.Minute: "6m0s", 62 * time.Second: "1m2s",
	} {
		if got := resetText(d); got != want {
			t.Errorf("%d ns: %s, want %s", d, got, want)
		}
	}
}
