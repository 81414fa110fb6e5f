package workernode

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/state"
)

// Times of tellFaults and lastWords.
const (
	minFaultPause, maxFaultPause = 50 * time.Millisecond, 5 * time.Second
	// lastWordsWithin bounds how long the end of a node is put off until the cluster knows of
	// its faults.
	lastWordsWithin = time.Second
)

// tellFaults tells the cluster of faults after which a GPU must not be used, until ctx ends.
// One that the cluster does not take holds for this process all the same, and for those after
// it until the cluster has taken it.
func (n *Node) tellFaults(ctx context.Context) error {
	warned := map[string]bool{}
	for pause := minFaultPause; ; {
		n.keepFaults()
		failed, wait := false, time.Duration(0)
		for _, p := range n.unreported() {
			err := n.tellFault(ctx, &p)
			if p.held {
				wait = minFaultPause // however many faults a GPU in quarantine has
			}
			if err == nil {
				poke(n.ward.found)
				continue
			}
			failed = true
			lasting := errors.Is(err, client.ErrVersion) || errors.Is(err, client.ErrForbidden) || errors.Is(err, state.ErrInvalid)
			if lasting && !warned[p.GPU] {
				warned[p.GPU] = true
				n.cfg.Log.Warn("the cluster keeps no quarantine of a GPU; this process does not use it all the same", "uuid", p.GPU, "reason", p.Why(), "err", err)
			} else if ctx.Err() == nil {
				n.cfg.Log.Debug("fault of a GPU not reported", "uuid", p.GPU, "err", err)
			}
		}
		n.keepFaults()
		var again <-chan time.Time
		if failed {
			again = time.After(pause)
			pause = min(2*pause, maxFaultPause)
		} else {
			pause = minFaultPause
		}
		if wait > 0 && !sleep(ctx, wait) {
			return context.Cause(ctx)
		}
		select {
		case <-again:
		case <-n.ward.unreported:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// unreported are the faults that the cluster does not know of, or may not know of.
func (n *Node) unreported() (out []pendingFault) {
	n.ward.mu.Lock()
	defer n.ward.mu.Unlock()
	for _, gpu := range slices.Sorted(maps.Keys(n.ward.pending)) {
		if p := n.ward.pending[gpu]; p.index == 0 {
			out = append(out, *p)
		}
	}
	return out
}

// unknown are the faults of GPUs that are in no quarantine, as far as is known here.
func (n *Node) unknown() []pendingFault {
	return slices.DeleteFunc(n.unreported(), func(p pendingFault) bool { return p.held })
}

// tellFault tells the cluster of a fault. If the GPU is in quarantine, as far as is known here,
// it makes sure of that first: a command for each of many faults would fill the log.
func (n *Node) tellFault(ctx context.Context, p *pendingFault) error {
	index := uint64(0)
	if p.held {
		var err error
		if index, err = n.stillHeld(ctx, p.GPU); err != nil {
			return err
		}
	}
	if index == 0 {
		c, err := cluster.NewCommand(cluster.KindQuarantine, p.request, time.Now(), p.Quarantine)
		if err != nil {
			return err
		}
		if index, err = n.cluster.Propose(ctx, c); err != nil {
			return err
		}
	}
	n.ward.mu.Lock()
	defer n.ward.mu.Unlock()
	now := n.ward.pending[p.GPU]
	switch {
	case now == nil:
	case now.times == p.times:
		now.index = index
	default: // there were more meanwhile, perhaps after a release
		now.times, now.held = 1, true
		poke(n.ward.unreported)
	}
	return nil
}

// stillHeld returns the index of a state that has a GPU in quarantine and everything that was
// acknowledged before the call; 0 if it is in no quarantine any more.
func (n *Node) stillHeld(ctx context.Context, gpu string) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, reportSeen)
	defer cancel()
	index, err := n.cluster.Index(ctx)
	if err != nil {
		return 0, err
	}
	s, err := n.cluster.View().Wait(ctx, index)
	if err != nil {
		return 0, err
	}
	if _, held := s.QuarantineOf(n.name, gpu); !held {
		return 0, nil
	}
	return s.Index, nil
}

// lastWords tells the cluster, if that can be done soon, of faults that it does not know of yet:
// a fault is often what ends the process, and the next one would use the GPU again.
func (n *Node) lastWords(ctx context.Context) {
	defer n.keepFaults()
	ctx, cancel := context.WithTimeout(ctx, lastWordsWithin)
	defer cancel()
	for {
		left := n.unknown()
		for _, p := range left {
			_ = n.tellFault(ctx, &p) // what fails is left
		}
		if left = n.unknown(); len(left) == 0 {
			return
		}
		if !sleep(ctx, minFaultPause) {
			for _, p := range left {
				n.cfg.Log.Warn("the cluster does not know of a GPU's fault", "uuid", p.GPU, "reason", p.Why())
			}
			return
		}
	}
}
