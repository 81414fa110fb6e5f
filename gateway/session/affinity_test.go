package session

import (
	"strings"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/generate"
)

func TestStickyKey(t *testing.T) {
	long := strings.Repeat("x", stickyBytes)
	chat := func(texts ...string) generate.Request {
		r := generate.Request{Deployment: "d", Chat: true}
		for i, s := range texts {
			role := "user"
			if i%2 == 1 {
				role = "assistant"
			}
			r.Messages = append(r.Messages, generate.Message{Role: role, Content: s})
		}
		return r
	}
	for _, tc := range []struct {
		name string
		a, b generate.Request
		same bool
	}{
		{"a later turn", chat("hi"), chat("hi", "hello", "and now?"), true},
		{"another first turn", chat("hi"), chat("ho"), false},
		{"fields do not run together", chat("hi"), generate.Request{Deployment: "dc", Chat: true, Messages: chat("hi").Messages}, false},
		{"a longer prompt", generate.Request{Prompt: long + "a"}, generate.Request{Prompt: long + "b"}, true},
		{"another prompt", generate.Request{Prompt: "a"}, generate.Request{Prompt: "b"}, false},
		{"ids are no text", generate.Request{PromptIDs: []int32{97}}, generate.Request{Prompt: "a"}, false},
		{"another salt", generate.Request{Prompt: "a"}, generate.Request{Prompt: "a", Salt: make([]byte, 32)}, false},
		{"the client's key", generate.Request{Prompt: "a", Session: "k"}, generate.Request{Prompt: "b", Session: "k"}, true},
		{"another client's key", generate.Request{Prompt: "a", Session: "k"}, generate.Request{Prompt: "a", Session: "l"}, false},
	} {
		if same := stickyKey(&tc.a) == stickyKey(&tc.b); same != tc.same {
			t.Errorf("%s: same is %v", tc.name, same)
		}
	}
}

// The second request of a conversation goes where the first one went, unless
// that replica is out of service, or clearly more loaded than another.
func TestPlace(t *testing.T) {
	now := time.Unix(1000, 0)
	a, b := &replica{entry: named("a")}, &replica{entry: named("b")}
	d := &Served{replicas: newReplicaSet(a, b), sticky: newAffinity(4)}
	place := func(key uint64, tried ...*replica) *replica {
		r, move := d.place(now, tried, key)
		d.sticky.began(key, r, move)
		d.sticky.ended(key)
		return r
	}
	first := place(1)
	other := a
	if first == a {
		other = b
	}
	for range 5 {
		if place(1) != first {
			t.Fatal("a conversation moved without a reason")
		}
	}
	first.inFlight.Store(stickySlack)
	if place(1) != first {
		t.Error("moved for a small difference in load")
	}
	first.inFlight.Store(stickySlack + 1)
	if place(1) != other {
		t.Error("stays at a replica that is clearly more loaded")
	}
	other.inFlight.Store(1)
	if place(1) != first {
		t.Error("a short overload made it forget where its prefix is")
	}
	if place(1, first) != other || place(1) != other {
		t.Error("does not stay where it moved to, after the first replica refused")
	}
	other.eject(now, time.Second)
	if place(1) != first {
		t.Error("stays at an ejected replica")
	}
	d.replicas = newReplicaSet(other)
	if place(1) != other {
		t.Error("stays at a replica that is gone")
	}
	d.replicas = newReplicaSet()
	if r, _ := d.place(now, nil, 1); r != nil {
		t.Error("placed at nothing")
	}
}

func TestAffinityIsBounded(t *testing.T) {
	m, r := newAffinity(3), &replica{}
	for key := uint64(1); key <= 5; key++ {
		m.began(key, r, false)
		m.began(1, r, false) // used all the time
	}
	if len(m.byKey) != 3 || m.order.Len() != 3 {
		t.Fatalf("%d keys, %d in order", len(m.byKey), m.order.Len())
	}
	for key, known := range map[uint64]bool{1: true, 2: false, 3: false, 4: true, 5: true} {
		if (m.replica(key) != nil) != known {
			t.Errorf("key %d: known is %v", key, !known)
		}
	}
	m.ended(2) // forgotten
	for range stickyHot {
		m.began(5, r, false)
	}
	if !m.hot(5) || m.hot(4) {
		t.Error("hot keys are not told from others")
	}
	for range stickyHot {
		m.ended(5)
	}
	if m.hot(5) {
		t.Error("hot after the requests ended")
	}
}

func TestPlacedIDs(t *testing.T) {
	const n = 1 << generate.PlacementBits
	if got := placed(0xaaaabbbbccccdddd, 0x1234567); got%n != 0x4567 || got/n != 0xaaaabbbbcccc {
		t.Errorf("%x", got)
	}
}
