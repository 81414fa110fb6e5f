package gatewaynode

import (
	"context"
	"sync"

	"github.com/tokenrouter/tokenrouter/control/client"
)

// source is gateway.Source: control nodes say how far the state has come, and the loop that
// follows the state how far what is served has.
type source struct {
	client   *client.Client
	progress *progress
}

// Index implements gateway.Source.
func (s source) Index(ctx context.Context) (uint64, error) { return s.client.Index(ctx) }

// Await implements gateway.Source.
func (s source) Await(ctx context.Context, index uint64) error { return s.progress.wait(ctx, index) }

// progress is the index of the state that is served. One goroutine notes it.
type progress struct {
	mu    sync.Mutex
	index uint64
	// newer is closed by the next note.
	newer chan struct{}
}

func newProgress() *progress { return &progress{newer: make(chan struct{})} }

func (p *progress) note(index uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.index = index
	close(p.newer)
	p.newer = make(chan struct{})
}

// wait returns nil once the state that is served has at least an index.
func (p *progress) wait(ctx context.Context, index uint64) error {
	for {
		p.mu.Lock()
		now, newer := p.index, p.newer
		p.mu.Unlock()
		if now >= index {
			return nil
		}
		select {
		case <-newer:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
