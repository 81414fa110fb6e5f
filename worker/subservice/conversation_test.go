package subservice

import (
	"net/http"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/policies"
)

// Requests whose ids agree in the low bits go to one replica of the
// collaborator, where the second finds the first one's pages.
func TestConversationsMeetAtTheCollaborator(t *testing.T) {
	c := startCluster(t, layout{
		policy: "trace", settings: policies.Settings{Trace: "1 1 keep"}, replicas: []int{1, 2}, pageSize: 4,
	})
	for turn := range uint64(4) {
		req := request(3, 6)
		req.ID = turn<<generate.PlacementBits | 3
		k, resp := c.open("m0-0", req)
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("status %d", resp.StatusCode)
		}
		if o := c.read(k, 0); o.Err != nil || len(o.Tokens) != 6 {
			t.Fatalf("%+v", o)
		}
		c.awaitIdleOrCached()
	}
	if s := c.hosts["m1-0"].sub.Stats(); s.Tokens != 0 {
		t.Errorf("the replica that was not chosen computed %d tokens", s.Tokens)
	}
	if s := c.hosts["m1-1"].sub.Stats(); s.Hits < 3 {
		t.Errorf("%d pages found in the cache", s.Hits)
	}
}

// awaitIdleOrCached waits until no replica has a request.
func (c *cluster) awaitIdleOrCached() {
	c.t.Helper()
	c.await("idle", func(_ *host, s Stats) bool { return s.Queued+s.Running+s.Parked+s.Slots == 0 })
}

func TestConversationKey(t *testing.T) {
	key := func(deployment, salt, session string) uint64 {
		return conversationKey(&generate.Request{Deployment: deployment, Salt: []byte(salt), Session: session})
	}
	if key("d", "s", "") != 0 {
		t.Error("a key without a session")
	}
	if first, again := key("d", "s", "k"), key("d", "s", "k"); first != again {
		t.Error("one conversation has two keys")
	}
	seen := map[uint64]bool{}
	for _, k := range []uint64{key("d", "s", "k"), key("d", "s", "l"), key("d", "t", "k"), key("e", "s", "k"), key("d", "sk", "")} {
		if seen[k] {
			t.Errorf("key %x twice", k)
		}
		seen[k] = true
	}
}
