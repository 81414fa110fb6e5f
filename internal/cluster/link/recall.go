package link

import (
	"context"
	"errors"
	"time"

	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/internal/cluster/lastseen"
)

const (
	// recallAfter is how long a node waits for the control nodes before it goes on with
	// what it knew: an earlier state may place things that are elsewhere by now.
	recallAfter = 2 * time.Second
	// keepEvery is how often the state is written at most.
	keepEvery = time.Second
)

// recall makes the state that was seen last the present one, if the control nodes are
// silent at the start. It returns when ctx ends.
func (l *Link) recall(ctx context.Context) error {
	s, seen, err := lastseen.Read(l.cfg.Dir, l.credentials.Name())
	switch {
	case err == nil:
		l.recallLater(ctx, s, seen)
	case !errors.Is(err, lastseen.ErrNone):
		l.cfg.Log.Warn("the node waits for the control nodes", "err", err)
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

func (l *Link) recallLater(ctx context.Context, s *state.State, seen time.Time) {
	// The start would have ended the node's drain.
	s = s.Started(l.cfg.Self.ID)
	timer := time.NewTimer(recallAfter)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return
	}
	if l.view.Recall(s) {
		l.cfg.Log.Warn("no control node with a leader is heard; the node serves by the state that it has seen last",
			"index", s.Index, "seen", seen.Local().Format(time.DateTime))
	}
}

// keep writes the newest state into the node's directory, once a leader has confirmed
// one. What fails is logged once, and tried again with the next state: a full disk does
// not keep a node from serving.
func (l *Link) keep(ctx context.Context) error {
	ticker := time.NewTicker(keepEvery)
	defer ticker.Stop()
	var kept *state.State
	failing := false
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		s := l.view.State()
		if _, confirmed := l.view.Age(); !confirmed || s == kept {
			continue
		}
		err := lastseen.Write(l.cfg.Dir, l.credentials.Name(), s, time.Now())
		if err != nil && !failing {
			l.cfg.Log.Warn("the state is not kept for a start without control nodes", "err", err)
		}
		failing, kept = err != nil, s
	}
}
