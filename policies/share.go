package policies

// bounded keeps the share of tokens that the entry model does not write at or
// below the bound that a request may bring, in every beginning of its answer. It
// stands before any policy and does nothing to requests without a bound.
type bounded struct {
	Policy
	self ModelID
	// reserve is how many ids the policy may put behind one token of another model.
	reserve int
}

// injecting is a policy that puts ids into the text, so many at a time at most.
type injecting interface{ injects() int }

func newBounded(p Policy, self ModelID) *bounded {
	b := &bounded{Policy: p, self: self}
	if i, ok := p.(injecting); ok {
		b.reserve = i.injects()
	}
	return b
}

// rounding lets a share through that equals its bound but for the last bit.
const rounding = 1e-9

// allows says that one more token of another model, and what may be put behind it,
// keeps within bound, after n tokens of which large are of other models.
func (p *bounded) allows(bound float64, large, n int) bool {
	more := 1 + p.reserve
	return float64(large+more) <= bound*float64(n+more)+rounding
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
		case p.allows(*q.Override.MaxLargeShare, others, n):
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
		!p.allows(*q.Override.MaxLargeShare, large(q), len(q.Out)) {
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
