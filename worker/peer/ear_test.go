package peer_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tokenrouter/tokenrouter/api/handoff"
	"github.com/tokenrouter/tokenrouter/worker/peer"
	"github.com/tokenrouter/tokenrouter/worker/peer/peertest"
)

// networked are the limits of links between processes.
func networked() peer.Limits { return peer.Limits{Silence: peer.SilentAfter} }

// couple is a server and a client whose owners tell of links.
type couple struct {
	*rig
	ups, downs chan *peer.Link // the client's
	client     *peertest.Ledger
	err        error // of the client's last down
}

func newCouple(t *testing.T, plan peertest.Plan, server, client peer.Limits, probe func(context.Context, string) error) *couple {
	c := &couple{rig: newRig(t, plan), ups: make(chan *peer.Link, 10), downs: make(chan *peer.Link, 10)}
	c.serve(peer.ServerConfig{Config: peer.Config{Handler: owner{frame: answer(t)}, Limits: server}, Probe: probe})
	_, tap := c.transport()
	c.client, _ = c.dial(peer.ClientConfig{
		Config: peer.Config{Limits: client, Handler: owner{
			up:   func(l *peer.Link) { c.ups <- l },
			down: func(l *peer.Link, err error) { c.err = err; c.downs <- l },
		}},
		Transport: tap,
	})
	return c
}

func pass(d time.Duration) {
	timer := time.NewTimer(d)
	<-timer.C
}

// within fails the test unless ch brings something within d.
func within[T any](t *testing.T, d time.Duration, what string, ch <-chan T) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ch:
	case <-timer.C:
		t.Errorf("not within %v: %s", d, what)
	}
}

// A peer that can be reached no more is given up by both sides within 700 ms, although
// nothing says so.
func TestSilentPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCouple(t, peertest.Good, networked(), networked(), nil)
		<-c.ups
		pass(3 * time.Second)
		c.net.Silence()
		began := time.Now()
		within(t, 700*time.Millisecond, "the client's link is down", c.downs)
		if !errors.Is(c.err, peer.ErrPeerLost) {
			t.Error(c.err)
		}
		pass(700*time.Millisecond - time.Since(began))
		synctest.Wait()
		if d := c.ledger.Downs(); len(d) != 1 || !errors.Is(d[0], peer.ErrPeerLost) {
			t.Errorf("the server's downs: %v", d)
		}
		c.stop()
	})
}

// A network that holds everything back for 300 ms, again and again, costs no link, and
// neither does one that is quiet because nobody has anything to say.
func TestPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCouple(t, peertest.Good, networked(), networked(), nil)
		link := <-c.ups
		pass(10 * time.Minute)
		for range 50 {
			c.net.Hold(300 * time.Millisecond)
			pass(317 * time.Millisecond)
		}
		if err := link.Send(hop(1, 1)); err != nil {
			t.Error(err)
		}
		pass(time.Second)
		if n := c.net.Dialed(); n != 1 || c.client.Handled() != 1 {
			t.Errorf("%d connections, %d frames handled", n, c.client.Handled())
		}
		c.stop()
	})
}

// A pause that is too long for a connection is made up for by another: the link lives.
func TestLongPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCouple(t, peertest.Good, networked(), networked(), nil)
		link := <-c.ups
		pass(time.Second)
		c.net.Hold(570 * time.Millisecond)
		pass(2 * time.Second)
		if err := link.Send(hop(1, 1)); err != nil {
			t.Error(err)
		}
		pass(time.Second)
		if n := c.net.Dialed(); n != 2 || c.client.Handled() != 1 || len(c.downs) > 0 {
			t.Errorf("%d connections, %d frames handled, %d links lost", n, c.client.Handled(), len(c.downs))
		}
		c.stop()
	})
}

// A side that gives no signs of life, as one of an older build, is not held to them.
func TestOlderPeer(t *testing.T) {
	for name, limits := range map[string][2]peer.Limits{
		"server": {{}, networked()}, "client": {networked(), {}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCouple(t, peertest.Good, limits[0], limits[1], nil)
				link := <-c.ups
				pass(time.Minute)
				if err := link.Send(hop(1, 1)); err != nil {
					t.Error(err)
				}
				pass(time.Second)
				if n := c.net.Dialed(); n != 1 || c.client.Handled() != 1 {
					t.Errorf("%d connections, %d frames handled", n, c.client.Handled())
				}
				c.stop()
			})
		})
	}
}

// Where nobody listens any more there is nothing to wait for, however long a link may
// be without a connection.
func TestEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := func(n int) peertest.Faults { return peertest.Faults{Gone: n > 0} }
		asked := 0
		probe := func(_ context.Context, replica string) error {
			if asked++; replica != "small-0" {
				t.Errorf("asked for %q", replica)
			}
			if asked == 2 {
				return errors.New("it takes too long") // tells nothing
			}
			return syscall.ECONNREFUSED
		}
		c := newCouple(t, gone, patient(), patient(), probe)
		link := <-c.ups
		c.net.CutAll()
		within(t, 100*time.Millisecond, "the client's link is down", c.downs)
		pass(100 * time.Millisecond)
		synctest.Wait()
		if d := c.ledger.Downs(); len(d) != 1 || !errors.Is(d[0], peer.ErrPeerLost) || asked != 5 {
			t.Errorf("the server's downs: %v, asked %d times", d, asked)
		}
		if !errors.Is(c.err, peer.ErrPeerLost) || !errors.Is(link.Err(), peer.ErrPeerLost) {
			t.Error(c.err, link.Err())
		}
		c.stop()
	})
}

// A server whose probe says that somebody listens waits, and so does a client whose
// dials end in any other way.
func TestNotEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refuse := func(n int) peertest.Faults {
			return peertest.Faults{Refuse: n > 0 && n < 100, Gone: n%3 == 2 && n < 100}
		}
		c := newCouple(t, refuse, patient(), patient(), func(context.Context, string) error { return nil })
		<-c.ups
		c.net.CutAll()
		pass(10 * time.Second)
		if len(c.downs) > 0 || len(c.ledger.Downs()) > 0 || c.net.Dialed() != 101 {
			t.Errorf("%d and %d links down, %d connections", len(c.downs), len(c.ledger.Downs()), c.net.Dialed())
		}
		c.stop()
	})
}

// What runs now where the other side was does not have the link: there is nothing to
// wait for.
func TestSuccessorNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCouple(t, peertest.Good, patient(), patient(), nil)
		<-c.ups
		s, err := peer.NewServer(peer.ServerConfig{Config: peer.Config{Replica: "large-0", Model: "tiny-l", Handler: owner{}}})
		if err != nil {
			t.Fatal(err)
		}
		c.mux.set(s) // it does not run
		c.net.CutAll()
		within(t, 100*time.Millisecond, "the client's link is down", c.downs)
		if !errors.Is(c.err, peer.ErrSessionLost) {
			t.Error(c.err)
		}
		c.stop()
	})
}

// A reader that is busy with what came takes nobody for silent.
func TestBusyReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, peertest.Good)
		r.serve(peer.ServerConfig{Config: peer.Config{Handler: owner{frame: func(l *peer.Link, f *handoff.Frame) {
			pass(5 * time.Second)
			answer(t)(l, f)
		}}, Limits: networked()}})
		y := newRally(t, 3, 6)
		_, tap := r.transport()
		r.dial(peer.ClientConfig{Config: peer.Config{Handler: y.owner(), Limits: networked()}, Transport: tap})
		<-y.done
		if n := r.net.Dialed(); n != 1 {
			t.Errorf("%d connections", n)
		}
		r.stop()
	})
}
