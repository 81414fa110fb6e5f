package subservice

import (
	"testing"

	"github.com/tokenrouter/tokenrouter/api/trace"
)

// What is remembered is bounded in parts and in visits, and the newest stays.
func TestTracesAreBounded(t *testing.T) {
	var memory traces
	for i := range maxParts + 10 {
		memory.add(trace.Part{Request: trace.Text(uint64(i))})
	}
	if len(memory.parts) != maxParts || memory.of(trace.Text(9)) != nil || len(memory.of(trace.Text(10))) != 1 {
		t.Errorf("%d parts; the first is %s", len(memory.parts), memory.parts[0].Request)
	}
	for i := range maxPartVisits/trace.MaxVisits + 3 {
		memory.add(trace.Part{Request: trace.Text(uint64(i)), Epoch: 2, Visits: make([]trace.Visit, trace.MaxVisits)})
	}
	visits := 0
	for _, p := range memory.parts {
		visits += len(p.Visits)
	}
	if visits != memory.visits || visits > maxPartVisits {
		t.Errorf("%d visits, %d are counted, %d allowed", visits, memory.visits, maxPartVisits)
	}
	if got := memory.of(trace.Text(uint64(maxPartVisits/trace.MaxVisits + 2))); len(got) == 0 || got[len(got)-1].Epoch != 2 {
		t.Errorf("the newest is %+v", got)
	}
	for range 100 {
		memory.add(trace.Part{Request: "x", Epoch: 1})
		memory.add(trace.Part{Request: "x", Epoch: 2})
	}
	if got := len(memory.of("x")); got != 200 {
		t.Errorf("%d parts of one request", got)
	}
}
