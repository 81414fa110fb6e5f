package cpuexec

import (
	"fmt"
	"math/bits"
	"time"

	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/executor/slots"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// Launch implements executor.Executor. It checks the batch and leaves the work
// to the step loop.
func (e *Executor) Launch(b *step.Batch) (executor.Ticket, error) {
	if err := e.usable(); err != nil {
		return 0, err
	}
	if e.flight != nil {
		return 0, fmt.Errorf("cpuexec: launch: step %d is in flight and the depth is 1", e.flight.batch.Step)
	}
	if err := e.seqs.Admit(b); err != nil {
		return 0, slots.Refused(b, err)
	}
	e.picks, e.counted = e.picks[:0], e.counted[:0]
	at := int32(0)
	for i := range b.Rows {
		e.plan(int32(i), &b.Rows[i], at)
		at += int32(len(b.Rows[i].Tokens))
	}
	e.fwd.gather(b, e.table)
	e.ticket++
	e.flying = flight{ticket: e.ticket, batch: b, started: time.Now()}
	e.flight = &e.flying
	e.steps.Add(1)
	e.tokens.Add(uint64(at))
	e.rows.Add(uint64(len(b.Rows)))
	e.launch <- struct{}{}
	return e.ticket, nil
}

// plan notes the outputs that row i wants and moves its slot on. at is the index of
// its first token in the step.
func (e *Executor) plan(i int32, r *step.Row, at int32) {
	sl, q := &e.slots[r.Slot], e.seqs.At(r.Slot)
	if c := sl.seq.Counts; c != nil {
		c.Truncate(int(q.Length))
		c.Push(r.Prefix...)
		e.counted = append(e.counted, counted{r, c})
	}
	n := int32(len(r.Tokens))
	q.Length, q.Sampled = r.Start+n, r.Sample&1 != 0
	for j, id := range r.Given {
		e.picks = append(e.picks, pick{row: i, token: at + int32(j), position: r.Start + int32(j) + 1, given: id, seq: sl.seq})
	}
	for mask := r.Sample; mask != 0; {
		bit := int32(bits.Len64(mask)) - 1 // the highest bit is the earliest position
		mask &^= 1 << bit
		e.picks = append(e.picks, pick{row: i, token: at + n - 1 - bit, position: r.Start + n - bit, given: -1, seq: sl.seq})
	}
}

// compute runs the step in flight on the step loop.
func (e *Executor) compute() {
	e.fwd.run()
	e.result.Out = growOut(e.result.Out, len(e.picks))
	for at := 0; at < len(e.picks); at += headBlock {
		n := min(headBlock, len(e.picks)-at)
		e.sample(e.picks[at:at+n], e.result.Out[at:at+n])
	}
	for _, c := range e.counted {
		c.push(c.row.Start + int32(len(c.row.Tokens)))
	}
}

// sample runs the output head over at most headBlock positions.
func (e *Executor) sample(picks []pick, out []step.Out) {
	c, v := e.info.Hidden, e.cfg.Vocab
	for i := range picks {
		e.fwd.sampled(e.hidden[i*c:(i+1)*c], int(picks[i].token))
	}
	e.fwd.matmul(e.logits, e.hidden, &e.w.head, len(picks))
	for i := range picks {
		p, o := &picks[i], &out[i]
		row := &e.flying.batch.Rows[p.row]
		o.Row, o.Position, o.Hidden = p.row, p.position, o.Hidden[:0]
		if p.given >= 0 {
			e.sampler.Score(e.logits[i*v:(i+1)*v], p.given, int(row.Logprobs), o)
			continue
		}
		if p.seq.Counts != nil {
			counted{row, p.seq.Counts}.push(p.position)
		}
		if row.Want&step.FHidden != 0 {
			o.Hidden = append(o.Hidden, e.hidden[i*c:(i+1)*c]...)
		}
		e.sampler.Next(e.logits[i*v:(i+1)*v], &p.seq.Sequence, row, o)
	}
	e.score(picks, out)
}

func (e *Executor) table(s step.Slot) []int32 { return e.seqs.At(s).Table }
