package cpuexec

import (
	"sync/atomic"

	"github.com/sourcegraph/conc/panics"
	"github.com/sourcegraph/conc/pool"
)

// job is work cut into independent units. unit is called once for each number,
// by any member; member tells which scratch memory to use.
type job interface {
	unit(member, unit int)
}

// team runs jobs on the calling goroutine and a fixed set of helpers. Units are
// handed out by an atomic counter, so a late helper costs nothing but its share.
//
// All methods are called by one goroutine.
type team struct {
	pool    *pool.Pool
	helpers int
	// wake has one token for each helper that should join. The caller of run
	// sends, never more than helpers; stop closes it.
	wake chan struct{}
	// done gets one token from each helper that was woken, when it has left the job.
	done chan struct{}

	// Written by run before it sends on wake, read by helpers after they receive.
	job   job
	units int64

	next   atomic.Int64
	failed atomic.Pointer[panics.Recovered]
}

// newTeam starts members-1 helpers. stop ends them.
func newTeam(members int) *team {
	t := &team{helpers: members - 1, pool: pool.New()}
	t.wake = make(chan struct{}, max(t.helpers, 1))
	t.done = make(chan struct{}, max(t.helpers, 1))
	for i := range t.helpers {
		t.pool.Go(func() {
			for range t.wake {
				t.work(i + 1)
				t.done <- struct{}{}
			}
		})
	}
	return t
}

// run does all units of a job and returns when they are done. wide says that
// waking the helpers (some microseconds) is worth it. A panic in a unit comes
// out here, once all helpers have left the job.
func (t *team) run(j job, units int, wide bool) {
	helpers := 0
	if wide {
		helpers = min(t.helpers, units-1)
	}
	if helpers <= 0 {
		for u := range units {
			j.unit(0, u)
		}
		return
	}
	t.job, t.units = j, int64(units)
	t.next.Store(0)
	for range helpers {
		t.wake <- struct{}{}
	}
	t.work(0)
	for range helpers {
		<-t.done
	}
	t.job = nil
	if r := t.failed.Swap(nil); r != nil {
		panic(r.AsError())
	}
}

// work takes units until none are left.
func (t *team) work(member int) {
	var c panics.Catcher
	c.Try(func() {
		for {
			u := t.next.Add(1) - 1
			if u >= t.units {
				return
			}
			t.job.unit(member, int(u))
		}
	})
	if r := c.Recovered(); r != nil {
		t.next.Store(t.units)
		t.failed.CompareAndSwap(nil, r)
	}
}

// stop ends the helpers and waits for them.
func (t *team) stop() {
	close(t.wake)
	t.pool.Wait()
}
