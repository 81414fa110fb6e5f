package subservice

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/scheduler"
	"github.com/tokenrouter/tokenrouter/worker/step"
	"github.com/tokenrouter/tokenrouter/worker/tokenizer"
)

// instant is an executor whose steps take no time and write always the same token.
type instant struct {
	info  executor.Info
	free  []step.Slot
	batch *step.Batch
	steps executor.Ticket
}

func (e *instant) Info() executor.Info { return e.info }

func (e *instant) Open(executor.SeqConfig) (step.Slot, error) {
	s := e.free[len(e.free)-1]
	e.free = e.free[:len(e.free)-1]
	return s, nil
}

func (e *instant) Truncate(step.Slot, int) error { return nil }
func (e *instant) Close(s step.Slot)             { e.free = append(e.free, s) }
func (e *instant) Stats() executor.Stats         { return executor.Stats{} }
func (e *instant) Shutdown() error               { return nil }

func (e *instant) Launch(b *step.Batch) (executor.Ticket, error) {
	e.batch = b
	e.steps++
	return e.steps, nil
}

func (e *instant) Wait(_ context.Context, _ executor.Ticket, r *step.Result) error {
	r.Out = r.Out[:0]
	for i := range e.batch.Rows {
		row := &e.batch.Rows[i]
		r.Out = append(r.Out, step.Out{Row: int32(i), Position: row.Start + int32(len(row.Tokens)), Token: 100, Entropy: 0.1, LogV: 6})
	}
	return nil
}

// BenchmarkHostLoop is the decode loop's own work between two steps, for some rows
// under a policy that keeps them: what has arrived, the plan, the policy's decision,
// the tokens committed and told. The executor's part is not in it.
func BenchmarkHostLoop(b *testing.B) {
	for _, rows := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("rows=%d", rows), func(b *testing.B) { benchHostLoop(b, rows) })
	}
}

func benchHostLoop(b *testing.B, rows int) {
	const context = 1 << 20
	exec := &instant{info: executor.Info{
		Model: "m0", Vocab: testVocab, Hidden: 8, Layers: 1, PageSize: 64, Pages: 1 << 15, MaxSlots: rows, MaxTokens: 2048, MaxRows: rows,
		MaxContext: context, Depth: 1, Features: step.FEntropy | step.FTopK,
	}}
	for i := range rows {
		exec.free = append(exec.free, step.Slot(i))
	}
	never := 1.0
	set, err := policies.New("r-stitch", 2, policies.Settings{Threshold: &never})
	if err != nil {
		b.Fatal(err)
	}
	words, err := tokenizer.Load(os.DirFS("../../models/tiny-s"))
	if err != nil {
		b.Fatal(err)
	}
	s, err := New(Config{
		Replica: "m0-0", Model: "m0", Executor: exec, Tokenizer: words, StopIDs: []int32{testVocab - 1},
		Deployments: []Deployment{{Name: "pair", Models: []string{"m0", "m1"}, Policy: set.For(0), Replicas: [][]string{{"m0-0"}, {"m1-0"}}}},
		Scheduler:   scheduler.Config{MaxRows: rows, MaxTokens: 2048, ChunkTokens: 512, MaxSlots: rows, MaxQueue: 2 * rows}, Start: time.Now(),
		Lookahead: LookaheadOff, CollaboratorWait: time.Second, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		b.Fatal(err)
	}
	d := s.Drive(func() {})
	defer d.Stop()
	ended := 0
	each := int32(1 << 14)
	submit := func() {
		for i := range rows {
			req := request(uint64(ended+i+1), each)
			if err := d.Submit(req, func(e generate.Event) {
				if e.Kind == generate.EventFinish || e.Kind == generate.EventError {
					ended++
				}
			}); err != nil {
				b.Fatal(err)
			}
		}
	}
	submit()
	b.ReportAllocs()
	for b.Loop() {
		if ended == rows {
			b.StopTimer()
			ended = 0
			submit()
			b.StartTimer()
		}
		if plan, _, _, err := d.Begin(); err != nil || plan == nil {
			b.Fatal("no step is due: ", err)
		}
		if err := d.End(); err != nil {
			b.Fatal(err)
		}
		s.publish()
	}
}

// BenchmarkWatchdog is what the watchdog adds to each step of the decode loop.
func BenchmarkWatchdog(b *testing.B) {
	info := &executor.Info{Model: "m0"}
	for _, rows := range []int{1, 64} {
		b.Run(fmt.Sprintf("rows=%d", rows), func(b *testing.B) {
			w, batch := newWatchdog(info, patienceWith(info, 0), nil), &step.Batch{Rows: make([]step.Row, rows)}
			for i := range batch.Rows {
				batch.Rows[i] = step.Row{Start: int32(i), Tokens: []int32{1}}
			}
			b.ReportAllocs()
			for b.Loop() {
				w.begin(batch, 0)
				for _, call := range []string{"launch", "wait"} {
					w.enter(call)
					if err := w.leave(); err != nil {
						b.Fatal(err)
					}
				}
				w.ended(0, time.Millisecond, nil)
			}
		})
	}
}
