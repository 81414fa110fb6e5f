package engine

import (
	"testing"

	"github.com/tokenrouter/tokenrouter/api/handoff"
	"github.com/tokenrouter/tokenrouter/worker/peer"
)

// countingHandler counts what reaches it.
type countingHandler struct{ ups, downs int }

func (h *countingHandler) LinkUp(*peer.Link)                      { h.ups++ }
func (h *countingHandler) HandleFrame(*peer.Link, *handoff.Frame) {}
func (h *countingHandler) LinkDown(*peer.Link, error)             { h.downs++ }

func TestLinkWatch(t *testing.T) {
	var h countingHandler
	complete := 0
	w := &linkWatch{Handler: &h, want: 1, complete: func() {
		complete++
		if h.ups != complete {
			t.Errorf("complete before the sub-service knew")
		}
	}, up: map[string]*peer.Link{}}
	first, second := new(peer.Link), new(peer.Link)
	w.LinkUp(first)
	w.LinkUp(second) // the same replica, back before the first link was given up
	w.LinkDown(first, peer.ErrPeerLost)
	if len(w.up) != 1 || complete != 2 {
		t.Errorf("%d links up, complete %d times", len(w.up), complete)
	}
	w.LinkDown(second, peer.ErrPeerLost)
	if len(w.up) != 0 || h.ups != 2 || h.downs != 2 {
		t.Errorf("%d links up, handler %+v", len(w.up), h)
	}
}

// An engine is ready when every pair of replicas of different models has its link.
func TestReadyMeansLinked(t *testing.T) {
	e := start(t, func(c *Config) { c.Models[0].Replicas, c.Models[1].Replicas = 2, 3 })
	for _, r := range e.replicas {
		want := 3
		if r.model.cfg.Name == "tiny-l" {
			want = 2
		}
		if len(r.neighbours) != want {
			t.Errorf("%s has neighbours %v", r.name, r.neighbours)
		}
		select {
		case <-r.linked:
		default:
			t.Errorf("%s is not linked", r.name)
		}
	}
}
