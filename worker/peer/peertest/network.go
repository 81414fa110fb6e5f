package peertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/tokenrouter/tokenrouter/internal/memconn"
)

var (
	// ErrRefused is returned by Dial for a connection whose faults say so.
	ErrRefused = errors.New("peertest: connection refused")
	// ErrCut is returned by a connection that was cut.
	ErrCut = errors.New("peertest: connection cut")
)

// Faults are what goes wrong with one connection. The zero value is a good one.
type Faults struct {
	// Refuse makes Dial fail. Gone makes it fail as where no process listens.
	Refuse, Gone bool
	// CutUp and CutDown end the connection once so many bytes went from client to
	// server, or came back. 0 means never.
	CutUp, CutDown int
	// Silent makes a cut drop all further bytes and say nothing, as a lost route does.
	Silent bool
	// Delay is how long every read of the client waits.
	Delay time.Duration
}

// Plan gives the faults of the n-th connection, from 0.
type Plan func(n int) Faults

// Good is a network without faults.
func Good(int) Faults { return Faults{} }

// Once gives the first connection its faults and no other.
func Once(f Faults) Plan {
	return func(n int) Faults {
		if n == 0 {
			return f
		}
		return Faults{}
	}
}

// Seeded draws faults for the first connections; later ones are good. Cuts fall
// within the first span bytes.
func Seeded(seed uint64, connections, span int) Plan {
	return func(n int) Faults {
		if n >= connections {
			return Faults{}
		}
		r := rand.New(rand.NewPCG(seed, uint64(n)))
		var f Faults
		switch r.IntN(8) {
		case 0:
			f.Refuse = true
		case 1, 2, 3:
			f.CutUp = 1 + r.IntN(span)
		default:
			f.CutDown = 1 + r.IntN(span)
		}
		f.Silent = r.IntN(4) == 0
		if r.IntN(3) == 0 {
			f.Delay = time.Duration(r.IntN(3000)) * time.Microsecond
		}
		return f
	}
}

// Network is a listener inside the process and a way to dial it with faults.
type Network struct {
	listener *memconn.Listener
	plan     Plan

	mu       sync.Mutex
	dialed   int
	up, down int // bytes of all connections
	conns    []*conn
	silent   bool      // nothing passes any more
	held     time.Time // nothing passes before
}

// New returns a network with the plan's faults.
func New(plan Plan) *Network {
	return &Network{listener: memconn.Listen(), plan: plan}
}

// Listener is the server's side.
func (n *Network) Listener() net.Listener { return n.listener }

// Dialed is the number of connections asked for.
func (n *Network) Dialed() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dialed
}

// Bytes is the number of bytes sent up (from clients) and down.
func (n *Network) Bytes() (up, down int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.up, n.down
}

// Dial opens the next connection.
func (n *Network) Dial(ctx context.Context) (net.Conn, error) {
	n.mu.Lock()
	f := n.plan(n.dialed)
	n.dialed++
	silent := n.silent
	n.mu.Unlock()
	switch {
	case silent:
		<-ctx.Done()
		return nil, context.Cause(ctx)
	case f.Refuse:
		return nil, ErrRefused
	case f.Gone:
		return nil, fmt.Errorf("peertest: %w", syscall.ECONNREFUSED)
	}
	n.wait(ctx.Done())
	c, err := n.listener.Dial(ctx)
	if err != nil {
		return nil, err
	}
	fc := &conn{Conn: c, net: n, faults: f, closed: make(chan struct{})}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conns = append(n.conns, fc)
	return fc, nil
}

// CutAll cuts every connection there is.
func (n *Network) CutAll() {
	n.mu.Lock()
	conns := n.conns
	n.conns = nil
	n.mu.Unlock()
	for _, c := range conns {
		c.mu.Lock()
		c.cut = true
		c.mu.Unlock()
		_ = c.Close()
	}
}

// Silence drops everything from now on, on all connections, and says nothing: not even
// that one was closed. Dials take as long as they are given.
func (n *Network) Silence() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.silent = true
	for _, c := range n.conns {
		c.mu.Lock()
		c.cut, c.mute = true, true
		c.mu.Unlock()
	}
}

// Hold holds everything back for d.
func (n *Network) Hold(d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.held = time.Now().Add(d)
}

// wait waits until nothing is held back. It reports false if closed came first.
func (n *Network) wait(closed <-chan struct{}) bool {
	for {
		n.mu.Lock()
		d := time.Until(n.held)
		n.mu.Unlock()
		if d <= 0 {
			return true
		}
		timer := time.NewTimer(d)
		select {
		case <-timer.C:
		case <-closed:
			timer.Stop()
			return false
		}
	}
}

// conn is the client's end of a faulty connection. It keeps the addresses of
// the end inside, so it still counts as in-memory.
type conn struct {
	net.Conn
	net    *Network
	faults Faults
	once   sync.Once
	closed chan struct{} // by Close; ends a delay

	mu       sync.Mutex
	up, down int
	cut      bool
	mute     bool // cut without a word
}

func (c *conn) silent() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.faults.Silent || c.mute
}

// allow says how many of n more bytes pass in a direction, and whether the
// connection is cut after them.
func (c *conn) allow(n, limit int, count *int) (pass int, cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut {
		return 0, true
	}
	pass = n
	if limit > 0 && *count+n >= limit {
		pass, c.cut = limit-*count, true
	}
	*count += pass
	return pass, c.cut
}

// Write sends p, or the part of it before the cut.
func (c *conn) Write(p []byte) (int, error) {
	c.net.wait(c.closed)
	pass, cut := c.allow(len(p), c.faults.CutUp, &c.up)
	c.net.count(pass, 0)
	n, err := c.Conn.Write(p[:pass])
	if err != nil || !cut {
		return n, err
	}
	if c.silent() {
		return len(p), nil
	}
	_ = c.Close()
	return n, ErrCut
}

// Close closes both ends.
func (c *conn) Close() error {
	c.once.Do(func() { close(c.closed) })
	c.mu.Lock()
	mute := c.mute
	c.mu.Unlock()
	if mute {
		return c.Conn.SetDeadline(time.Unix(1, 0))
	}
	return c.Conn.Close()
}

func (c *conn) delay() {
	timer := time.NewTimer(c.faults.Delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.closed:
	}
}

// Read receives, until the cut.
func (c *conn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if !c.net.wait(c.closed) {
			return 0, net.ErrClosed
		}
		if c.faults.Delay > 0 && n > 0 {
			c.delay()
		}
		pass, cut := c.allow(n, c.faults.CutDown, &c.down)
		c.net.count(0, pass)
		switch {
		case !cut || pass > 0:
			if cut && !c.silent() {
				_ = c.Close()
			}
			return pass, err
		case !c.silent():
			_ = c.Close()
			return 0, ErrCut
		case err != nil:
			return 0, err
		}
		// Silent: what comes is thrown away.
	}
}

func (n *Network) count(up, down int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.up += up
	n.down += down
}
