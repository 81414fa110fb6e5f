package policies

// DefaultRequestThreshold is the normalised entropy of the first token from
// which request-level gives a request to the large model.
const DefaultRequestThreshold = 0.1

// requestLevel decides once: the whole answer is written by one model. The
// score is the normalised entropy of the entry model's distribution of the
// first token; from τ on the token is dropped and the large model writes it all.
// The decision of an earlier request with the same key (Req.Key, a conversation)
// is kept, as far as this replica remembers it.
//
// Source: query-level routing as in RouteLLM (arXiv:2406.18665), with a score
// that needs no trained scorer.
type requestLevel struct {
	defaults
	tau float64
	// sticky remembers decisions by key. Only the entry model's instance uses it.
	sticky *decisions
}

func (*requestLevel) Spec() Spec { return Spec{Needs: FeatureEntropy} }

func (p *requestLevel) Route(b *Batch, r *Result, out []Decision) {
	for i, q := range b.Reqs {
		out[i] = Decision{To: p.self, Keep: true}
		if p.self != Entry || len(q.Out) > 0 {
			continue
		}
		key := q.Key
		if q.Override != nil && q.Override.Threshold != nil {
			key = 0 // a threshold of its own decides anew, and for this request alone
		}
		to, known := p.sticky.get(key)
		if !known {
			if !(float64(r.Entropy[i])/float64(r.LogV) < threshold(q, p.tau)) {
				to = 1
			}
			p.sticky.put(key, to)
		}
		if to != Entry {
			out[i] = Decision{To: to, Keep: false}
		}
	}
}

// maxSticky bounds the conversations remembered by one instance.
const maxSticky = 4096

// decisions is a bounded memory of decisions by key; the oldest is forgotten
// first. Key 0 means no key and is never remembered.
type decisions struct {
	model map[uint64]ModelID
	order []uint64 // ring
	next  int
}

func newDecisions(size int) *decisions {
	return &decisions{model: make(map[uint64]ModelID), order: make([]uint64, 0, size)}
}

func (d *decisions) get(key uint64) (ModelID, bool) {
	m, known := d.model[key]
	return m, known
}

func (d *decisions) put(key uint64, m ModelID) {
	if key == 0 {
		return
	}
	if len(d.order) < cap(d.order) {
		d.order = append(d.order, key)
	} else {
		delete(d.model, d.order[d.next])
		d.order[d.next] = key
		d.next = (d.next + 1) % len(d.order)
	}
	d.model[key] = m
}
