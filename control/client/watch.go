package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/sourcegraph/conc"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/state"
)

// Line is one line of a watch.
type Line struct {
	// Index is that of the state after this line; History its history.
	Index   uint64 `json:"index"`
	History string `json:"history,omitempty"`
	// Snapshot says that this line begins with everything: what was known before
	// counts no more.
	Snapshot bool `json:"snapshot,omitempty"`
	// Objects are the changes. More says that the next line goes on with them.
	Objects []state.Object `json:"objects,omitempty"`
	More    bool           `json:"more,omitempty"`
	// Leader is whom the control node takes for the leader; empty for none. A line
	// without changes says just that, once a second.
	Leader string `json:"leader,omitempty"`
	// Term is the leader's.
	Term uint64 `json:"term,omitempty"`
}

// Times and bounds of watches.
const (
	// BeatEvery is how often a watch has a line at least, if BeatParam asks for that. A
	// control node that does so says it by BeatHeader.
	BeatEvery  = 250 * time.Millisecond
	BeatParam  = "beat"
	BeatHeader = "Trctl-Watch-Beat"
	// SlowBeat is how often there is a line for who does not ask.
	SlowBeat = time.Second
	// leaderless is how long a control node may have no leader before another one is
	// asked.
	leaderless         = 3 * time.Second
	minPause, maxPause = 50 * time.Millisecond, time.Second
	// lasting is how long a watch goes well that was worth it: the next one need not wait.
	lasting = 5 * time.Second
	// MaxLine bounds a line, MaxPending the parts of one change, in bytes.
	MaxLine    = 4 << 20
	maxPending = cluster.MaxBackup
)

var (
	// errLeaderless ends a watch of a control node that is cut off from the others.
	errLeaderless = errors.New("the control node has no leader")
	// errSilent ends a watch that brings nothing.
	errSilent = errors.New("the control node was silent")
)

// Watch keeps the View up to date until ctx ends, from any control node. Without one
// the View stays as it is. It returns ctx's cause, or ErrRemoved.
func (c *Client) Watch(ctx context.Context) error {
	pause, turn := minPause, 0
	last := "" // is asked after all others: it was silent, or had no leader
	hear := newEar(time.Now())
	for {
		addrs := behind(c.Control(), last)
		err := fmt.Errorf("%w: no address of a control node is known", ErrNoLeader)
		began, since := c.View().State(), time.Now()
		addr := ""
		if len(addrs) > 0 {
			addr = addrs[turn%len(addrs)]
			if err = c.watch(ctx, hear, addr); err != nil && ctx.Err() == nil {
				c.failed(addr)
				c.cfg.Log.Debug("watch ended", "peer", addr, "err", err)
			}
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, ErrRemoved) {
			return err
		}
		turn++
		if c.View().State() != began || time.Since(since) > lasting {
			pause, turn = minPause, 0
		}
		if errors.Is(err, errLeaderless) || errors.Is(err, errSilent) {
			last, turn = addr, 0 // not the same one again
		}
		if !sleep(ctx, pause/2+rand.N(pause)) {
			return context.Cause(ctx)
		}
		pause = min(2*pause, maxPause)
	}
}

// behind puts one address after all others.
func behind(addrs []string, last string) []string {
	i := slices.Index(addrs, last)
	if i < 0 {
		return addrs
	}
	return append(slices.Delete(addrs, i, i+1), last)
}

// sleep returns false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// watch reads one stream to its end.
func (c *Client) watch(ctx context.Context, hear *ear, addr string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	hear.begin(time.Now())
	var listening conc.WaitGroup
	defer listening.Wait()
	defer cancel(nil)
	listening.Go(func() { hear.listen(ctx, cancel) })
	s := c.View().since()
	beat := strconv.FormatInt(BeatEvery.Milliseconds(), 10)
	query := url.Values{"since": {strconv.FormatUint(s.Index, 10)}, "history": {s.History}, BeatParam: {beat}}
	response, err := c.peers.Do(ctx, "", addr, http.MethodGet, cluster.PathWatch+"?"+query.Encode(), nil)
	if err != nil {
		if cause := context.Cause(ctx); errors.Is(cause, errSilent) {
			err = cause
		}
		return err
	}
	defer func() { _ = response.Body.Close() }()
	c.answered(addr)
	if response.Header.Get(BeatHeader) != beat {
		hear.expectSlow(time.Now())
	}
	lines := bufio.NewReaderSize(response.Body, 64<<10)
	follower := Follower{State: s}
	var lost time.Time // since when the control node has had no leader
	for {
		text, err := readLine(lines)
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			return err
		}
		hear.heard(time.Now())
		line, next, err := follower.Read(text)
		if err != nil {
			return err
		}
		if next != nil {
			if line.Leader == "" && setsBack(c.View().State(), next) {
				return fmt.Errorf("%w: its state %d is older than the known one", errLeaderless, next.Index)
			}
			c.View().Publish(next)
		}
		switch {
		case line.Leader != "":
			lost = time.Time{}
			c.View().Confirm(line.Leader, line.Term)
		case lost.IsZero():
			lost = time.Now()
		case time.Since(lost) > leaderless:
			return errLeaderless
		}
	}
}

// readLine reads up to a newline, MaxLine bytes at most.
func readLine(r *bufio.Reader) ([]byte, error) {
	var out []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(out)+len(part) > MaxLine {
			return nil, fmt.Errorf("%w: a line has more than %d bytes", ErrBadRequest, MaxLine)
		}
		out = append(out, part...)
		if err == nil {
			return out, nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF // a watch has no end
			}
			return nil, err
		}
	}
}

// Follower puts the lines of a watch together.
type Follower struct {
	// State is the newest one.
	State *state.State
	// pending are the objects of a change that is not complete, size their bytes.
	pending []state.Object
	size    int
	// snapshot says that they replace everything.
	snapshot bool
}

// Read takes a line and returns it, and the new state if the line has completed one.
func (f *Follower) Read(text []byte) (Line, *state.State, error) {
	var line Line
	if err := json.Unmarshal(text, &line); err != nil {
		return line, nil, fmt.Errorf("%w: a watch's line: %w", ErrBadRequest, err)
	}
	if f.size += len(text); f.size > maxPending {
		return line, nil, fmt.Errorf("%w: a change has more than %d bytes", ErrBadRequest, maxPending)
	}
	if line.Snapshot {
		f.pending, f.snapshot = nil, true
	}
	f.pending = append(f.pending, line.Objects...)
	if line.More {
		return line, nil, nil
	}
	objects, snapshot := f.pending, f.snapshot
	f.pending, f.size, f.snapshot = nil, 0, false
	from := f.State
	if snapshot {
		from = &state.State{History: line.History}
	}
	if !snapshot && len(objects) == 0 && line.Index == from.Index {
		return line, nil, nil
	}
	if line.History != from.History {
		return line, nil, fmt.Errorf("%w: the watch changed its history without a snapshot", ErrBadRequest)
	}
	next, err := state.Follow(from, objects, line.Index)
	if err != nil {
		return line, nil, err
	}
	f.State = next
	return line, next, nil
}
