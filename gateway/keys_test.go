package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/gateway/quota"
	"github.com/tokenrouter/tokenrouter/gateway/session"
	"github.com/tokenrouter/tokenrouter/gateway/session/sessiontest"
)

// hashedKeys are the SHA-256 hashes of keys that may ask for everything.
type hashedKeys [][sha256.Size]byte

func (k hashedKeys) Find(key string) (*Holder, error) {
	hash := sha256.Sum256([]byte(key))
	if !slices.Contains(k, hash) {
		return nil, ErrKey
	}
	return &Holder{ID: hex.EncodeToString(hash[:4]), Salt: SaltOf(hash[:])}, nil
}

// holders are keys by their text.
type holders map[string]*Holder

func (h holders) Find(key string) (*Holder, error) {
	if holder := h[key]; holder != nil {
		return holder, nil
	}
	return nil, ErrKey
}

// meter is a Quota that gives a fixed number of tokens and notes what was used.
type meter struct {
	mu             sync.Mutex
	left           int64
	reserved, used []int64
	settled        chan struct{}
}

func (m *meter) Rates() quota.Rates { return quota.Rates{} }

func (m *meter) Reserve(_ context.Context, tokens int64) (func(int64), quota.Refusal, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.left < tokens {
		return nil, quota.Refusal{After: 2500 * time.Millisecond}, false
	}
	m.left -= tokens
	m.reserved = append(m.reserved, tokens)
	return func(used int64) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.left += tokens - used
		m.used = append(m.used, used)
		m.settled <- struct{}{}
	}, quota.Refusal{}, true
}

func TestWhatAKeyMayAskFor(t *testing.T) {
	f := start(t, func(c *Config) {
		c.Keys = holders{
			"all":    {ID: "all"},
			"model":  {ID: "model", Models: []string{"other"}},
			"policy": {ID: "policy", Policies: []string{"me"}},
		}
	}, &sessiontest.Entry{ID: "e1", Script: sessiontest.Words(1)})
	for key, param := range map[string]string{"all": "", "model": "model", "policy": "trctl.policy"} {
		h := http.Header{"Authorization": {"Bearer " + key}}
		resp, body := f.send("POST", chatPath, `{`+hi+`}`, h)
		if param == "" {
			if resp.StatusCode != http.StatusOK {
				t.Errorf("%s: %s", key, body)
			}
		} else {
			wantError(t, key, resp, body, 403, "key_not_allowed", param)
		}
		_, list := f.send("GET", "/v1/models", "", h)
		if listed := strings.Contains(list, `"tiny"`); listed != (key != "model") {
			t.Errorf("%s: the list of models is %s", key, list)
		}
	}
}

func TestConcurrencyOfAKey(t *testing.T) {
	block := make(chan struct{})
	f := start(t, func(c *Config) {
		c.Keys = holders{"a": {ID: "a", Concurrency: 2}, "b": {ID: "b"}}
	}, &sessiontest.Entry{ID: "e1", Script: sessiontest.Words(1), Gate: waitFor(block)})
	ask := func(key, more string) (*http.Response, string) {
		return f.send("POST", chatPath, `{`+hi+more+`}`, http.Header{"Authorization": {"Bearer " + key}})
	}
	resp, body := ask("a", `,"n":3`)
	wantError(t, "three at once", resp, body, 429, "concurrency_exceeded", "")
	req, err := http.NewRequest("POST", f.server.URL+chatPath, strings.NewReader(`{`+hi+`,"n":2,"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Authorization": {"Bearer a"}, "Content-Type": {"application/json"}}
	first, err := f.server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp, body = ask("a", "")
	wantError(t, "a third", resp, body, 429, "concurrency_exceeded", "")
	close(block)
	if resp, body := ask("b", ""); resp.StatusCode != http.StatusOK {
		t.Errorf("another key: %s", body)
	}
	if err := first.Body.Close(); err != nil {
		t.Error(err)
	}
}

// hooked is a response writer that shows what is written before it is.
type hooked struct {
	*recorder
	sees func(text string)
}

func (h hooked) Write(b []byte) (int, error) {
	h.sees(string(b))
	return h.recorder.Write(b)
}

// A client that has its answer, or hears why there is none, may ask again at once: what its
// last request had of its key's bounds is free by then.
func TestBoundsAreFreeAtTheEnd(t *testing.T) {
	for name, refuse := range map[string]func(*generate.Request) error{
		"answer": nil, "error": func(*generate.Request) error { return errors.New("out of order") },
	} {
		for _, stream := range []string{"true", "false"} {
			m := &meter{left: 1000, settled: make(chan struct{}, 8)}
			holder := &Holder{ID: "a", Concurrency: 1, Quota: m}
			f := start(t, func(c *Config) { c.Keys = holders{"a": holder} }, &sessiontest.Entry{ID: "e1", Script: sessiontest.Words(3), Refuse: refuse})
			told := false
			w := hooked{&recorder{ResponseRecorder: httptest.NewRecorder()}, func(text string) {
				if !strings.Contains(text, `"finish_reason":"`) && !strings.Contains(text, `"error":`) {
					return
				}
				told = true
				leave, err := f.perKey.acquire(holder, 1)
				if err != nil {
					t.Errorf("%s, stream %s: %v", name, stream, err)
					return
				}
				leave()
				select {
				case <-m.settled:
				default:
					t.Errorf("%s, stream %s: the tokens are not settled", name, stream)
				}
			}}
			r := httptest.NewRequestWithContext(t.Context(), "POST", chatPath, strings.NewReader(`{`+hi+`,"max_tokens":50,"stream":`+stream+`}`))
			r.Header.Set("Authorization", "Bearer a")
			f.Handler().ServeHTTP(w, r)
			if !told || len(m.used) != 1 || len(f.perKey.by) != 0 {
				t.Errorf("%s, stream %s: told %t, used %v, held %v", name, stream, told, m.used, f.perKey.by)
			}
		}
	}
}

// What was taken beforehand is settled by what was used, also when the request fails.
func TestQuotaIsSettled(t *testing.T) {
	m := &meter{left: 100, settled: make(chan struct{}, 8)}
	e := &sessiontest.Entry{ID: "e1", Script: sessiontest.Words(3)}
	f := start(t, func(c *Config) { c.Keys = holders{"a": {ID: "a", Quota: m}} }, e)
	h := http.Header{"Authorization": {"Bearer a"}}
	if resp, body := f.send("POST", chatPath, `{`+hi+`,"max_tokens":50}`, h); resp.StatusCode != http.StatusOK {
		t.Fatalf("%s", body)
	}
	<-m.settled
	m.mu.Lock()
	left := m.left
	if m.used[0] < 3 || m.used[0] > m.reserved[0] || left != 100-m.used[0] {
		t.Errorf("reserved %v, used %v, left %d", m.reserved, m.used, left)
	}
	m.mu.Unlock()
	resp, body := f.send("POST", chatPath, `{`+hi+`,"max_tokens":100}`, h)
	wantError(t, "too much", resp, body, 429, "rate_limit_exceeded", "")
	if got := resp.Header.Get("Retry-After"); got != "3" {
		t.Errorf("Retry-After %q, want 3", got)
	}
	e.Refuse = func(*generate.Request) error { return errors.New("out of order") }
	if resp, _ := f.send("POST", chatPath, `{`+hi+`,"max_tokens":5}`, h); resp.StatusCode < 500 {
		t.Errorf("status %d", resp.StatusCode)
	}
	<-m.settled
	if m.left != left {
		t.Errorf("a failed request cost %d tokens", left-m.left)
	}
}

// Two keys with the same prompt have different salts.
func TestSaltsOfKeys(t *testing.T) {
	if SaltOf([]byte("a")) == SaltOf([]byte("b")) {
		t.Error("two keys have one salt")
	}
	var nobody *Holder
	if !nobody.mayAsk("x") || nobody.check(&session.Served{}, nil) != nil {
		t.Error("without keys something is refused")
	}
}

// A gateway that does not know the keys yet asks the client to come again.
func TestKeysUnknown(t *testing.T) {
	f := start(t, func(c *Config) { c.Keys = unknownKeys{} }, &sessiontest.Entry{ID: "e1", Script: sessiontest.Words(1)})
	resp, body := f.send("POST", chatPath, `{`+hi+`}`, http.Header{"Authorization": {"Bearer x"}})
	wantError(t, "keys unknown", resp, body, 503, "not_ready", "")
	if resp.Header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
}

type unknownKeys struct{}

func (unknownKeys) Find(string) (*Holder, error) { return nil, ErrKeysUnknown }
