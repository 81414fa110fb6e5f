package fakeexec

import (
	"math"
	"time"

	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// Sampled is what a script says about one sampled position.
type Sampled struct {
	Token   int32
	Entropy float32 // nats
	Score   float32 // the router network's output
	Flags   step.Flags
}

// Script gives the token that follows ids, the ids at positions [0, len(ids)).
// It must depend on its arguments alone and must not keep or change ids.
type Script func(cfg executor.SeqConfig, ids []int32) Sampled

// Hashed returns the default script: tokens uniform in [0, vocab), entropy
// uniform in [0, ln vocab), score uniform in [0, 1), all from a hash of seed,
// model and ids.
func Hashed(vocab int) Script {
	logV := math.Log(float64(vocab))
	return func(cfg executor.SeqConfig, ids []int32) Sampled {
		h := mix(cfg.Sampling.Seed ^ uint64(cfg.Model)<<56)
		for _, id := range ids {
			h = mix(h ^ uint64(uint32(id)))
		}
		return Sampled{
			Token:   int32(h % uint64(vocab)),
			Entropy: float32(unit(mix(h+1)) * logV),
			Score:   float32(unit(mix(h + 2))),
		}
	}
}

// mix is the finaliser of the splitmix64 generator.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// unit maps the top 24 bits to [0, 1), so that float32 holds the result exactly.
func unit(x uint64) float64 { return float64(x>>40) / (1 << 24) }

// Roofline returns a step time of at least floor (the time to read the weights)
// that grows with the tokens once they cost more than that.
func Roofline(floor, perToken time.Duration) func(*step.Batch) time.Duration {
	return func(b *step.Batch) time.Duration {
		return max(floor, time.Duration(b.Tokens())*perToken)
	}
}

// The fake logits are a fixed shape around the sampled token: the id that comes
// r places after it, modulo the vocabulary, has logit topLogit/(1+r).
const topLogit = 10

func logit(rank int) float32 { return topLogit / float32(1+rank) }

// logSumExp returns ln Σ exp over the fake logits, the same for every token.
func logSumExp(vocab int) float64 {
	sum := 0.0
	for r := range vocab {
		sum += math.Exp(float64(logit(r)) - topLogit)
	}
	return topLogit + math.Log(sum)
}

// given fills the result of an id that the caller chose; s is what the script
// would have sampled.
func (e *Executor) given(row int32, r *step.Row, position int, id int32, s Sampled) step.Out {
	vocab := e.cfg.Info.Vocab
	rank := ((int(id)-int(s.Token))%vocab + vocab) % vocab
	o := step.Out{
		Row: row, Position: int32(position), Token: id, Given: true, Flags: s.Flags, Logprob: logit(rank) - e.lse,
	}
	o.Top = e.tops(s.Token, int(r.Logprobs))
	return o
}

// tops returns the n largest fake logits around a sampled token.
func (e *Executor) tops(token int32, n int) (top []step.TopEntry) {
	vocab := e.cfg.Info.Vocab
	for i := range min(n, vocab) {
		z := logit(i)
		top = append(top, step.TopEntry{ID: int32((int(token) + i) % vocab), Logit: z, Logprob: z - e.lse})
	}
	return top
}

// output fills one result from a sample. seed makes the hidden vector.
func (e *Executor) output(row int32, r *step.Row, position int, s Sampled, seed uint64) step.Out {
	o := step.Out{
		Row: row, Position: int32(position), Token: s.Token, Flags: s.Flags,
		LogV: e.logV, Margin: logit(0) - logit(min(1, e.cfg.Info.Vocab-1)),
	}
	if r.Want&step.FEntropy != 0 {
		o.Entropy = s.Entropy
	}
	if r.Want&step.FScore != 0 {
		o.Score = s.Score
	}
	tops := max(r.Logprobs, 0)
	if r.Want&step.FTopK != 0 {
		tops = max(tops, r.TopK)
	}
	if r.Logprobs >= 0 {
		o.Logprob = logit(0) - e.lse
	}
	vocab := e.cfg.Info.Vocab
	o.Top = e.tops(s.Token, int(tops))
	if r.Want&step.FHidden != 0 {
		o.Hidden = make([]float32, e.cfg.Info.Hidden)
		for i := range o.Hidden {
			o.Hidden[i] = float32(2*unit(mix(seed^uint64(position)<<32^uint64(i))) - 1)
		}
	}
	if r.Want&step.FLogits != 0 {
		o.Logits = make([]float32, vocab)
		for i := range vocab {
			o.Logits[(int(s.Token)+i)%vocab] = logit(i)
		}
	}
	return o
}
