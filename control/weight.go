package control

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tokenrouter/tokenrouter/control/state"
)

// whatToDelete is what operators can do about a state that has become too large.
const whatToDelete = "`trctl key delete --ended` deletes API keys that are revoked or expired, `trctl delete deployment NAME` a deployment"

const (
	// weighEvery is how often the state is weighed, if it has changed. To weigh it takes at
	// most a hundredth of the time.
	weighEvery = time.Minute
	// heavyPercent of the largest snapshot is worth a warning.
	heavyPercent = 80
)

// Weight is how large the state is as a snapshot, in bytes.
type Weight struct {
	// Bytes is the snapshot's size, Limit the largest that can be made: beyond it the log
	// grows, and a control node that is far behind cannot catch up.
	Bytes, Limit int
	// Kinds are the sizes of the kinds of objects before they are compressed.
	Kinds map[state.ObjectKind]int
}

// Weight is the newest, zero before the state was weighed.
func (n *Node) Weight() Weight {
	if w := n.weight.Load(); w != nil {
		return *w
	}
	return Weight{}
}

// weigh looks at the size of the state now and then until ctx ends, and warns before it is
// too large.
func (n *Node) weigh(ctx context.Context) error {
	var last uint64
	warned := time.Time{}
	for pause := time.Second; ; {
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
		began, s := time.Now(), n.State()
		if s.Index == last {
			continue
		}
		w, err := weightOf(s)
		if err != nil {
			n.log.Error("the state cannot be a snapshot", "err", err)
		} else {
			n.weight.Store(&w)
			if w.heavy() && began.Sub(warned) > time.Hour {
				warned = began
				n.log.Warn("the state nears the largest snapshot; beyond it no snapshot is made and the log grows",
					"bytes", w.Bytes, "limit", w.Limit, "largest", w.largest(), "do", whatToDelete)
			}
		}
		last, pause = s.Index, max(weighEvery, 100*time.Since(began))
	}
}

func weightOf(s *state.State) (Weight, error) {
	out, err := encodeSnapshot(s)
	if err != nil {
		return Weight{}, err
	}
	return Weight{Bytes: out.Len(), Limit: maxSnapshot, Kinds: s.Sizes()}, nil
}

func (w *Weight) heavy() bool { return 100*w.Bytes > heavyPercent*w.Limit }

// largest names the three kinds that take the most.
func (w *Weight) largest() string {
	kinds := slices.SortedFunc(maps.Keys(w.Kinds), func(a, b state.ObjectKind) int {
		return cmp.Or(cmp.Compare(w.Kinds[b], w.Kinds[a]), cmp.Compare(a, b))
	})
	var out []string
	for _, k := range kinds[:min(3, len(kinds))] {
		out = append(out, fmt.Sprintf("%s %d", k, w.Kinds[k]))
	}
	return strings.Join(out, ", ")
}
