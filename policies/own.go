package policies

import "math"

// Row is one decision's inputs as rules of one's own see them. Fields whose feature
// was not asked for are zero.
type Row struct {
	// Token is the candidate: sampled, not yet committed.
	Token int32
	// Entropy is that of the raw softmax divided by ln V, in [0, 1]; Nats is it undivided.
	Entropy, Nats float64
	// Margin is the largest raw logit minus the second largest, Top1 the probability
	// of the likeliest id, Score the router network's output.
	Margin, Top1, Score float64
	// Position is the candidate's index in the answer, PromptLen the prompt's length.
	Position, PromptLen int
	// SinceHop is the number of tokens since the model last changed, or all of them.
	SinceHop int
	// LargeShare is the share of the answer that the entry model did not write.
	LargeShare float64
}

// rowAt fills a Row from what the step has brought.
func rowAt(q *Req, r *Result, i int) Row {
	row := Row{Token: r.Token[i], Position: len(q.Out), PromptLen: q.PromptLen}
	if i < len(r.Entropy) && r.LogV != 0 {
		row.Nats = float64(r.Entropy[i])
		row.Entropy = row.Nats / float64(r.LogV)
	}
	if i < len(r.Margin) {
		row.Margin = float64(r.Margin[i])
	}
	if i < len(r.Top) && len(r.Top[i]) > 0 {
		row.Top1 = math.Exp(float64(r.Top[i][0].Logprob))
	}
	if i < len(r.Score) {
		row.Score = float64(r.Score[i])
	}
	return row
}

// writers says who wrote an answer. It follows Req.Models, so that a decision does not
// read a long answer again.
type writers struct {
	seen, large, run int
}

// count reads the models that have been added. large is the number of tokens that the
// entry model did not write, run that of the tokens at the end that one model wrote.
func (q *Req) count() (large, run int) {
	w := &q.writers
	if w.seen > len(q.Models) {
		*w = writers{}
	}
	for ; w.seen < len(q.Models); w.seen++ {
		m := q.Models[w.seen]
		if m != Entry {
			w.large++
		}
		if w.seen > 0 && m != q.Models[w.seen-1] {
			w.run = 0
		}
		w.run++
	}
	return w.large, w.run
}

// sinceHop counts the tokens at the end of an answer that one model wrote.
func sinceHop(q *Req) int {
	_, run := q.count()
	return run
}

// large counts the tokens of an answer that the entry model did not write.
func large(q *Req) int {
	n, _ := q.count()
	return n
}

// largeShare is the share of an answer that the entry model did not write, 0 of none.
func largeShare(q *Req) float64 {
	if len(q.Out) == 0 {
		return 0
	}
	return float64(large(q)) / float64(len(q.Out))
}

// Binary makes a policy for two models of one question about the entry model's
// candidate: true drops it, and the other model writes one token in its place. It
// asks for the features in needs, or for the entropy if there are none. The
// function is called by one goroutine at a time for each replica.
func Binary(large func(Row) bool, needs ...Feature) func(self ModelID) Policy {
	spec := Spec{}
	for _, f := range needs {
		spec.Needs |= f
	}
	if len(needs) == 0 {
		spec.Needs = FeatureEntropy
	}
	if spec.Needs&FeatureTopK != 0 {
		spec.TopK = 1
	}
	return func(self ModelID) Policy { return &question{defaults{self}, spec, large} }
}

// question is the policy of Binary.
type question struct {
	defaults
	spec  Spec
	large func(Row) bool
}

func (p *question) Spec() Spec {
	if p.self != Entry {
		return Spec{}
	}
	return p.spec
}

func (p *question) Route(b *Batch, r *Result, out []Decision) {
	for i, q := range b.Reqs {
		if p.self != Entry {
			out[i] = back(q)
			continue
		}
		row := rowAt(q, r, i)
		row.SinceHop, row.LargeShare = sinceHop(q), largeShare(q)
		out[i] = keepOrDrop(!p.large(row))
	}
}
