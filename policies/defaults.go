package policies

// defaults are the parts that most policies share: no features, nothing to add
// to a hand-off, and every request that arrives runs.
type defaults struct{ self ModelID }

func (defaults) Spec() Spec { return Spec{} }

func (defaults) Send(*Req, Decision, *Handoff) {}

func (d defaults) Receive(*Req, *Handoff) (Verdict, ModelID) { return Run, d.self }

// back is the decision of a one-token collaborator: keep the token and return
// the turn to the model that owns the request.
func back(q *Req) Decision { return Decision{To: q.Owner, Keep: true} }
