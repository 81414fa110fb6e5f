package subservice

import (
	"fmt"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/api/handoff"
)

// A fault travels as the code of a Release, and the entry has the words for it. What
// another build calls a fault is an internal error.
func TestFaultsTravel(t *testing.T) {
	for _, f := range []fault{
		routePanicked, wrongTo, wrongKeep, wrongInject, sendPanicked, sentState, sentBlob, receivePanicked, receivedTo, receivedFirst, receivedState, absent,
	} {
		frame := handoff.Frame{Kind: handoff.KindRelease, Seq: 1, Request: 1, Epoch: 1, Done: handoff.DoneError, Code: faultCode + string(f)}
		if _, err := handoff.Append(nil, &frame); err != nil {
			t.Errorf("%s: %v", f, err)
		}
		if got := faultOf(frame.Code); got != f || got.String() == "" {
			t.Errorf("%s arrives as %q", frame.Code, got)
		}
	}
	for _, code := range []string{"", generate.CodeInternal, generate.CodePolicy, faultCode, faultCode + "new", "route_to"} {
		if f := faultOf(code); f != "" {
			t.Errorf("%q is the fault %q", code, f)
		}
	}
	if code := errorCode(faultCode + "new"); code != generate.CodeInternal {
		t.Errorf("a fault of another build is %s", code)
	}
	q := &sequence{dep: &deployment{Deployment: Deployment{Name: "d", Models: []string{"s", "l"}}}, via: &route{name: fmt.Sprintf("%0100d", 1)}}
	if e := q.policyFailed(1, sentBlob); e.Retryable || e.HTTPStatus() != 500 || len(e.Message) > 256 {
		t.Errorf("%+v", e)
	}
}
