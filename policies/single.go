package policies

// single keeps every token on the model it runs on. It serves models offered alone.
type single struct{ defaults }

func (p *single) Route(_ *Batch, r *Result, out []Decision) {
	for i := range r.Token {
		out[i] = Decision{To: p.self, Keep: true}
	}
}
