package client

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sourcegraph/conc"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/internal/h2"
	"github.com/tokenrouter/tokenrouter/internal/identity"
	"github.com/tokenrouter/tokenrouter/internal/memconn"
)

// speaker is a control node that only serves watches, and falls silent at some time. Its
// last words, and the watches, are noted.
type speaker struct {
	every  time.Duration
	beats  string // of BeatHeader
	until  time.Duration
	began  time.Time
	asked  []time.Duration
	spoken time.Duration
}

func (s *speaker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.asked = append(s.asked, time.Since(s.began))
	if s.beats != "" {
		w.Header().Set(BeatHeader, s.beats)
	}
	line := Line{Index: 1, History: "h", Leader: "c1", Term: 1, Snapshot: r.URL.Query().Get("since") == "0"}
	ticker := time.NewTicker(s.every)
	defer ticker.Stop()
	for {
		if now := time.Since(s.began); s.until == 0 || now < s.until {
			_ = json.NewEncoder(w).Encode(line)
			_ = http.NewResponseController(w).Flush()
			s.spoken, line.Snapshot = now, false
		}
		select {
		case <-ticker.C:
		case <-r.Context().Done():
			return
		}
	}
}

// watchAt lets a client watch control nodes for a while of virtual time.
func watchAt(t *testing.T, long time.Duration, nodes map[string]*speaker, addrs ...string) {
	a, err := identity.NewAuthority("c", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	var servers conc.WaitGroup
	listeners := map[string]*memconn.Listener{}
	for addr, s := range nodes {
		s.began = time.Now()
		l := memconn.Listen()
		listeners[addr] = l
		server, err := h2.NewServer(h2.Config{TLS: issued(t, a, cluster.Control, "control-"+addr[:1]).Server(identity.ProtocolHTTP)}, s)
		if err != nil {
			t.Fatal(err)
		}
		servers.Go(func() { _ = server.Serve(ctx, l) })
	}
	c, err := New(Config{Credentials: issued(t, a, cluster.Worker, "w"), Control: addrs, Dial: func(ctx context.Context, _, addr string) (net.Conn, error) {
		return listeners[addr].Dial(ctx)
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Watch(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Watch: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	servers.Wait()
}

// A watcher leaves a control node that has fallen silent within a second, for another one,
// and stays there.
func TestWatchLeavesSilentNodes(t *testing.T) {
	fast := strconv.FormatInt(BeatEvery.Milliseconds(), 10)
	for name, c := range map[string]struct {
		every  time.Duration
		beats  string
		within time.Duration
	}{
		"this build":    {BeatEvery, fast, time.Second},
		"earlier build": {SlowBeat, "", 4 * time.Second},
		"slow":          {SlowBeat, "1000", 4 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first := &speaker{every: c.every, beats: c.beats, until: 20 * time.Second}
				second := &speaker{every: c.every, beats: c.beats}
				watchAt(t, time.Minute, map[string]*speaker{"a:1": first, "b:1": second}, "a:1", "b:1")
				if len(first.asked) != 1 || len(second.asked) != 1 {
					t.Fatalf("the first was asked at %v, the second at %v", first.asked, second.asked)
				}
				if took := second.asked[0] - first.spoken; took > c.within {
					t.Errorf("%s passed between them", took)
				}
			})
		})
	}
}

// On a busy machine lines come late. A watcher does not run from one control node to the
// next because of that.
func TestWatchBearsLateness(t *testing.T) {
	fast := strconv.FormatInt(BeatEvery.Milliseconds(), 10)
	for every, most := range map[time.Duration]int{500 * time.Millisecond: 1, 700 * time.Millisecond: 1, 1500 * time.Millisecond: 3} {
		synctest.Test(t, func(t *testing.T) {
			first, second := &speaker{every: every, beats: fast}, &speaker{every: every, beats: fast}
			watchAt(t, 2*time.Minute, map[string]*speaker{"a:1": first, "b:1": second}, "a:1", "b:1")
			if n := len(first.asked) + len(second.asked); n > most {
				t.Errorf("a line each %s: %d watches, %v and %v", every, n, first.asked, second.asked)
			}
		})
	}
}
