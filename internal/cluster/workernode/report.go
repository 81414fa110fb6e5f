package workernode

import (
	"context"
	"reflect"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/internal/cluster/link"
)

// follow gives the engine its part in every new state, until ctx ends.
func (n *Node) follow(ctx context.Context) error {
	var seen *state.State
	found := false
	for {
		changed := n.cluster.View().Changed()
		if s := n.cluster.View().State(); s.Index > 0 && (s != seen || found) {
			seen = s
			n.assign(s)
			n.wake()
		}
		found = false
		select {
		case <-changed:
		case <-n.ward.found:
			found = true
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// assign gives the engine its part in a state.
func (n *Node) assign(s *state.State) {
	n.ward.mu.Lock()
	defer n.ward.mu.Unlock()
	n.caughtUp(s)
	barred := n.bar(s)
	n.tellBarred(barred)
	a, refused := n.assignment(s)
	a.Barred = map[int]string{}
	for ordinal, q := range barred {
		a.Barred[ordinal] = q.Why()
	}
	n.refused.Store(&refused)
	n.engine.Assign(a)
}

// wake lets report look again.
func (n *Node) wake() {
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

// Times of report.
const (
	// reportPause is how long a report that failed waits.
	minReportPause, maxReportPause = 50 * time.Millisecond, time.Second
	// reportSeen bounds the wait for a report to be in the state.
	reportSeen = 2 * time.Second
)

// report tells the cluster of the replicas whenever it knows something else, until ctx ends.
func (n *Node) report(ctx context.Context) error {
	pause := minReportPause
	for {
		changed := n.cluster.View().Changed()
		if news := n.news(n.cluster.View().State()); len(news) > 0 {
			index, err := n.tell(ctx, news)
			if err == nil {
				pause = minReportPause
				n.awaitIndex(ctx, index)
				continue
			}
			if ctx.Err() == nil {
				n.cfg.Log.Debug("report not delivered", "err", err)
			}
			if !sleep(ctx, pause) {
				return context.Cause(ctx)
			}
			pause = min(2*pause, maxReportPause)
			continue
		}
		select {
		case <-n.changed:
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// reports are about all replicas of this process.
func (n *Node) reports() []cluster.ReplicaReport {
	list := n.engine.Reports()
	if refused := n.refused.Load(); refused != nil {
		list = append(list, *refused...)
	}
	return list
}

// news are the reports that a state does not have, as far as all control nodes can read
// them.
func (n *Node) news(s *state.State) (out []cluster.ReplicaReport) {
	spoken := s.Spoken().Newest
	for _, r := range n.reports() {
		r.Facts = r.Facts.Before(spoken)
		known, ok := s.Replica(r.ID)
		if !ok || known.Node != n.name || known.Generation != r.Generation {
			continue
		}
		if known.Phase != r.Phase || known.Reason != r.Reason || !reflect.DeepEqual(known.Facts, r.Facts) {
			out = append(out, r)
		}
	}
	return out
}

func (n *Node) tell(ctx context.Context, news []cluster.ReplicaReport) (uint64, error) {
	c, err := cluster.NewCommand(cluster.KindReport, link.NewRequest("report"), time.Now(), cluster.Report{Node: n.name, Replicas: news})
	if err != nil {
		return 0, err
	}
	return n.cluster.Propose(ctx, c)
}

// measure tells the leader what the replicas have measured, again and again, until ctx
// ends. What is lost is told again soon.
func (n *Node) measure(ctx context.Context) error {
	for sleep(ctx, cluster.MeasureEvery) {
		list := n.engine.Measures()
		if len(list) == 0 {
			continue
		}
		attempt, cancel := context.WithTimeout(ctx, cluster.MeasureEvery)
		err := n.cluster.Measure(attempt, cluster.Measures{Node: n.name, List: list})
		cancel()
		if err != nil && ctx.Err() == nil {
			n.cfg.Log.Debug("measures not delivered", "err", err)
		}
	}
	return context.Cause(ctx)
}

// awaitIndex waits, not for ever, until the View has a state.
func (n *Node) awaitIndex(ctx context.Context, index uint64) {
	ctx, cancel := context.WithTimeout(ctx, reportSeen)
	defer cancel()
	_, _ = n.cluster.View().Wait(ctx, index) // else it is told again
}

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
