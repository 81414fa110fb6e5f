package subservice

import (
	"reflect"
	"sync"
	"testing"

	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/schedule"
)

// Under every schedule, with thresholds that leave no room, the answers are the
// same, and nothing is left: of three models, and of two of which a replica stops
// in the middle.
func TestSchedulesWriteTheSame(t *testing.T) {
	p := 0.3
	for name, l := range map[string]layout{
		"three models":    {policy: "me", replicas: []int{1, 1, 1}, thresholds: []int{2, 3, 4}},
		"a replica stops": {policy: "random", settings: policies.Settings{Threshold: &p}, replicas: []int{1, 2}, thresholds: []int{3, 5}},
	} {
		t.Run(name, func(t *testing.T) {
			var want []outcome
			for _, name := range schedule.Names() {
				rule, err := schedule.Parse(name)
				if err != nil {
					t.Fatal(err)
				}
				l.rule = &rule
				got := answersOf(t, l, rule != schedule.Delayed && len(l.replicas) == 2)
				if want == nil {
					want = got
				}
				for i := range want {
					if !reflect.DeepEqual(got[i], want[i]) {
						t.Errorf("%s, request %d:\n got %+v\nwant %+v", name, i+1, got[i], want[i])
					}
				}
			}
		})
	}
}

// answersOf asks a cluster for some answers at the same time. If one is to stop,
// the second replica of the second model does in the middle.
func answersOf(t *testing.T, l layout, stop bool) []outcome {
	t.Helper()
	const requests, victim = 24, "m1-1"
	c := startCluster(t, l)
	got := make([]outcome, requests)
	var group sync.WaitGroup
	for i := range requests {
		call, resp := c.open("m0-0", request(uint64(i+1), 40))
		if resp.StatusCode != 200 {
			t.Fatalf("status %d", resp.StatusCode)
		}
		if i == requests/2 && stop {
			c.hosts[victim].stop()
		}
		group.Go(func() { got[i] = c.read(call, 0) })
	}
	group.Wait()
	for i := range got {
		// How tokens are grouped into events, and what the cache had, is timing.
		got[i].Owners, got[i].Cached = nil, 0
	}
	c.await("idle", func(h *host, s Stats) bool {
		return stop && h.name == victim || s.Queued+s.Running+s.Parked+s.PagesHeld+s.Slots == 0
	})
	return got
}
