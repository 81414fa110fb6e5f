package subservice

import (
	"slices"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/api/handoff"
	"github.com/tokenrouter/tokenrouter/worker/scheduler"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// echo is what the entry keeps for a request that wants its prompt back.
type echo struct {
	decoder Decoder
	// told is the number of prompt tokens reported so far.
	told int
}

// scored says that the prompt's tokens are reported with log-probabilities,
// which come from the prefill's steps.
func (q *sequence) scored() bool {
	return q.entry != nil && q.entry.echo != nil && q.params.Logprobs >= 0
}

// startEcho reports what needs no forward pass: the whole prompt, or its first
// token, which has no log-probability.
func (s *Subservice) startEcho(q *sequence) {
	if q.entry.echo == nil {
		return
	}
	n := q.q.PromptLen
	if q.scored() {
		n = 1
	}
	tokens := make([]generate.TokenEvent, 0, n)
	for _, id := range q.ids[:n] {
		tokens = append(tokens, s.promptToken(q, id))
	}
	s.tellPrompt(q, tokens)
}

func (s *Subservice) promptToken(q *sequence, id int32) generate.TokenEvent {
	t := generate.TokenEvent{ID: id, Text: q.entry.echo.decoder.Next(id)}
	if q.scored() {
		t.Bytes = s.words.TokenBytes(id)
	}
	return t
}

// promptBatch is how many tokens of a prompt one event brings: with every alternative
// they stay below generate.MaxEventBytes.
const promptBatch = 256

// tellPrompt sends the next tokens of the prompt.
func (s *Subservice) tellPrompt(q *sequence, tokens []generate.TokenEvent) {
	x := q.entry.echo
	if x.told+len(tokens) == q.q.PromptLen {
		tokens[len(tokens)-1].Text += x.decoder.Flush()
	}
	for part := range slices.Chunk(tokens, promptBatch) {
		s.push(q, generate.Event{Kind: generate.EventPrompt, Epoch: q.epoch, Base: int32(x.told), Tokens: part})
		x.told += len(part)
	}
}

// askPrompt asks the rows of a plan for the log-probabilities of prompt tokens
// that were not reported yet.
func (s *Subservice) askPrompt(plan *scheduler.Plan) {
	for i := range plan.Batch.Rows {
		q := s.seqs[uint64(plan.IDs[i])]
		row := &plan.Batch.Rows[i]
		first, last := int(row.Start)+1, min(int(row.Start)+len(row.Tokens)+1, q.q.PromptLen)
		if q.scored() && last > max(first, q.entry.echo.told) {
			row.Given, row.Logprobs = q.ids[first:last], q.params.Logprobs
		}
	}
}

// tellScored reports the prompt tokens that a step has scored. outs are the
// outputs of one row for given ids, in ascending position.
func (s *Subservice) tellScored(q *sequence, outs []step.Out) {
	var tokens []generate.TokenEvent
	for i := range outs {
		out := &outs[i]
		if int(out.Position) != q.entry.echo.told+len(tokens) {
			continue // reported before the sequence was rebuilt
		}
		t := s.promptToken(q, out.Token)
		s.addLogprob(&t, s.logprobOf(q, out))
		tokens = append(tokens, t)
	}
	if len(tokens) > 0 {
		s.tellPrompt(q, tokens)
	}
}

// logprobOf copies what a step says of one token.
func (s *Subservice) logprobOf(q *sequence, out *step.Out) *handoff.Logprob {
	lp := &handoff.Logprob{Logprob: out.Logprob}
	if q.params.Logprobs > 0 {
		for _, e := range out.Top[:min(int(q.params.Logprobs), len(out.Top))] {
			lp.Top = append(lp.Top, handoff.TopEntry{ID: e.ID, Logprob: e.Logprob})
		}
	}
	return lp
}
