package policies

// bounded keeps the share of tokens that the entry model does not write at or
// below the bound that a request may bring, in every beginning of its answer. It
// stands before any policy and does nothing to requests without a bound.
type bounded struct {
	Policy
	self ModelID
}

// rounding lets a share through that equals its bound but for the last bit.
const rounding = 1e-9

// allows says that one more token of another model keeps within bound, after n
// tokens of which large are of other models.
func allows(bound float64, large, n int) bool {
	return float64(large+1) <= bound*float64(n+1)+rounding
}

// large counts the tokens of an answer that the entry model did not write.
func large(q *Req) int {
	n := 0
	for _, m := range q.Models {
		if m != Entry {
			n++
		}
	}
	return n
}

func (p *bounded) Route(b *Batch, r *Result, out []Decision) {
	p.Policy.Route(b, r, out)
	for i, q := range b.Reqs {
		d := &out[i]
		if q.Override == nil || q.Override.MaxLargeShare == nil || d.To == Entry {
			continue
		}
		n, others := len(q.Out), large(q)
		if d.Keep {
			n += 1 + len(d.Inject)
			if p.self != Entry {
				others += 1 + len(d.Inject)
			}
		}
		switch {
		case allows(*q.Override.MaxLargeShare, others, n):
		case p.self == Entry:
			*d = Decision{To: Entry, Keep: true, Inject: d.Inject}
		default:
			d.To, d.Blob = Entry, nil
		}
	}
}

func (p *bounded) Receive(q *Req, h *Handoff) (Verdict, ModelID) {
	verdict, to := p.Policy.Receive(q, h)
	if verdict == Bounce && to != Entry && p.self == Entry && q.Override != nil && q.Override.MaxLargeShare != nil &&
		!allows(*q.Override.MaxLargeShare, large(q), len(q.Out)) {
		return Run, p.self
	}
	return verdict, to
}

// threshold is what a request wants, or else what the deployment has.
func threshold(q *Req, own float64) float64 {
	if q.Override != nil && q.Override.Threshold != nil {
		return *q.Override.Threshold
	}
	return own
}
