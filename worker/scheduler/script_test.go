package scheduler

import (
	"errors"
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
	// preempted are those of the last command.
	preempted []Preemption
}

// free takes back the slots of preempted sequences.
func (b *bench) free(all []Preemption) {
	for _, p := range all {
		b.slots = append(b.slots, p.Slot)
	}
	b.preempted = append(b.preempted, all...)
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
	b.free(b.s.TakePreempted())
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
	b.free(b.s.TakePreempted())
	if p != nil {
		b.free(p.Preempted)
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

// TestScripts runs testdata/*.txt. Time is given in milliseconds as now=. Ids are
// those of sequence id=, or of like= so that prefixes are shared.
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
	d.MaybeScanArgs(t, "ahead", &cfg.AheadPages)
	if d.HasArg("lazy") {
		cfg.Reserve = ReserveLazy
	}
	cfg.LongestWait = time.Duration(wait) * time.Millisecond
	return newBench(t, cfg, pages, size)
}

func (b *bench) command(t *testing.T, d *datadriven.TestData, out *strings.Builder) error {
	var now, id, n, maxLen, took, live, threshold, peer, age, salt int
	for key, v := range map[string]*int{
		"now": &now, "id": &id, "n": &n, "max": &maxLen, "took": &took,
		"live": &live, "threshold": &threshold, "peer": &peer, "age": &age, "salt": &salt,
	} {
		d.MaybeScanArgs(t, key, v)
	}
	at := time.Duration(now) * time.Millisecond
	sid := ID(id)
	known := b.s.Known(sid)
	like := id
	d.MaybeScanArgs(t, "like", &like)
	fresh := ids(ID(like), known, n)
	spec := Spec{
		Tokens: fresh, MaxLen: maxLen, Logprobs: -1, Age: int64(age), Visit: d.HasArg("visit"),
		Cache: d.HasArg("cache"), Salt: [32]byte{byte(salt)},
	}
	switch d.Cmd {
	case "submit":
		return b.s.Submit(at, sid, spec)
	case "submit-away":
		return b.s.SubmitAway(at, sid, spec)
	case "submit-parked":
		if err := b.s.SubmitParked(at, sid, spec); err != nil {
			return err
		}
		b.bind(sid)
	case "admit":
		admitted := b.admit(at)
		b.describePreempted(out)
		fmt.Fprintf(out, "admitted %v\n", admitted)
		for _, id := range admitted {
			if hit := b.s.PrefixHit(id); hit > 0 {
				fmt.Fprintf(out, "  %d had %d in the cache at first\n", id, hit)
			}
		}
	case "next":
		p, wake, ok := b.next(at)
		b.describePreempted(out)
		out.WriteString(describe(p, wake, ok))
	case "distrust":
		b.s.Distrust()
	case "cache":
		c := b.pool.Counts()
		fmt.Fprintf(out, "queries %d, hits %d, indexed %d, evictions %d, allocs %d\n", c.Queries, c.Hits, c.Indexed, c.Evictions, c.Allocs)
	case "complete":
		if len(b.plans) == 0 {
			return errors.New("nothing is in flight")
		}
		b.complete(at, time.Duration(took)*time.Millisecond)
	case "commit":
		return b.s.Commit(at, sid, fresh...)
	case "append":
		return b.s.Append(at, sid, fresh)
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
	fmt.Fprintf(&out, "pages %d free %d held %d quarantined %d promised", c.Free, c.Held, c.Quarantined, c.Reserved)
	if c.Cached > 0 {
		fmt.Fprintf(&out, " %d cached", c.Cached)
	}
	out.WriteByte('\n')
	return out.String()
}

func (b *bench) describePreempted(out *strings.Builder) {
	for _, p := range b.preempted {
		fmt.Fprintf(out, "preempted %d: slot %d, %d cached, parked %t\n", p.ID, p.Slot, p.Cached, p.Parked)
	}
	b.preempted = nil
}
