package peer_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tokenrouter/tokenrouter/api/handoff"
	"github.com/tokenrouter/tokenrouter/worker/peer"
	"github.com/tokenrouter/tokenrouter/worker/peer/peertest"
)

// play runs a rally over a network with faults and returns the bytes that went
// up and down. Nothing may be lost or doubled, and the link must stay the same.
func play(t *testing.T, plan peertest.Plan, requests int, hops uint32) (up, down int) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, plan)
		r.serve(peer.ServerConfig{Config: peer.Config{Handler: owner{frame: answer(t)}, Limits: patient()}})
		y := newRally(t, requests, hops)
		_, tap := r.transport()
		ledger, _ := r.dial(peer.ClientConfig{
			Config:    peer.Config{Handler: y.owner(), Limits: patient()},
			Transport: tap,
		})
		<-y.done
		up, down = r.net.Bytes()
		each := requests * int(hops) / 2
		if a, b := r.ledger.Handled(), ledger.Handled(); a != each || b != each {
			t.Errorf("handled %d and %d frames, want %d", a, b, each)
		}
		if a, b := r.ledger.Ups(), ledger.Ups(); a != 1 || b != 1 || len(r.ledger.Downs())+len(ledger.Downs()) > 0 {
			t.Errorf("links came up %d and %d times, went down: %v, %v", a, b, r.ledger.Downs(), ledger.Downs())
		}
		r.stop()
	})
	return up, down
}

// An exchange of 200 frames, one at a time, survives a cut at each of its
// frames in either direction.
func TestCutAtEveryFrame(t *testing.T) {
	const hops = 200
	up, down := play(t, peertest.Good, 1, hops)
	step := 1
	if testing.Short() {
		step = 10
	}
	for i := 1; i <= hops; i += step {
		// The odd offset makes cuts fall inside of frames as well as between them.
		cuts := map[string]peertest.Faults{
			"up":   {CutUp: max(1, up*i/hops-i%7)},
			"down": {CutDown: max(1, down*i/hops-i%5)},
		}
		for name, f := range cuts {
			play(t, peertest.Once(f), 1, hops)
			if t.Failed() {
				t.Fatalf("cut %s at %d, %+v", name, i, f)
			}
		}
	}
}

// Many requests survive whatever a seed brings, many times over.
func TestSeededFaults(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			play(t, peertest.Seeded(seed, 30, 3000), 16, 60)
		})
	}
}

// A link that is silent is found out by pings, and resumed.
func TestSilentConnection(t *testing.T) {
	play(t, peertest.Once(peertest.Faults{CutUp: 2000, Silent: true}), 1, 200)
	play(t, peertest.Once(peertest.Faults{CutDown: 2000, Silent: true}), 1, 200)
}

// The network plays the client's bytes again, on streams of their own, while
// the exchange goes on.
func TestDoubledConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(int) peertest.Faults { return peertest.Faults{Delay: time.Millisecond} })
		r.serve(peer.ServerConfig{Config: peer.Config{Handler: owner{frame: answer(t)}, Limits: patient()}})
		y := newRally(t, 4, 100)
		_, tap := r.transport()
		ledger, _ := r.dial(peer.ClientConfig{
			Config:    peer.Config{Handler: y.owner(), Limits: patient()},
			Transport: tap,
		})
		for i := range 10 {
			timer := time.NewTimer(7 * time.Millisecond)
			<-timer.C
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
			_ = tap.Replay(ctx, i, url+peer.Path)
			cancel()
		}
		<-y.done
		if r.net.Dialed() == 0 || ledger.Handled() != 200 || r.ledger.Handled() != 200 {
			t.Errorf("handled %d and %d", ledger.Handled(), r.ledger.Handled())
		}
		if n := len(r.ledger.Downs()) + len(ledger.Downs()); n > 0 {
			t.Errorf("a replayed stream ended the link: %v %v", r.ledger.Downs(), ledger.Downs())
		}
		r.stop()
	})
}

// A server that has forgotten the session voids the resume: the client's owner
// hears ErrSessionLost, then gets a new link.
func TestServerForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, peertest.Good)
		stop := r.serve(peer.ServerConfig{Config: peer.Config{Handler: owner{}, Limits: patient()}})
		ups := make(chan *peer.Link, 10)
		_, tap := r.transport()
		ledger, _ := r.dial(peer.ClientConfig{
			Config:    peer.Config{Handler: owner{up: func(l *peer.Link) { ups <- l }}, Limits: patient()},
			Transport: tap,
		})
		first := <-ups
		// A server that dies says no goodbye: another takes its place, and the
		// client's connection breaks.
		r.serve(peer.ServerConfig{Config: peer.Config{Handler: owner{frame: answer(t)}, Limits: patient()}})
		r.net.CutAll()
		second := <-ups
		if first == second {
			t.Error("the link is the same")
		}
		if err := first.Send(hop(1, 1)); !errors.Is(err, peer.ErrLinkDown) {
			t.Errorf("send on the old link: %v", err)
		}
		if err := second.Send(hop(1, 1)); err != nil {
			t.Error(err)
		}
		if d := ledger.Downs(); len(d) != 1 || !errors.Is(d[0], peer.ErrSessionLost) {
			t.Errorf("downs: %v", d)
		}
		synctest.Wait()
		if ledger.Handled() != 1 {
			t.Error("no answer on the new link")
		}
		stop()
		r.stop()
	})
}

// A client that comes back with another session voids the old link.
func TestClientForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, peertest.Good)
		r.serve(peer.ServerConfig{Config: peer.Config{Handler: owner{}, Limits: patient()}})
		tr, _ := r.transport()
		a := r.raw(tr)
		a.send(helloFrame("small-0", 11, 10))
		a.next()
		b := r.raw(tr)
		b.send(helloFrame("small-0", 22, 10))
		if f := b.next(); f.Kind != handoff.KindHello {
			t.Errorf("got a %s", f.Kind)
		}
		synctest.Wait()
		if d := r.ledger.Downs(); len(d) != 1 || !errors.Is(d[0], peer.ErrSessionLost) || r.ledger.Ups() != 2 {
			t.Errorf("ups %d, downs: %v", r.ledger.Ups(), d)
		}
		a.close()
		b.close()
		r.stop()
	})
}

// Both sides give up a link that is not resumed in time.
func TestPeerLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := peer.Limits{ResumeFor: time.Second}
		refuse := func(n int) peertest.Faults {
			if n == 0 {
				return peertest.Faults{CutDown: 900}
			}
			return peertest.Faults{Refuse: true}
		}
		r := newRig(t, refuse)
		r.serve(peer.ServerConfig{Config: peer.Config{Handler: owner{frame: answer(t)}, Limits: limits}})
		y := newRally(t, 1, 1000)
		_, tap := r.transport()
		start := time.Now()
		down := make(chan error, 1)
		o := y.owner()
		o.down = func(_ *peer.Link, err error) { down <- err }
		o.frame = func(l *peer.Link, f *handoff.Frame) {
			// The server keeps queueing after the cut; that is fine.
			_ = l.Send(hop(f.Request, f.Hop+1))
		}
		r.dial(peer.ClientConfig{Config: peer.Config{Handler: o, Limits: limits}, Transport: tap})
		err := <-down
		if d := time.Since(start); !errors.Is(err, peer.ErrPeerLost) || d < limits.ResumeFor || d > 2*limits.ResumeFor {
			t.Errorf("down after %v: %v", d, err)
		}
		timer := time.NewTimer(limits.ResumeFor)
		<-timer.C
		synctest.Wait()
		if d := r.ledger.Downs(); len(d) != 1 || !errors.Is(d[0], peer.ErrPeerLost) {
			t.Errorf("server's downs: %v", d)
		}
		r.stop()
	})
}

// Whichever side stops says so, and the other does not wait for a resume.
func TestClose(t *testing.T) {
	for _, who := range []string{"server", "client"} {
		t.Run(who, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, peertest.Good)
				stopServer := r.serve(peer.ServerConfig{Config: peer.Config{Handler: owner{}, Limits: patient()}})
				up := make(chan struct{}, 10)
				_, tap := r.transport()
				ledger, stopClient := r.dial(peer.ClientConfig{
					Config:    peer.Config{Handler: owner{up: func(*peer.Link) { up <- struct{}{} }}, Limits: patient()},
					Transport: tap,
				})
				<-up
				start := time.Now()
				if who == "server" {
					stopServer()
				} else {
					stopClient()
				}
				synctest.Wait()
				for side, l := range map[string]*peertest.Ledger{"server": r.ledger, "client": ledger} {
					if d := l.Downs(); len(d) != 1 || !errors.Is(d[0], peer.ErrClosed) {
						t.Errorf("%s: downs %v", side, d)
					}
				}
				if d := time.Since(start); d > 0 {
					t.Errorf("it took %v", d)
				}
				r.stop()
			})
		})
	}
}

// A handler that panics loses its link and nothing else.
func TestHandlerPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, peertest.Good)
		r.serve(peer.ServerConfig{Config: peer.Config{Handler: owner{frame: func(l *peer.Link, f *handoff.Frame) {
			if f.Request == 99 {
				panic("broken")
			}
			answer(t)(l, f)
		}}}})
		tr, tap := r.transport()
		w := r.raw(tr)
		w.send(helloFrame("x", 1, 1), numbered(1, hop(99, 1)))
		synctest.Wait()
		if d := r.ledger.Downs(); len(d) != 1 || !errors.Is(d[0], peer.ErrClosed) {
			t.Errorf("downs: %v", d)
		}
		w.close()
		y := newRally(t, 2, 20)
		r.dial(peer.ClientConfig{Config: peer.Config{Handler: y.owner()}, Transport: tap})
		<-y.done
		r.stop()
	})
}

// A client that dials before the server runs has its link soon after.
func TestServerStartsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, peertest.Good)
		r.mux.set(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }))
		up := make(chan struct{})
		_, tap := r.transport()
		r.dial(peer.ClientConfig{Config: peer.Config{Handler: owner{up: func(*peer.Link) { close(up) }}}, Transport: tap})
		synctest.Wait()
		start := time.Now()
		r.serve(peer.ServerConfig{Config: peer.Config{Handler: owner{}}})
		<-up
		if d := time.Since(start); d > 20*time.Millisecond {
			t.Errorf("it took %v", d)
		}
		r.stop()
	})
}
