package subservice

import (
	"errors"
	"slices"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/api/handoff"
	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/peer"
)

// tryBits is the size of a hop's count (see "Who may send a turn again"). A hop costs a token, or a dropped one, or
// a bounce, so an answer of handoff.MaxTokens tokens does not come near 2^20.
const tryBits = 20

// tryOf is the try of a hop.
func tryOf(hop uint32) uint32 { return hop >> tryBits }

// maxTry is the last try of an epoch; maxRenewals are the tries that a request may
// begin without getting one token further. A gateway may then begin a new epoch.
const (
	maxTry      = 1<<(32-tryBits) - 1
	maxRenewals = 16
)

// Codes of Releases that end no request.
const (
	// codeLost says that a turn was given away and did not arrive, or was given up.
	codeLost = "turn_lost"
	// codeStale says that the receiver plays in a try that is over.
	codeStale = "turn_stale"
)

// errOldTry says that a frame belongs to a try, or an epoch, that is over.
var errOldTry = errors.New("the try is over")

// holding is a replica that may have something of a request.
type holding struct {
	replica string
	model   policies.ModelID
}

// renew begins a new try: the turn is given anew, from what the entry knows.
func (s *Subservice) renew(q *sequence, why string) {
	e := q.entry
	if n := len(q.ids); n > e.renewedAt {
		e.renewedAt, e.renewals = n, 0
	}
	e.renewals++
	if e.renewals > maxRenewals || tryOf(q.hop) == maxTry {
		s.fail(q, &generate.Error{
			Code: generate.CodeUnavailable, Message: "the turn was lost too often", Retryable: true,
		})
		return
	}
	q.hop = (tryOf(q.hop) + 1) << tryBits
	s.log.Info("turn lost; it is given anew", "request", q.id, "epoch", q.epoch, "try", tryOf(q.hop), "why", why)
	e.news, e.holder = q.hop, ""
	q.sent = false
	s.sendTurn(q)
}

// noteHolding remembers that a replica may have something of the request.
func (e *entryState) noteHolding(replica string, model policies.ModelID) {
	if h := (holding{replica, model}); !slices.Contains(e.holdings, h) {
		e.holdings = append(e.holdings, h)
	}
}

// dropHolding notes that a replica has nothing of it any more.
func (e *entryState) dropHolding(replica string) {
	e.holdings = slices.DeleteFunc(e.holdings, func(h holding) bool { return h.replica == replica })
}

// lostReplica notes that a replica has lost what it knew of a request. The entry
// begins a new try if that replica has the turn; a collaborator that has sent it
// there tells the entry.
func (s *Subservice) lostReplica(q *sequence, name string) {
	sentThere := q.away && q.sent && q.replica[q.turn] == name
	for k := range q.dep.Models {
		if q.replica[k] == name {
			q.replica[k], q.seen[k] = "", 0
		}
	}
	switch {
	case q.entry == nil:
		if sentThere {
			s.reportLost(q, codeLost)
		}
	default:
		q.entry.dropHolding(name)
		if q.away && q.sent && q.entry.holder == name {
			s.renew(q, "its holder "+name+" is gone")
		}
	}
}

// reportLost tells the entry that the turn which was sent to a third model has not
// been taken there, and why.
func (s *Subservice) reportLost(q *sequence, code string) {
	s.giveBack(s.links[q.collab.entry], &handoff.Frame{
		Request: q.id, Epoch: q.epoch, Hop: q.hop, From: uint8(q.q.Self), To: uint8(q.q.Owner), Code: code,
	})
}

// surrender forgets a request on loan whose entry cannot be reached, and tells the
// collaborator from which it came: it may vouch for a turn that ends here.
func (s *Subservice) surrender(q *sequence) {
	if q.q.From != q.q.Owner {
		if link := s.links[q.replica[q.q.From]]; link != nil {
			s.giveBack(link, &handoff.Frame{
				Request: q.id, Epoch: q.epoch, Hop: q.fence.Hop(), From: uint8(q.q.Self), To: uint8(q.q.From), Code: codeLost,
			})
		}
	}
	s.forget(q)
}

// announce tells the entry that this replica has the turn now, if somebody else
// gave it.
func (s *Subservice) announce(q *sequence) {
	if q.q.From == q.q.Owner || s.sendProgress(q) == nil {
		return
	}
	if link := s.links[q.collab.entry]; link != nil {
		// The tokens follow; that something is held here must not be lost.
		s.tell(link, &handoff.Frame{
			Kind: handoff.KindProgress, Request: q.id, Epoch: q.epoch, Hop: q.hop,
			From: uint8(q.q.Self), To: uint8(q.q.Self), Base: int32(len(q.ids)),
		})
	}
}

// goesOn says that a parked sequence of an older try can serve a newer one: the
// hand-off confirms every id that it has.
func (q *sequence) goesOn(f *handoff.Frame) bool {
	end := int(f.Base) + len(f.Tokens)
	if !q.away || q.done != handoff.NotDone || int(f.Base) > len(q.ids) || end < len(q.ids) {
		return false
	}
	for i, id := range q.ids[f.Base:] {
		t, n := f.Tokens[i], int(f.Base)+i-q.q.PromptLen
		if t.ID != id || n >= 0 && t.Model != uint8(q.q.Models[n]) {
			return false
		}
	}
	return true
}

// replaces says that a hand-off does away with what a collaborator has of the
// request, from an older epoch or try.
func (q *sequence) replaces(f *handoff.Frame) bool {
	return f.Epoch > q.epoch || f.Epoch == q.epoch && tryOf(f.Hop) > tryOf(q.hop) && !q.goesOn(f)
}

// parcel is a frame that waits for room on its link.
type parcel struct {
	link  Link
	frame handoff.Frame
}

// maxParcels bounds the frames that wait so. A link has room for thousands of
// frames of its own, so they are few.
const maxParcels = 1 << 16

// tell sends a frame that nothing else repeats, once its link has room for it.
// Frames of one link keep their order among themselves. The frame has no slices.
func (s *Subservice) tell(link Link, f *handoff.Frame) {
	if len(s.parcels) == 0 {
		err := link.Send(f)
		if err == nil || !errors.Is(err, peer.ErrLinkFull) {
			s.notSent(f, err)
			return
		}
	}
	if len(s.parcels) == maxParcels {
		s.notSent(f, peer.ErrLinkFull)
		return
	}
	s.parcels = append(s.parcels, parcel{link, *f})
}

// sendParcels offers the frames that wait to their links again.
func (s *Subservice) sendParcels() {
	var full []Link
	s.parcels = slices.DeleteFunc(s.parcels, func(p parcel) bool {
		if slices.Contains(full, p.link) {
			return false
		}
		err := p.link.Send(&p.frame)
		if errors.Is(err, peer.ErrLinkFull) {
			full = append(full, p.link)
			return false
		}
		s.notSent(&p.frame, err)
		return true
	})
}

func (s *Subservice) notSent(f *handoff.Frame, err error) {
	if err != nil {
		s.log.Debug("frame not sent", "kind", f.Kind, "request", f.Request, "err", err)
	}
}
