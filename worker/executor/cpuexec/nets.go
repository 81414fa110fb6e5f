package cpuexec

import (
	"fmt"

	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/router"
	"github.com/tokenrouter/tokenrouter/worker/sampler"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// nets are the router nets and what scoring a block of the head needs.
type nets struct {
	scorers []*router.Scorer
	rows    []router.Row // [headBlock], of one net
	to      []*step.Out  // aligned with rows
	scores  []float32    // [headBlock]
	top     []float32    // [headBlock, MaxLogits]
	largest []step.TopEntry
	weights int64 // bytes
	memory  int64
}

// checkNets says whether nets can judge a model.
func checkNets(list []*router.Net, hidden, vocab int) error {
	if len(list) > executor.MaxNets {
		return fmt.Errorf("%w: Nets: expected at most %d, found %d", ErrConfig, executor.MaxNets, len(list))
	}
	for _, n := range list {
		if err := n.Check(hidden, vocab); err != nil {
			return fmt.Errorf("%w: router %s: %w", ErrConfig, n.Name, err)
		}
	}
	return nil
}

// attachNets makes the scorers. They multiply with the forward pass's kernels and team.
func (e *Executor) attachNets() {
	if len(e.cfg.Nets) == 0 {
		return
	}
	s := &e.nets
	s.rows, s.to = make([]router.Row, 0, headBlock), make([]*step.Out, 0, headBlock)
	s.scores, s.top = make([]float32, headBlock), make([]float32, headBlock*router.MaxLogits)
	s.largest = make([]step.TopEntry, 0, router.MaxLogits)
	mul := &netProducts{f: e.fwd}
	for _, n := range e.cfg.Nets {
		e.info.Nets = append(e.info.Nets, n.Name)
		s.weights += n.Bytes()
		e.fwd.makeRoom(headBlock * max(n.Width(), n.Inner()))
		scorer := n.NewScorer(embedding{&e.w.embed}, mul, headBlock)
		s.memory += scorer.Bytes()
		s.scorers = append(s.scorers, scorer)
	}
	e.info.Features |= step.FScore
}

// makeRoom lets matmul take inputs of so many floats.
func (f *forward) makeRoom(floats int) {
	if f.k.matmul8b != nil && len(f.packed) < floats {
		f.packed = make([]float32, floats)
	}
}

// embedding is the model's, as router.Embedding.
type embedding struct{ *matrix }

// Row implements router.Embedding.
func (e embedding) Row(dst []float32, id int) { e.row(dst, id) }

// netProducts is forward.matmul as router.Products.
type netProducts struct {
	f *forward
	w matrix
}

// Matmul implements router.Products.
func (p *netProducts) Matmul(y, x []float32, w *router.Matrix, n int) {
	p.w = matrix{rows: w.Rows, cols: w.Cols, f32: w.F32, bf16: w.BF16}
	p.f.matmul(y, x, &p.w, n)
}

// score fills the scores of a block of the head that has been sampled. e.hidden and
// e.logits have the block's vectors: the logits are raw again.
func (e *Executor) score(picks []pick, out []step.Out) {
	s, c, v := &e.nets, e.info.Hidden, e.cfg.Vocab
	for k, scorer := range s.scorers {
		s.rows, s.to = s.rows[:0], s.to[:0]
		for i := range picks {
			row, o := &e.flying.batch.Rows[picks[i].row], &out[i]
			if o.Given || o.Flags != 0 || row.Want&step.FScore == 0 || int(row.Net) != k {
				continue
			}
			top := s.top[i*router.MaxLogits:][:scorer.Net().Top()]
			s.largest = sampler.Largest(e.logits[i*v:(i+1)*v], len(top), s.largest[:0])
			for j := range top {
				top[j] = s.largest[j].Logit
			}
			s.rows = append(s.rows, router.Row{Hidden: e.hidden[i*c : (i+1)*c], Top: top, Token: o.Token})
			s.to = append(s.to, o)
		}
		if len(s.rows) == 0 {
			continue
		}
		scorer.Score(s.scores[:len(s.rows)], s.rows)
		for i, o := range s.to {
			o.Score = s.scores[i]
		}
	}
}
