package session_test

import (
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/gateway/session"
	"github.com/tokenrouter/tokenrouter/gateway/session/sessiontest"
)

// Equal prompts meet at one replica of the entry, and by their ids at one of
// every collaborator; the client's key travels with the request.
func TestConversationsStay(t *testing.T) {
	entries := []*sessiontest.Entry{{ID: "a", Script: sessiontest.Words(3)}, {ID: "b", Script: sessiontest.Words(3)}}
	d := served(t, entries[0], entries[1])
	long := strings.Repeat("k", generate.MaxSession+1)
	for _, key := range []string{"", "k1", long} {
		var before []generate.Request
		for range 4 {
			if _, err := drive(t, session.Config{}, d, session.Settings{MaxTokens: 3, Session: key}); err != nil {
				t.Fatal(err)
			}
		}
		for _, e := range entries {
			var mine []generate.Request
			for _, r := range e.Requests() {
				if r.Session == key || key == long && len(r.Session) == generate.MaxSession {
					mine = append(mine, r)
				}
			}
			if len(mine) != 0 && len(mine) != 4 {
				t.Errorf("key %.4q: %d of 4 requests went to %s", key, len(mine), e.ID)
			}
			before = append(before, mine...)
		}
		if len(before) != 4 {
			t.Fatalf("key %.4q: %d requests", key, len(before))
		}
		const n = 1 << generate.PlacementBits
		for _, r := range before[1:] {
			if r.ID%n != before[0].ID%n || r.ID == before[0].ID {
				t.Errorf("key %.4q: ids %x and %x", key, r.ID, before[0].ID)
			}
		}
	}
}
