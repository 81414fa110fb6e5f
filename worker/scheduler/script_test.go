package scheduler

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/tokenrouter/tokenrouter/worker/kv"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// bench is what a script drives: a scheduler and the sub-service's part.
type bench struct {
	t     *testing.T
	s     *Scheduler
	pool  *kv.Pool
	plans []*Plan // in flight, oldest first
	slots []step.Slot
}

func newBench(t *testing.T, cfg Config, pages, size int) *bench {
	t.Helper()
	pool, err := kv.NewPool(pages, size)
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(cfg, pool)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, s: s, pool: pool}
	for i := cfg.MaxSlots - 1; i >= 0; i-- {
		b.slots = append(b.slots, step.Slot(i))
	}
	return b
}

func (b *bench) bind(id ID) {
	b.t.Helper()
	slot := b.slots[len(b.slots)-1]
	b.slots = b.slots[:len(b.slots)-1]
	if err := b.s.Bind(id, slot); err != nil {
		b.t.Fatal(err)
	}
}

// admit admits and binds.
func (b *bench) admit(now time.Duration) []ID {
	ids := b.s.Admit(now)
	for _, id := range ids {
		b.bind(id)
	}
	return ids
}

func (b *bench) finish(id ID) error {
	slot, bound, err := b.s.Finish(id)
	if bound {
		b.slots = append(b.slots, slot)
	}
	return err
}

func (b *bench) next(now time.Duration) (*Plan, time.Duration, bool) {
	p, wake, ok := b.s.Next(now)
	if p != nil {
		b.plans = append(b.plans, p)
	}
	return p, wake, ok
}

// complete completes the oldest step in flight.
func (b *bench) complete(now, took time.Duration) *Plan {
	p := b.plans[0]
	b.plans = b.plans[1:]
	b.s.Complete(now, p, took)
	return p
}

// ids returns n ids that tell sequence and position apart.
func ids(id ID, from, n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(id)*1000 + int32(from+i)
	}
	return out
}

// TestScripts runs testdata/*.txt. Time is given in milliseconds as now=.
// Admission binds slots, lowest first. Every answer that changes something ends
// with the state, after the invariants were checked.
func TestScripts(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatalf("scripts %v: %v", paths, err)
	}
	for _, path := range paths {
		var b *bench
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "new" {
				b = newFromScript(t, d)
				return ""
			}
			var out strings.Builder
			if err := b.command(t, d, &out); err != nil {
				fmt.Fprintln(&out, err)
			}
			if err := b.s.Check(); err != nil {
				fmt.Fprintln(&out, err)
			}
			out.WriteString(b.state())
			return out.String()
		})
	}
}

func newFromScript(t *testing.T, d *datadriven.TestData) *bench {
	cfg := Config{MaxRows: 8, MaxTokens: 16, ChunkTokens: 8, MaxSlots: 8, MaxQueue: 8, Threshold: 1, Reserve: ReserveFull}
	pages, size, wait := 32, 4, 0
	d.MaybeScanArgs(t, "rows", &cfg.MaxRows)
	d.MaybeScanArgs(t, "tokens", &cfg.MaxTokens)
	d.MaybeScanArgs(t, "chunk", &cfg.ChunkTokens)
	d.MaybeScanArgs(t, "slots", &cfg.MaxSlots)
	d.MaybeScanArgs(t, "queue", &cfg.MaxQueue)
	d.MaybeScanArgs(t, "threshold", &cfg.Threshold)
	d.MaybeScanArgs(t, "wait", &wait)
	d.MaybeScanArgs(t, "pages", &pages)
	d.MaybeScanArgs(t, "size", &size)
	cfg.LongestWait = time.Duration(wait) * time.Millisecond
	return newBench(t, cfg, pages, size)
}

func (b *bench) command(t *testing.T, d *datadriven.TestData, out *strings.Builder) error {
	var now, id, n, maxLen, took, live, threshold, peer int
	for key, v := range map[string]*int{
		"now": &now, "id": &id, "n": &n, "max": &maxLen, "took": &took,
		"live": &live, "threshold": &threshold, "peer": &peer,
	} {
		d.MaybeScanArgs(t, key, v)
	}
	at := time.Duration(now) * time.Millisecond
	sid := ID(id)
	known := b.s.Known(sid)
	switch d.Cmd {
	case "submit":
		return b.s.Submit(at, sid, Spec{Tokens: ids(sid, 0, n), MaxLen: maxLen, Logprobs: -1})
	case "submit-parked":
		if err := b.s.SubmitParked(at, sid, Spec{Tokens: ids(sid, 0, n), MaxLen: maxLen, Logprobs: -1}); err != nil {
			return err
		}
		b.bind(sid)
	case "admit":
		fmt.Fprintf(out, "admitted %v\n", b.admit(at))
	case "next":
		p, wake, ok := b.next(at)
		out.WriteString(describe(p, wake, ok))
	case "complete":
		b.complete(at, time.Duration(took)*time.Millisecond)
	case "commit":
		return b.s.Commit(at, sid, ids(sid, known, n)...)
	case "append":
		return b.s.Append(at, sid, ids(sid, known, n))
	case "park":
		return b.s.Park(sid)
	case "truncate":
		return b.s.Truncate(sid, n)
	case "finish":
		return b.finish(sid)
	case "group":
		b.s.ObserveGroup(live, threshold)
		b.s.ObservePeerStep(time.Duration(peer) * time.Millisecond)
		fmt.Fprintf(out, "threshold %d, longest wait %s\n", b.s.Threshold(), b.s.LongestWait())
	default:
		d.Fatalf(t, "unknown command %q", d.Cmd)
	}
	return nil
}

func describe(p *Plan, wake time.Duration, ok bool) string {
	switch {
	case p == nil && ok:
		return fmt.Sprintf("wait until %s\n", wake)
	case p == nil:
		return "nothing can start\n"
	}
	var out strings.Builder
	fmt.Fprintf(&out, "step %d\n", p.Batch.Step)
	for _, c := range p.Truncations {
		fmt.Fprintf(&out, "  truncate slot %d to %d\n", c.Slot, c.Length)
	}
	for _, c := range p.Batch.Patches {
		fmt.Fprintf(&out, "  patch slot %d [%d]=%d\n", c.Slot, c.Index, c.Page)
	}
	for i, r := range p.Batch.Rows {
		fmt.Fprintf(&out, "  %s %d: slot %d from %d %v", p.Kinds[i], p.IDs[i], r.Slot, r.Start, r.Tokens)
		if r.Sample != 0 {
			out.WriteString(" sample")
		}
		out.WriteByte('\n')
	}
	return out.String()
}

// state prints every sequence and the pool in short form.
func (b *bench) state() string {
	var out strings.Builder
	var all []ID
	for id := range b.s.seqs {
		all = append(all, id)
	}
	slices.Sort(all)
	for _, id := range all {
		q := b.s.seqs[id]
		fmt.Fprintf(&out, "%d %s %d/%d", id, q.state, q.cached, len(q.ids))
		if q.ready {
			out.WriteString(" ready")
		}
		if q.flight != 0 {
			fmt.Fprintf(&out, " in step %d", q.flight)
		}
		out.WriteString("; ")
	}
	c := b.pool.Counts()
	fmt.Fprintf(&out, "pages %d free %d held %d quarantined %d promised\n", c.Free, c.Held, c.Quarantined, c.Reserved)
	return out.String()
}
