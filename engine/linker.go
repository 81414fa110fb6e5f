package engine

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sourcegraph/conc"

	"github.com/tokenrouter/tokenrouter/worker/peer"
)

// linger is how long a link outlives the last deployment that wants it. Requests end under
// what they began with: their turns still go between models that no deployment has
// together any more.
const linger = 10 * time.Minute

// linker keeps a link to each of the replicas that a run of a replica is to dial. Who
// they are may change while it runs.
type linker struct {
	cfg peer.Config
	net Network
	log *slog.Logger

	mu     sync.Mutex
	wanted map[string]bool
	// changed has room for one value: dial sends without blocking, Run receives.
	changed chan struct{}
}

func newLinker(cfg peer.Config, net Network, log *slog.Logger) *linker {
	return &linker{cfg: cfg, net: net, log: log, changed: make(chan struct{}, 1)}
}

// dial says which replicas are to be linked from now on.
func (l *linker) dial(names []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wanted = map[string]bool{}
	for _, name := range names {
		l.wanted[name] = true
	}
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// dialing is the client of one replica.
type dialing struct {
	stop context.CancelFunc
	// done is closed when it has ended.
	done chan struct{}
	// until is when it is to end, as nothing wants it any more; zero if something does.
	until time.Time
}

// end stops the clients that nothing has wanted for long enough, and says when to look
// again: never, if that is negative.
func end(running map[string]dialing, wanted map[string]bool, now time.Time) (next time.Duration) {
	next = -1
	for name, d := range running {
		switch {
		case wanted[name]:
			d.until = time.Time{}
		case d.until.IsZero():
			d.until = now.Add(linger)
		}
		running[name] = d
		if d.until.IsZero() {
			continue
		}
		left := d.until.Sub(now)
		if left <= 0 {
			d.stop()
			delete(running, name)
			continue
		}
		if next < 0 || left < next {
			next = left
		}
	}
	return next
}

// Run keeps the links until ctx ends; they are down when it returns.
func (l *linker) Run(ctx context.Context) error {
	var clients conc.WaitGroup
	defer clients.Wait()
	running, last := map[string]dialing{}, map[string]chan struct{}{}
	defer func() {
		for _, d := range running {
			d.stop()
		}
	}()
	for {
		l.mu.Lock()
		wanted := l.wanted
		l.mu.Unlock()
		var look <-chan time.Time // never, unless some are to end
		if next := end(running, wanted, time.Now()); next >= 0 {
			look = time.After(next)
		}
		for _, name := range slices.Sorted(maps.Keys(wanted)) {
			if _, runs := running[name]; runs {
				continue
			}
			own, stop := context.WithCancel(ctx)
			d := dialing{stop: stop, done: make(chan struct{})}
			before := last[name]
			running[name], last[name] = d, d.done
			clients.Go(func() {
				defer close(d.done)
				if before != nil {
					<-before // two clients at a time would take each other's place
				}
				l.keep(own, name)
			})
		}
		select {
		case <-l.changed:
		case <-look:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// keep keeps the link to one replica until ctx ends.
func (l *linker) keep(ctx context.Context, name string) {
	transport, err := l.net.Transport(name)
	if err != nil {
		l.log.Error("link", "peer", name, "err", err)
		return
	}
	defer func() { _ = transport.Close() }() // its streams have ended
	client, err := peer.NewClient(peer.ClientConfig{Config: l.cfg, URL: l.net.URL(name), Transport: transport, Expect: name})
	if err != nil {
		l.log.Error("link", "peer", name, "err", err)
		return
	}
	_ = client.Run(ctx) // it ends with ctx alone
}
