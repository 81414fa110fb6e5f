package control

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"github.com/sourcegraph/conc"

	"github.com/tokenrouter/tokenrouter/control/client"
)

// A node that is removed while it is cut off does not hear of that when it is back: by then
// the others refuse its certificate, before a word is said. So a node without a leader asks
// the others whether they take its certificate. When a majority of those that it knows has
// refused it again and again, it says so in its log, in its status and by its readiness.
//
// It says no more than it knows: a certificate is refused too because clocks differ, or
// because the others trust another CA. So it ends nothing, deletes nothing, and goes on
// asking; as soon as it is no longer refused, or hears of a leader, it is as before. Only a
// node that has just started, and serves nobody yet, ends.

// Refusal is that the other control nodes refuse this node's certificate.
type Refusal struct {
	// By are the nodes that do, sorted; they are the majority of the others.
	By []string
	// Since is when the first of them has refused, as far as this node knows.
	Since time.Time
}

// Refused returns why the node is not welcome in its cluster; nil if it is, or if that is not
// known. A node that is refused has no leader, or has heard of one just now.
func (n *Node) Refused() *Refusal { return n.refusal.Load() }

// minRefusals is how often a node must have refused to count.
const minRefusals = 5

// refusals are what other nodes have said of this node's certificate since they last took it.
type refusals map[string]refusedRun

// refusedRun is the refusals of one node.
type refusedRun struct {
	first, last time.Time
	times       int
}

// note takes a node's answer: nil, ErrCertificate, or none.
func (r refusals) note(now time.Time, node string, err error) {
	switch {
	case err == nil:
		delete(r, node)
	case errors.Is(err, client.ErrCertificate):
		run := r[node]
		if run.times == 0 {
			run.first = now
		}
		run.last = now
		run.times++
		r[node] = run
	}
}

// by are those of the nodes that have refused for a time, and since when.
func (r refusals) by(nodes []string, long time.Duration) (by []string, since time.Time) {
	for _, node := range nodes {
		run := r[node]
		if run.times < minRefusals || run.last.Sub(run.first) < long {
			continue
		}
		by = append(by, node)
		if since.IsZero() || run.first.Before(since) {
			since = run.first
		}
	}
	slices.Sort(by)
	return by, since
}

// others are the members of the consensus but this node, as it knows them.
func (n *Node) others(r *raft.Raft) (nodes []string) {
	for _, server := range n.servers(r) {
		if id := string(server.ID); id != n.cfg.Self.ID {
			nodes = append(nodes, id)
		}
	}
	return nodes
}

// stranger says that this node knows no other member of the consensus, as one that was not
// taken in yet.
func (n *Node) stranger() bool {
	r := n.raft.Load()
	return r == nil || len(n.others(r)) == 0
}

// watchRefusals keeps what Refused says right until ctx ends.
func (n *Node) watchRefusals(ctx context.Context, r *raft.Raft) error {
	every := max(n.cfg.RefusedAfter/10, time.Millisecond)
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	seen, lost := refusals{}, time.Now() // since when there is no leader
	var few []string                     // those that refused and were no majority, as was logged last
	led := 0                             // how often in a row there was one
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		leader, _ := n.Leader()
		if leader != "" {
			if led++; led == 1 && n.Refused() != nil {
				continue // what a leader of before the removal has sent may arrive now
			}
			clear(seen)
			lost, few = time.Now(), nil
			n.refusedBy(nil, nil, time.Time{})
			continue
		}
		led = 0
		if time.Since(lost) < 2*every {
			continue // an election
		}
		others := n.others(r)
		for node, err := range n.probe(ctx, others) {
			seen.note(time.Now(), node, err)
		}
		by, since := seen.by(others, n.cfg.RefusedAfter)
		n.refusedBy(others, by, since)
		if n.Refused() == nil && len(by) > 0 && !slices.Equal(by, few) {
			few = by
			n.log.Warn("control nodes refuse this node's certificate, but not the majority of them", "by", strings.Join(by, ","), "of", strings.Join(others, ","), "since", since)
		}
	}
}

// probeWithin bounds the wait for an answer.
const probeWithin = time.Second

// probe asks nodes at the same time whether they take this node's certificate.
func (n *Node) probe(ctx context.Context, nodes []string) map[string]error {
	ctx, cancel := context.WithTimeout(ctx, probeWithin)
	defer cancel()
	var mu sync.Mutex
	out := map[string]error{}
	var asked conc.WaitGroup
	for _, node := range nodes {
		addr, ok := n.book.find(node)
		if !ok {
			continue
		}
		asked.Go(func() {
			err := n.peers.Probe(ctx, node, addr)
			if err != nil {
				n.log.Debug("this node's certificate is not taken", "peer", node, "err", err)
			}
			mu.Lock()
			defer mu.Unlock()
			out[node] = err
		})
	}
	asked.Wait()
	return out
}

// refusedBy notes which of the others refuse this node, and logs what is new first.
func (n *Node) refusedBy(others, by []string, since time.Time) {
	before := n.refusal.Load()
	switch majority := 2*len(by) > len(others); {
	case majority && before != nil && slices.Equal(before.By, by):
	case majority:
		if before == nil {
			n.log.Error("the other control nodes refuse this node's certificate, and it has no leader. "+
				"If `trctl cluster status` at one of them does not list this node, it was removed: stop it, empty its directory, join again with a new token. "+
				"Else the clocks differ, or the others trust another CA",
				"by", strings.Join(by, ","), "of", strings.Join(others, ","), "since", since)
		}
		n.refusal.Store(&Refusal{By: by, Since: since})
	case before != nil:
		n.log.Info("the other control nodes do not refuse this node any more", "were", strings.Join(before.By, ","))
		n.refusal.Store(nil)
	}
}
