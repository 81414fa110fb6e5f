package session

import (
	"errors"
	"fmt"
	"slices"

	"github.com/tokenrouter/tokenrouter/api/generate"
)

// What the ledger refuses. A stale event is dropped and its stream read on; for
// all others the stream is given up and the request moved.
var (
	// errStale says that an event is of an epoch that is not the current one.
	errStale = errors.New("event of another epoch")
	// errGap says that an event starts after the end of the ledger.
	errGap = errors.New("event leaves a gap")
	// errConflict says that a committed position was sent again with another token.
	errConflict = errors.New("committed token sent again with another content")
	// errEvent says that an event holds what no entry may send.
	errEvent = errors.New("event out of bounds")
)

// ledger is what a request has committed. It is pure: events in, newly
// committed tokens out, and it alone decides what a client may see.
//
// A token is committed once it was accepted as (request, epoch, position,
// model, id) with the current epoch and position equal to the length so far.
// Invariant: a committed token is never changed or taken back.
type ledger struct {
	// limit bounds the tokens, models and vocab what a token may hold.
	limit, models, vocab int

	epoch uint32
	// admitted says that the current epoch's stream has been admitted.
	admitted bool
	prompt   []int32
	// echo says that the prompt's tokens were asked for, echoed how many came.
	echo   bool
	echoed int
	tokens []generate.Token
	owner  uint8
	state  []byte
	// version is the deployment's that the request has begun with.
	version uint64
}

// begin starts the next epoch and returns its number. Whatever an older stream
// sends from now on is stale.
func (l *ledger) begin() uint32 {
	l.epoch++
	l.admitted = false
	return l.epoch
}

// resume returns what another entry needs to continue, or nil if no entry has
// admitted the request yet. The slices stay valid and unchanged: committed
// tokens are only appended to.
func (l *ledger) resume() *generate.Resume {
	if l.prompt == nil {
		return nil
	}
	return &generate.Resume{
		PromptIDs: l.prompt,
		Tokens:    slices.Clip(l.tokens),
		Owner:     l.owner,
		State:     slices.Clone(l.state),
		Version:   l.version,
	}
}

// admit accepts the first event of a stream.
func (l *ledger) admit(e *generate.Event) error {
	switch {
	case e.Epoch != l.epoch:
		return errStale
	case e.Kind != generate.EventAdmitted || l.admitted:
		return fmt.Errorf("%w: kind %d, admitted %t", errEvent, e.Kind, l.admitted)
	case l.prompt == nil && len(e.PromptIDs) == 0:
		return fmt.Errorf("%w: admitted without a prompt", errEvent)
	case l.prompt != nil && len(e.PromptIDs) > 0 && !slices.Equal(l.prompt, e.PromptIDs):
		return fmt.Errorf("%w: the prompt changed", errConflict)
	}
	for _, id := range e.PromptIDs {
		if id < 0 || int(id) >= l.vocab {
			return fmt.Errorf("%w: prompt id %d", errEvent, id)
		}
	}
	if l.prompt == nil {
		l.prompt = slices.Clone(e.PromptIDs)
		l.version = e.Version
	}
	l.admitted = true
	return nil
}

// accept takes an event of tokens and returns the ones that it commits, a
// suffix of e.Tokens. With an error nothing was changed.
func (l *ledger) accept(e *generate.Event) ([]generate.TokenEvent, error) {
	base, length := int(e.Base), len(l.tokens)
	switch {
	case e.Epoch != l.epoch:
		return nil, errStale
	case e.Kind != generate.EventTokens || !l.admitted:
		return nil, fmt.Errorf("%w: kind %d, admitted %t", errEvent, e.Kind, l.admitted)
	case l.echo && l.echoed < len(l.prompt):
		return nil, fmt.Errorf("%w: tokens after %d of %d prompt tokens", errEvent, l.echoed, len(l.prompt))
	case base < 0 || base > length:
		return nil, fmt.Errorf("%w: position %d, %d committed", errGap, base, length)
	case base+len(e.Tokens) > l.limit:
		return nil, fmt.Errorf("%w: %d tokens, limit %d", errEvent, base+len(e.Tokens), l.limit)
	case e.Turn && int(e.Owner) >= l.models || len(e.State) > generate.MaxState:
		return nil, fmt.Errorf("%w: owner %d, state of %d bytes", errEvent, e.Owner, len(e.State))
	}
	for i := range e.Tokens {
		t := &e.Tokens[i]
		if t.ID < 0 || int(t.ID) >= l.vocab || int(t.Model) >= l.models {
			return nil, fmt.Errorf("%w: token %d of model %d", errEvent, t.ID, t.Model)
		}
		if at := base + i; at < length && l.tokens[at] != (generate.Token{ID: t.ID, Model: t.Model}) {
			return nil, fmt.Errorf("%w: position %d", errConflict, at)
		}
	}
	fresh := e.Tokens[min(length-base, len(e.Tokens)):]
	for i := range fresh {
		l.tokens = append(l.tokens, generate.Token{ID: fresh[i].ID, Model: fresh[i].Model})
	}
	// The turn is the one after the event's last token. An event that ends
	// before the ledger does is old news.
	if e.Turn && base+len(e.Tokens) == len(l.tokens) {
		l.owner = e.Owner
		l.state = append(l.state[:0], e.State...)
	}
	return fresh, nil
}

// recite takes an event of prompt tokens and returns the new ones, a suffix of
// e.Tokens. With an error nothing was changed.
func (l *ledger) recite(e *generate.Event) ([]generate.TokenEvent, error) {
	base := int(e.Base)
	switch {
	case e.Epoch != l.epoch:
		return nil, errStale
	case e.Kind != generate.EventPrompt || !l.admitted || !l.echo:
		return nil, fmt.Errorf("%w: kind %d, admitted %t, echo %t", errEvent, e.Kind, l.admitted, l.echo)
	case base < 0 || base > l.echoed:
		return nil, fmt.Errorf("%w: prompt position %d, %d known", errGap, base, l.echoed)
	case base+len(e.Tokens) > len(l.prompt):
		return nil, fmt.Errorf("%w: %d prompt tokens of %d", errEvent, base+len(e.Tokens), len(l.prompt))
	}
	for i := range e.Tokens {
		if e.Tokens[i].ID != l.prompt[base+i] {
			return nil, fmt.Errorf("%w: prompt position %d", errConflict, base+i)
		}
	}
	fresh := e.Tokens[min(l.echoed-base, len(e.Tokens)):]
	l.echoed += len(fresh)
	return fresh, nil
}

// cut forgets the tokens from position n on. The caller has not let them out:
// the answer ends before them.
func (l *ledger) cut(n int) { l.tokens = l.tokens[:n] }

// end accepts the last event of an answer.
func (l *ledger) end(e *generate.Event) error {
	switch {
	case e.Epoch != l.epoch:
		return errStale
	case e.Kind != generate.EventFinish || !l.admitted:
		return fmt.Errorf("%w: kind %d, admitted %t", errEvent, e.Kind, l.admitted)
	case l.echo && l.echoed < len(l.prompt):
		return fmt.Errorf("%w: finished after %d of %d prompt tokens", errEvent, l.echoed, len(l.prompt))
	case e.Finish != generate.FinishStop && e.Finish != generate.FinishLength:
		return fmt.Errorf("%w: finish %d", errEvent, e.Finish)
	}
	return nil
}
