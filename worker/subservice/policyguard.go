package subservice

import (
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/policies"
)

// Policies may be a user's own code. What one gets wrong ends the request that it was
// asked about; the others, and the loop that they share, go on.

var (
	// errBadDecision is a policy's fault: a dropped token that stays, a model that the
	// deployment does not have, or ids to put into the text that there are not.
	errBadDecision = errors.New("the policy made an impossible decision")
	// errBadPayload says that a policy added more to a hand-off than it may.
	errBadPayload = errors.New("the policy added too much to a hand-off")
	// errPanic says that a policy panicked; the text has value and stack.
	errPanic = errors.New("the policy panicked")
)

// policyFailed is what the client of a request is told whose policy failed.
func policyFailed() *generate.Error {
	return &generate.Error{Code: generate.CodeInternal, Message: "the routing policy failed"}
}

// blame notes what a policy did, for whoever runs the deployment.
func (s *Subservice) blame(q *sequence, err error) {
	s.log.Error("policy", "request", q.id, "deployment", q.dep.Name, "err", err)
}

// caught turns a panic into err. It is deferred.
func caught(err *error) {
	if v := recover(); v != nil {
		*err = fmt.Errorf("%w: %v\n%s", errPanic, v, debug.Stack())
	}
}

// ask fills r.choices. Where the policy panics over a batch it is asked about each row,
// so that one request's fault is not the others'; a row that has no answer then gets an
// impossible decision. The error is the last panic.
func (r *route) ask() (err error) {
	if r.askFor(&r.batch, &r.result, r.choices) == nil {
		return nil
	}
	for i, q := range r.batch.Reqs {
		x := &r.result
		one := policies.Result{
			Token: rowOf(x.Token, i), Entropy: rowOf(x.Entropy, i), LogV: x.LogV, Score: rowOf(x.Score, i), Margin: rowOf(x.Margin, i),
			Top: rowOf(x.Top, i), Hidden: rowOf(x.Hidden, i), Kind: rowOf(x.Kind, i),
		}
		choice := r.choices[i : i+1]
		clear(choice)
		if fault := r.askFor(&policies.Batch{Reqs: r.batch.Reqs[i : i+1]}, &one, choice); fault != nil {
			choice[0], err = policies.Decision{To: q.Self}, fault
		}
	}
	return err
}

func (r *route) askFor(b *policies.Batch, x *policies.Result, out []policies.Decision) (err error) {
	defer caught(&err)
	r.policy.Route(b, x, out)
	return nil
}

// rowOf is one row of an output, nil of one that was not asked for.
func rowOf[T any](list []T, i int) []T {
	if i >= len(list) {
		return nil
	}
	return list[i : i+1 : i+1]
}

// possible says whether a decision can be carried out.
func (s *Subservice) possible(q *sequence, d policies.Decision) bool {
	if int(d.To) >= len(q.dep.Models) || !d.Keep && d.To == q.q.Self || len(d.Inject) > policies.MaxInject {
		return false
	}
	for _, id := range d.Inject {
		if id < 0 || int(id) >= s.info.Vocab {
			return false
		}
	}
	return true
}

// addTo lets the policy of a request add to its hand-off.
func (q *sequence) addTo(h *policies.Handoff, d policies.Decision) (err error) {
	defer caught(&err)
	q.via.policy.Send(&q.q, d, h)
	if int(h.State.Len) > policies.MaxState || len(h.Blob) > policies.MaxBlob {
		return fmt.Errorf("%w: a state of %d bytes and %d more; at most %d and %d", errBadPayload, h.State.Len, len(h.Blob), policies.MaxState, policies.MaxBlob)
	}
	return nil
}

// take shows the policy of a request what has arrived.
func (q *sequence) take(h *policies.Handoff) (verdict policies.Verdict, to policies.ModelID, err error) {
	defer caught(&err)
	verdict, to = q.via.policy.Receive(&q.q, h)
	if verdict == policies.Bounce && (int(to) >= len(q.dep.Models) || to == q.q.Self) {
		err = errBadDecision
	}
	if int(q.q.State.Len) > policies.MaxState {
		err = errBadPayload
	}
	return verdict, to, err
}
