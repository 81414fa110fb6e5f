package session_test

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/gateway/session"
	"github.com/tokenrouter/tokenrouter/gateway/session/sessiontest"
)

// errUnheard is what a worker says of a deployment that it does not know.
var errUnheard = &generate.Error{Code: generate.CodeNotFound, Message: "replica e1 is no entry of deployment \"tiny\"", Param: "model", Retryable: true}

// An entry that hears of its deployment later than the gateway is waited for; one that
// never does is no 404: the deployment exists.
func TestEntryHearsLate(t *testing.T) {
	for _, tc := range []struct {
		hears time.Duration
		code  string
	}{
		{time.Millisecond, ""}, {2900 * time.Millisecond, ""}, {time.Hour, generate.CodeUnavailable},
	} {
		t.Run(tc.hears.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				refuse := func(*generate.Request) error {
					if time.Since(began) < tc.hears {
						return errUnheard
					}
					return nil
				}
				script := sessiontest.Words(3)
				cfg := session.Config{Backoff: 25 * time.Millisecond, MaxAttempts: 2}
				r, err := drive(t, cfg, served(t, &sessiontest.Entry{ID: "e1", Script: script, Refuse: refuse}), session.Settings{Logprobs: -1})
				var refused *generate.Error
				switch {
				case tc.code == "":
					if err != nil || r.text != script.Text() {
						t.Errorf("%q, %v", r.text, err)
					}
				case !errors.As(err, &refused) || refused.Code != tc.code || refused.Message != errUnheard.Message:
					t.Errorf("%v", err)
				case time.Since(began) > 4*time.Second:
					t.Errorf("refused after %v", time.Since(began))
				}
			})
		})
	}
}

// A request that nobody has admitted ends as soon as its deployment has other models, or
// none; one that was admitted does not.
func TestSuperseded(t *testing.T) {
	for name, tc := range map[string]struct {
		err    error // of the entry
		gone   bool
		models []string
		want   error
	}{
		"unheard":     {err: errUnheard, models: []string{"tiny-l"}, want: session.ErrChanged},
		"lost":        {err: io.ErrUnexpectedEOF, models: []string{"tiny-l"}, want: session.ErrChanged},
		"deleted":     {err: errUnheard, gone: true, want: session.ErrChanged},
		"bad request": {err: &generate.Error{Code: generate.CodeInvalid}, gone: true, want: &generate.Error{Code: generate.CodeInvalid}},
		"other parts": {err: io.ErrUnexpectedEOF, models: []string{"tiny-s", "tiny-l"}, want: session.ErrLost},
		"no entry":    {models: []string{"tiny-l"}, want: session.ErrChanged},
	} {
		t.Run(name, func(t *testing.T) {
			var change func()
			e := &sessiontest.Entry{ID: "e1", Refuse: func(*generate.Request) error { change(); return tc.err }}
			d := session.Deployment{Name: "tiny", Models: []string{"tiny-s", "tiny-l"}, Entries: []session.Entry{e}, MaxContext: 512, Vocab: 1000}
			if tc.err == nil {
				d.Entries = nil
			}
			old, err := session.NewTable([]session.Deployment{d}, nil, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			changed := false
			change = func() {
				if changed {
					return
				}
				changed = true
				next := []session.Deployment{{Name: "tiny", Models: tc.models, MaxContext: 512, Vocab: 1000, Entries: d.Entries}}
				if tc.gone {
					next = nil
				}
				table, err := session.NewTable(next, old, time.Now())
				if err != nil {
					t.Error(err)
					return
				}
				table.Supersede(old)
			}
			if tc.err == nil {
				change()
			}
			_, err = drive(t, session.Config{}, old.Find("tiny"), session.Settings{Logprobs: -1})
			if !errors.Is(err, tc.want) && fmt.Sprint(err) != fmt.Sprint(tc.want) {
				t.Errorf("%v, want %v", err, tc.want)
			}
		})
	}
}

// A request waits no longer than it takes the gateway to hear of a change.
func TestSupersededWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &sessiontest.Entry{ID: "e1", Refuse: func(*generate.Request) error { return errUnheard }}
		old, err := session.NewTable([]session.Deployment{{Name: "tiny", Models: []string{"a", "b"}, Entries: []session.Entry{e}, MaxContext: 8, Vocab: 8}}, nil, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		timer := time.AfterFunc(time.Second, func() { new(session.Table).Supersede(old) })
		defer timer.Stop()
		_, err = drive(t, session.Config{Backoff: time.Minute}, old.Find("tiny"), session.Settings{Logprobs: -1})
		if !errors.Is(err, session.ErrChanged) || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}
