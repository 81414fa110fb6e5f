package operator

import (
	"context"
	"errors"
	"time"

	"github.com/tokenrouter/tokenrouter/control/client"
)

// Times of the wait for a leader.
const (
	// leaderWithin is how long a call is repeated: an election takes less, on a busy machine too.
	leaderWithin = 5 * time.Second
	// leaderPause lies between two tries. The control node has waited already.
	leaderPause = 200 * time.Millisecond
)

// patiently repeats a call that may be repeated while the control nodes elect a leader. The
// error says that they have none if they had none in the whole time, or in the caller's.
func patiently(ctx context.Context, call func() error) error {
	began := time.Now()
	err := call()
	for errors.Is(err, client.ErrNoLeader) && time.Since(began) < leaderWithin {
		timer := time.NewTimer(leaderPause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ranOut(ctx, err)
		}
		again := call()
		if again != nil && ctx.Err() != nil {
			return ranOut(ctx, err)
		}
		err = again
	}
	return err
}

// ranOut is what is told when the caller waits no longer: what was wrong until its time was
// over, or why else it gave up.
func ranOut(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	return err
}
