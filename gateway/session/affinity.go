package session

import (
	"container/list"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"sync"

	"github.com/tokenrouter/tokenrouter/api/generate"
)

const (
	// stickyBytes bounds what of a prompt without turns names its conversation.
	stickyBytes = 256
	// stickyKeys bounds the conversations that one deployment remembers.
	stickyKeys = 8192
	// stickyHot is how many requests of one key may be in flight before more of
	// them are spread over the collaborators' replicas.
	stickyHot = 16
	// stickyFactor and stickySlack say when a remembered replica is clearly more
	// loaded: above stickyFactor times the least load, plus stickySlack.
	stickyFactor, stickySlack = 2, 2
)

// stickyKey names the conversation of a request, so that its turns meet where
// their prefix is cached: the client's own key if it gave one, else the turns
// up to the first of the user, else the first stickyBytes of the prompt. Equal
// keys of two deployments or two salts differ. It is never 0.
func stickyKey(r *generate.Request) uint64 {
	h := sha256.New()
	field(h, r.Deployment)
	field(h, string(r.Salt))
	switch {
	case r.Session != "":
		field(h, "session")
		field(h, r.Session)
	case r.Chat:
		field(h, "chat")
		field(h, string(r.TemplateArgs))
		field(h, string(r.Tools))
		for i := range r.Messages {
			m := &r.Messages[i]
			field(h, m.Role)
			field(h, m.Content)
			if m.Role == "user" {
				break
			}
		}
	case r.PromptIDs != nil:
		field(h, "ids")
		for _, id := range r.PromptIDs[:min(len(r.PromptIDs), stickyBytes)] {
			_, _ = h.Write(binary.LittleEndian.AppendUint32(nil, uint32(id))) // never fails
		}
	default:
		field(h, "text")
		field(h, r.Prompt[:min(len(r.Prompt), stickyBytes)])
	}
	return max(binary.LittleEndian.Uint64(h.Sum(nil)), 1)
}

// field adds a string with its length, so that no two lists of fields agree.
func field(h hash.Hash, s string) {
	_, _ = h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(s)))) // never fails
	_, _ = h.Write([]byte(s))
}

// affinity remembers which replica serves a conversation. It is safe for
// concurrent use. The key used least recently is forgotten first.
type affinity struct {
	mu    sync.Mutex
	size  int
	byKey map[uint64]*list.Element // of *conversation
	order list.List                // the latest at the front
}

type conversation struct {
	key     uint64
	replica *replica
	// inFlight counts the requests submitted and not yet given up or ended.
	inFlight int
}

func newAffinity(size int) *affinity {
	return &affinity{size: size, byKey: make(map[uint64]*list.Element)}
}

// replica is where the conversation was last, nil if that is not known.
func (a *affinity) replica(key uint64) *replica {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.byKey[key]; e != nil {
		return e.Value.(*conversation).replica
	}
	return nil
}

// hot says that many requests of one key are in flight.
func (a *affinity) hot(key uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.byKey[key]
	return e != nil && e.Value.(*conversation).inFlight >= stickyHot
}

// began notes a submission to r. A conversation stays with the replica that it
// has unless move.
func (a *affinity) began(key uint64, r *replica, move bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.byKey[key]
	if e == nil {
		if a.order.Len() >= a.size {
			oldest := a.order.Back()
			delete(a.byKey, oldest.Value.(*conversation).key)
			a.order.Remove(oldest)
		}
		e = a.order.PushFront(&conversation{key: key})
		a.byKey[key] = e
	}
	a.order.MoveToFront(e)
	c := e.Value.(*conversation)
	c.inFlight++
	if c.replica == nil || move {
		c.replica = r
	}
}

// ended notes the end of a submission.
func (a *affinity) ended(key uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.byKey[key]; e != nil { // it may have been forgotten, and begun anew
		c := e.Value.(*conversation)
		c.inFlight = max(c.inFlight-1, 0)
	}
}

// placed returns a request's id with the bits by which collaborators choose
// among their replicas (generate.Request.ID) taken from its conversation.
func placed(id, key uint64) uint64 {
	const mask = 1<<generate.PlacementBits - 1
	return id&^mask | key&mask
}
