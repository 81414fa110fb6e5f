package gateway

import (
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/gateway/session/sessiontest"
)

// The choices of a chat begin in order, whichever speaks first: the stream helper of
// the official Python client fails otherwise. None begins twice.
func TestChoicesBeginInOrder(t *testing.T) {
	spoken := make(chan struct{})
	e := &sessiontest.Entry{ID: "e1", Script: sessiontest.Words(3)}
	e.Edit = func(r *generate.Request, position int, ev *generate.Event) ([]*generate.Event, error) {
		switch first := r.Sampling.Seed == 7; {
		case first && position == 0: // choice 0 has the seed itself
			<-spoken
		case !first && position == 2:
			close(spoken)
		}
		return sessiontest.Pass(ev)
	}
	f := start(t, nil, e)
	_, body := f.post(chatPath, `{`+hi+`,"stream":true,"n":2,"seed":7,"logprobs":true}`)
	chunks := events(t, body)
	for i := range 2 {
		ch := chunks[i].Choices[0]
		if ch.Index != i || ch.Delta.Role != "assistant" || ch.Delta.Content == nil || *ch.Delta.Content != "" || string(ch.Logprobs) != "null" {
			t.Errorf("chunk %d: %+v", i, ch)
		}
	}
	if got := strings.Count(body, `"role"`); got != 2 || joined(chunks, 0) != e.Script.Text() || joined(chunks, 1) != e.Script.Text() {
		t.Errorf("%d roles\n%s", got, body)
	}
}
