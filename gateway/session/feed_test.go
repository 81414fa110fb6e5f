package session_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sourcegraph/conc"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/gateway/session"
	"github.com/tokenrouter/tokenrouter/gateway/session/sessiontest"
)

// feed starts a feed of n choices and returns it with a function that ends it.
func feed(t *testing.T, n int, e session.Entry) (*session.Feed, func()) {
	t.Helper()
	cfg := session.Config{Backoff: time.Microsecond}.WithDefaults()
	d := served(t, e)
	requests, err := d.Requests(&session.Settings{Logprobs: -1, N: n}, generate.Request{Prompt: "x"})
	if err != nil {
		t.Fatal(err)
	}
	var sessions []*session.Session
	for i := range requests {
		sessions = append(sessions, session.New(&cfg, d, &requests[i]))
	}
	f := session.NewFeed(&cfg, sessions)
	ctx, cancel := context.WithCancel(t.Context())
	var wg conc.WaitGroup
	wg.Go(func() { f.Run(ctx) })
	return f, func() { cancel(); wg.Wait() }
}

// taken is what came out of a feed.
type taken struct {
	admitted, tokens, done int
	err                    error
	text                   []string
}

func (k *taken) add(events []session.Event) {
	for i := range events {
		e := &events[i]
		switch {
		case e.Err != nil:
			k.err = e.Err
		case e.Admitted:
			k.admitted++
		}
		for j := range e.Tokens {
			k.tokens++
			k.text[e.Choice] += e.Tokens[j].Show
		}
		if e.Done {
			k.done++
		}
	}
}

func TestFeed(t *testing.T) {
	s := sessiontest.Words(300) // more than may wait
	f, stop := feed(t, 3, &sessiontest.Entry{ID: "e", Script: s})
	defer stop()
	k := taken{text: make([]string, 3)}
	for k.done < 3 && k.err == nil {
		<-f.Ready()
		k.add(f.Take())
	}
	if k.err != nil || k.admitted != 3 || k.tokens != 900 || k.text[0] != s.Text() || k.text[2] != s.Text() {
		t.Errorf("%d admitted, %d tokens, %v", k.admitted, k.tokens, k.err)
	}
}

// TestFeedIsBounded takes nothing: the sessions must stop reading.
func TestFeedIsBounded(t *testing.T) {
	fat := sessiontest.Words(40)
	for i := range fat.Tokens {
		fat.Tokens[i].Text = strings.Repeat("x", 4<<10)
	}
	for name, tc := range map[string]struct {
		script   *sessiontest.Script
		min, max int // tokens of a choice that are waiting
	}{
		"tokens": {sessiontest.Words(500), 256, 257},
		"bytes":  {fat, 15, 17},
	} {
		synctest.Test(t, func(t *testing.T) {
			e := &sessiontest.Entry{ID: "e", Script: tc.script}
			f, stop := feed(t, 2, e)
			synctest.Wait()
			k := taken{text: make([]string, 2)}
			k.add(f.Take())
			if k.tokens < 2*tc.min || k.tokens > 2*tc.max || k.done != 0 {
				t.Errorf("%s: %d tokens waited", name, k.tokens)
			}
			for k.done < 2 {
				<-f.Ready()
				k.add(f.Take())
			}
			if k.text[0] != tc.script.Text() || k.text[1] != tc.script.Text() {
				t.Errorf("%s: text was lost", name)
			}
			stop()
			synctest.Wait()
			if e.Active.Load() != 0 {
				t.Errorf("%s: streams are left", name)
			}
		})
	}
}

// TestFeedWaitsForAll has one choice admitted late: the other must not read on.
func TestFeedWaitsForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &sessiontest.Entry{ID: "e", Script: sessiontest.Words(3)}
		first := make(chan struct{}, 1)
		e.Submit = func(ctx context.Context) error {
			select {
			case first <- struct{}{}:
				return nil
			default:
				return sessiontest.After(time.Second)(ctx)
			}
		}
		f, stop := feed(t, 2, e)
		defer stop()
		synctest.Wait()
		k := taken{text: make([]string, 2)}
		if k.add(f.Take()); k.admitted != 1 || k.tokens != 0 {
			t.Errorf("early: %+v", k)
		}
		for k.done < 2 {
			<-f.Ready()
			k.add(f.Take())
		}
	})
}

// TestFeedStops ends a feed while its sessions wait for room, and while one
// panics.
func TestFeedStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, stop := feed(t, 2, &sessiontest.Entry{ID: "e", Script: sessiontest.Words(500)})
		synctest.Wait()
		stop()
	})
	bad := &sessiontest.Entry{ID: "e", Script: sessiontest.Words(3)}
	bad.Gate = func(context.Context, int) error { panic("boom") }
	f, stop := feed(t, 1, bad)
	defer stop()
	k := taken{text: make([]string, 1)}
	for k.err == nil {
		<-f.Ready()
		k.add(f.Take())
	}
	if !errors.Is(k.err, session.ErrPanic) {
		t.Error(k.err)
	}
}
