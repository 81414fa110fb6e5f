package engine

import (
	"context"
	"sync"
)

// pools are the KV pools of one GPU's replicas. All hold as many tokens, so that no request is admitted by one model and
// stuck at another: a pool that came out smaller than planned, because the device had less memory, bounds the others.
//
// At the start no replica serves before all have their pools, so that those with too much can still be built again. Later a
// smaller pool bounds what is built after it; replicas that serve are left alone.
type pools struct {
	// complete is closed once every replica has built a pool.
	complete chan struct{}

	mu sync.Mutex
	// missing counts the replicas that have not built a pool yet. Guarded by mu.
	missing int
	// most is the largest pool allowed, in pages; 0 is no bound. Guarded by mu.
	most int
}

func newPools(replicas int) *pools {
	return &pools{complete: make(chan struct{}), missing: replicas}
}

// limit is what a replica may build of the pages planned for it.
func (p *pools) limit(planned int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.most > 0 {
		return min(planned, p.most)
	}
	return planned
}

// built tells of a pool: asked and got are pages, first says that it is its replica's first.
func (p *pools) built(asked, got int, first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if got < asked && (p.most == 0 || got < p.most) {
		p.most = got
	}
	if first {
		if p.missing--; p.missing == 0 {
			close(p.complete)
		}
	}
}

// wait returns once every replica of the GPU has built a pool, or an error when the GPU is lost before that.
func (p *pools) wait(ctx context.Context, d *gpu) error {
	select {
	case <-p.complete:
		return nil
	case <-d.gone:
		return errGPULost
	case <-ctx.Done():
		return ctx.Err()
	}
}
