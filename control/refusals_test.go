package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/control/client"
)

// Who counts as refusing: who has done so often enough, for long enough, and has not taken
// the certificate since.
func TestRefusals(t *testing.T) {
	const long = 10 * time.Second
	no, away := fmt.Errorf("x: %w", client.ErrCertificate), errors.New("no route")
	begin := time.Unix(1e9, 0)
	for name, c := range map[string]struct {
		// answers are those of c1, one each second.
		answers []error
		counts  bool
	}{
		"never asked":          {nil, false},
		"once":                 {[]error{no}, false},
		"for too short a time": {slices.Repeat([]error{no}, 10), false},
		"for long":             {slices.Repeat([]error{no}, 11), true},
		"long, but seldom":     {append(slices.Repeat([]error{away}, 9), no, away, away, away, away, away, no, away, away, away, away, no, no), false},
		"away in between":      {append(slices.Repeat([]error{no}, 5), away, away, away, away, away, no), true},
		"away for ever":        {slices.Repeat([]error{away}, 30), false},
		"away later":           {append(slices.Repeat([]error{no}, 11), slices.Repeat([]error{away}, 30)...), true},
		"taken in between":     {append(slices.Repeat([]error{no}, 10), nil, no), false},
		"taken later":          {append(slices.Repeat([]error{no}, 20), nil), false},
		"refused anew":         {append(append(slices.Repeat([]error{no}, 20), nil), slices.Repeat([]error{no}, 11)...), true},
	} {
		r := refusals{}
		for i, err := range c.answers {
			r.note(begin.Add(time.Duration(i)*time.Second), "c1", err)
		}
		by, since := r.by([]string{"c2", "c1"}, long)
		if got := slices.Equal(by, []string{"c1"}); got != c.counts || len(by) > 1 {
			t.Errorf("%s: by %v, want c1 %t", name, by, c.counts)
		}
		if c.counts == since.IsZero() || since.After(begin.Add(21*time.Second)) {
			t.Errorf("%s: since %s", name, since)
		}
		if by, _ := r.by([]string{"c2", "c3"}, long); by != nil {
			t.Errorf("%s: by %v, who are no members", name, by)
		}
	}
}

// A majority of the others is needed, and its members and no others are told.
func TestRefusedByMajority(t *testing.T) {
	for _, c := range []struct {
		others, by int
		refused    bool
	}{{0, 0, false}, {1, 0, false}, {1, 1, true}, {2, 1, false}, {2, 2, true}, {3, 1, false}, {3, 2, true}, {4, 2, false}, {4, 3, true}} {
		n := &Node{log: slog.New(slog.DiscardHandler)}
		others := []string{"a", "b", "c", "d"}[:c.others]
		n.refusedBy(others, others[:c.by], time.Now())
		if got := n.Refused(); (got != nil) != c.refused || got != nil && len(got.By) != c.by {
			t.Errorf("%d of %d: %+v", c.by, c.others, got)
		}
		n.refusedBy(nil, nil, time.Time{}) // a leader is heard
		if n.Refused() != nil {
			t.Errorf("%d of %d: refused with a leader", c.by, c.others)
		}
	}
}

// onLine calls itself for every line of a log.
type onLine func()

func (onLine) Enabled(context.Context, slog.Level) bool    { return true }
func (f onLine) Handle(context.Context, slog.Record) error { f(); return nil }
func (f onLine) WithAttrs([]slog.Attr) slog.Handler        { return f }
func (f onLine) WithGroup(string) slog.Handler             { return f }

// Who finds that a node is refused, or is not any more, finds it in the log as well.
func TestRefusalIsLoggedFirst(t *testing.T) {
	n, lines := &Node{}, 0
	n.log = slog.New(onLine(func() {
		if lines++; (n.Refused() == nil) != (lines == 1) {
			t.Errorf("line %d comes when the node is refused: %t", lines, n.Refused() != nil)
		}
	}))
	n.refusedBy([]string{"a"}, []string{"a"}, time.Now())
	n.refusedBy(nil, nil, time.Time{})
	if lines != 2 || n.Refused() != nil {
		t.Errorf("%d lines", lines)
	}
}
