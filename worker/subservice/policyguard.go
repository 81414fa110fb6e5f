package subservice

import (
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/policies"
)

// Policies may be a user's own code. What one gets wrong ends the request that it was
// asked about; the others, and the loop that they share, go on.

// fault is what a policy got wrong. Clients are told of it, and other replicas: it
// has nothing of a request.
type fault string

// Faults.
const (
	routePanicked   fault = "route_panicked"
	wrongTo         fault = "route_to"
	wrongKeep       fault = "route_keep"
	wrongInject     fault = "route_inject"
	sendPanicked    fault = "send_panicked"
	sentState       fault = "send_state"
	sentBlob        fault = "send_blob"
	receivePanicked fault = "receive_panicked"
	receivedTo      fault = "receive_to"
	receivedFirst   fault = "receive_first"
	receivedState   fault = "receive_state"
	absent          fault = "absent"
)

// String says it by the names of package policies; empty for a fault of another build.
func (f fault) String() string {
	switch f {
	case routePanicked:
		return "Route panicked"
	case wrongTo:
		return "Route: Decision.To is no model of the deployment"
	case wrongKeep:
		return "Route: Decision.Keep is false, but the turn stays"
	case wrongInject:
		return fmt.Sprintf("Route: Decision.Inject has more than %d ids, or ids outside the vocabulary", policies.MaxInject)
	case sendPanicked:
		return "Send panicked"
	case sentState:
		return fmt.Sprintf("Send: Handoff.State has more than %d bytes", policies.MaxState)
	case sentBlob:
		return fmt.Sprintf("Send: Handoff.Blob has more than %d bytes", policies.MaxBlob)
	case receivePanicked:
		return "Receive panicked"
	case receivedTo:
		return "Receive: the turn goes on to no other model of the deployment"
	case receivedFirst:
		return "Receive: a first visit is passed on"
	case receivedState:
		return fmt.Sprintf("Receive: Req.State has more than %d bytes", policies.MaxState)
	case absent:
		return "the replica has no such policy"
	}
	return ""
}

// Error implements error.
func (f fault) Error() string { return f.String() }

// faultCode begins the code of a Release in which a collaborator gives a turn back
// because of a fault, which follows it. A build that does not know it takes it for an
// internal error.
const faultCode = generate.CodePolicy + "."

// faultOf is the fault of a Release; empty if it is about something else.
func faultOf(code string) fault {
	text, _ := strings.CutPrefix(code, faultCode)
	if f := fault(text); text != code && f.String() != "" {
		return f
	}
	return ""
}

// policyFailed is what the client of a request is told whose policy failed at a model.
func (q *sequence) policyFailed(at policies.ModelID, f fault) *generate.Error {
	return &generate.Error{Code: generate.CodePolicy, Message: fmt.Sprintf("the routing policy%s of deployment %q failed at model %q: %s", q.via.called(), q.dep.Name, q.dep.Models[at], f)}
}

// called is the policy's name, for a text that goes on behind it.
func (r *route) called() string {
	if r.name == "" {
		return ""
	}
	return fmt.Sprintf(" %.64q", r.name)
}

// blame notes what the policy of a request did, for whoever runs the deployment, and
// returns what the client is told, or the entry.
func (s *Subservice) blame(q *sequence, err error) *generate.Error {
	s.log.Error("policy", "request", q.id, "deployment", q.dep.Name, "policy", q.via.name, "err", err)
	var f fault
	_ = errors.As(err, &f) // every fault is one
	e := q.policyFailed(q.q.Self, f)
	if q.entry == nil {
		e.Code = faultCode + string(f) // the entry has the words
	}
	return e
}

// caught turns a panic into err, which then wraps f and has value and stack. It is
// deferred.
func caught(f fault, err *error) {
	if v := recover(); v != nil {
		*err = fmt.Errorf("%w: %v\n%s", f, v, debug.Stack())
	}
}

// ask fills r.choices. Where the policy panics over a batch it is asked about each row,
// so that one request's fault is not the others'; a row that has no answer is noted in
// r.panicked. The error is the last panic.
func (r *route) ask() (err error) {
	r.panicked = slices.Grow(r.panicked[:0], len(r.rows))[:len(r.rows)]
	clear(r.panicked)
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
			r.panicked[i] = true
		}
	}
	return err
}

func (r *route) askFor(b *policies.Batch, x *policies.Result, out []policies.Decision) (err error) {
	defer caught(routePanicked, &err)
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

// wrong says what keeps a decision from being carried out; empty if nothing does.
func (s *Subservice) wrong(q *sequence, d policies.Decision) fault {
	switch {
	case int(d.To) >= len(q.dep.Models):
		return wrongTo
	case !d.Keep && d.To == q.q.Self:
		return wrongKeep
	case len(d.Inject) > policies.MaxInject:
		return wrongInject
	}
	for _, id := range d.Inject {
		if id < 0 || int(id) >= s.info.Vocab {
			return wrongInject
		}
	}
	return ""
}

// addTo lets the policy of a request add to its hand-off.
func (q *sequence) addTo(h *policies.Handoff, d policies.Decision) (err error) {
	defer caught(sendPanicked, &err)
	q.via.policy.Send(&q.q, d, h)
	switch {
	case int(h.State.Len) > policies.MaxState:
		return fmt.Errorf("%w: %d", sentState, h.State.Len)
	case len(h.Blob) > policies.MaxBlob:
		return fmt.Errorf("%w: %d", sentBlob, len(h.Blob))
	}
	return nil
}

// take shows the policy of a request what has arrived.
func (q *sequence) take(h *policies.Handoff) (verdict policies.Verdict, to policies.ModelID, err error) {
	defer caught(receivePanicked, &err)
	verdict, to = q.via.policy.Receive(&q.q, h)
	switch {
	case int(q.q.State.Len) > policies.MaxState:
		err = receivedState
	case verdict == policies.Bounce && (int(to) >= len(q.dep.Models) || to == q.q.Self):
		err = receivedTo
	}
	return verdict, to, err
}
