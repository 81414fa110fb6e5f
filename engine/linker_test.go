package engine

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sourcegraph/conc"

	"github.com/tokenrouter/tokenrouter/worker/peer"
)

// deadNetwork has nobody in it; it knows for whom transports are open.
type deadNetwork struct {
	Network
	mu   sync.Mutex
	open []string
}

type deadTransport struct {
	net  *deadNetwork
	name string
}

func (n *deadNetwork) URL(name string) string { return "http://" + name }

func (n *deadNetwork) Transport(name string) (Transport, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.open = append(n.open, name)
	return deadTransport{n, name}, nil
}

func (d deadTransport) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("nobody is there")
}

func (d deadTransport) Close() error {
	d.net.mu.Lock()
	defer d.net.mu.Unlock()
	d.net.open = slices.DeleteFunc(d.net.open, func(name string) bool { return name == d.name })
	return nil
}

// A link that no deployment wants any more stays for the requests that began when one did.
func TestLinksLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(deadNetwork)
		l := newLinker(peer.Config{Replica: "a", Model: "m", Handler: new(countingHandler)}, n, slog.New(slog.DiscardHandler))
		ctx, stop := context.WithCancel(t.Context())
		var running conc.WaitGroup
		running.Go(func() { _ = l.Run(ctx) })
		began := time.Now()
		for _, step := range []struct {
			after  time.Duration
			wanted []string
			open   string
		}{
			{0, []string{"b", "c"}, "bc"},
			{time.Second, []string{"c"}, "bc"},
			{linger, []string{"c"}, "bc"},
			{linger + 2*time.Second, []string{"c"}, "c"},
			{linger + 3*time.Second, nil, "c"},
			{linger + 4*time.Second, []string{"b", "c"}, "bc"}, // wanted again in time
			{3 * linger, nil, "bc"},
			{4*linger + time.Second, nil, ""},
		} {
			<-time.After(time.Until(began.Add(step.after)))
			l.dial(step.wanted)
			synctest.Wait()
			n.mu.Lock()
			open := strings.Join(slices.Sorted(slices.Values(n.open)), "")
			n.mu.Unlock()
			if open != step.open {
				t.Errorf("after %s: links to %q, want %q", step.after, open, step.open)
			}
		}
		l.dial([]string{"b"})
		synctest.Wait()
		stop()
		running.Wait()
		if len(n.open) > 0 {
			t.Errorf("links to %v are left", n.open)
		}
	})
}
