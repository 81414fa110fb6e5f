package policies

import (
	"cmp"
	"slices"

	"github.com/expr-lang/expr/vm"
)

// ruled routes by expressions that a deployment brings. The rule judges the entry
// model's candidates: true, or another model's name, drops the candidate and that
// model goes on (the next one, for true). The return rule judges the tokens of the
// other models, which are always kept: true, or the entry model's name, returns the
// turn. Without one they write one token each.
//
// A rule that fails while it runs, such as by a division by zero, or reads a feature
// that is no number, hands over (or returns): it does not know.
type ruled struct {
	defaults
	rule *rule // nil: one token, then back
	net  string
	// machine is reused; the instance is called by one goroutine.
	machine vm.VM
	row     ruleRow
}

func buildRule(_ *kind, set *Set, models int, s *Settings) error {
	entry, err := compileRule("rule", s.Rule, ruleScope{models: models, names: s.Models, net: s.Net, text: s.Text})
	if err != nil {
		return err
	}
	var other *rule
	if s.ReturnRule != "" {
		scope := ruleScope{models: models, names: s.Models, text: s.Text, other: true}
		if other, err = compileRule("return_rule", s.ReturnRule, scope); err != nil {
			return err
		}
	}
	net := s.Net
	if entry.needs&FeatureScore == 0 {
		net = ""
	}
	set.build = func(self ModelID) Policy {
		if self == Entry {
			return &ruled{defaults: defaults{self}, rule: entry, net: net}
		}
		return &ruled{defaults: defaults{self}, rule: other}
	}
	return nil
}

func (p *ruled) Spec() Spec {
	if p.rule == nil {
		return Spec{}
	}
	spec := Spec{Needs: p.rule.needs, Net: p.net}
	if spec.Needs&FeatureTopK != 0 {
		spec.TopK = 1
	}
	return spec
}

func (p *ruled) Route(b *Batch, r *Result, out []Decision) {
	for i, q := range b.Reqs {
		if p.rule == nil {
			out[i] = back(q)
			continue
		}
		p.row.fill(p.rule, q, r, i)
		to, known := p.rule.run(&p.machine, &p.row, p.self, q.Owner)
		switch {
		case p.self != Entry && known:
			out[i] = Decision{To: to, Keep: true}
		case p.self != Entry:
			out[i] = back(q)
		case known:
			out[i] = Decision{To: to, Keep: to == p.self}
		default:
			out[i] = Decision{To: 1, Keep: false}
		}
	}
}

// run evaluates the rule; known is false if that failed.
func (u *rule) run(machine *vm.VM, row *ruleRow, self, owner ModelID) (to ModelID, known bool) {
	if row.unknown(u) {
		return 0, false
	}
	v, err := machine.Run(u.program, row)
	if err != nil {
		return 0, false
	}
	switch v := v.(type) {
	case bool:
		switch {
		case !v:
			return self, true
		case self == Entry:
			return 1, true
		}
		return owner, true
	case string:
		k := slices.Index(u.names, v)
		return ModelID(max(k, 0)), k >= 0
	}
	return 0, false
}

// ruleRow is what expressions read. The tags are the names in the expressions.
type ruleRow struct {
	Entropy    float64 `expr:"entropy"`
	Nats       float64 `expr:"entropy_nats"`
	Margin     float64 `expr:"margin"`
	Top1       float64 `expr:"top1"`
	Score      float64 `expr:"score"`
	Position   int     `expr:"position"`
	PromptLen  int     `expr:"prompt_len"`
	SinceHop   int     `expr:"since_hop"`
	Phase      string  `expr:"phase"`
	LargeShare float64 `expr:"large_share"`
	Token      int     `expr:"token"`
	Text       string  `expr:"text"`
}

// fill sets the fields; those that take work only if the rule names them.
func (x *ruleRow) fill(u *rule, q *Req, r *Result, i int) {
	row := rowAt(q, r, i)
	*x = ruleRow{
		Entropy: row.Entropy, Nats: row.Nats, Margin: row.Margin, Top1: row.Top1, Score: row.Score,
		Position: row.Position, PromptLen: row.PromptLen, Token: int(row.Token),
	}
	if u.reads["since_hop"] {
		x.SinceHop = sinceHop(q)
	}
	if u.reads["large_share"] {
		x.LargeShare = largeShare(q)
	}
	if u.reads["phase"] {
		x.Phase = u.phase(q)
	}
	if u.reads["text"] && u.text != nil {
		x.Text = string(u.text.Bytes(row.Token))
	}
}

// unknown says that a feature which the rule names is no number. Comparisons with
// it are false whatever their sense.
func (x *ruleRow) unknown(u *rule) bool {
	for _, f := range []struct {
		name  string
		value float64
	}{{"entropy", x.Entropy}, {"entropy_nats", x.Nats}, {"margin", x.Margin}, {"top1", x.Top1}, {"score", x.Score}} {
		if f.value != f.value && u.reads[f.name] {
			return true
		}
	}
	return false
}

// marks is the last of <think> and </think> among the ids of an answer that were seen.
type marks struct {
	seen  int
	phase string // after it; empty if there was none
}

// phase is "think" after <think> and before </think>, which may stand in the prompt's
// end. It reads the ids that have been added.
func (u *rule) phase(q *Req) string {
	if u.text == nil {
		return phaseAnswer
	}
	m := &q.marks
	if m.seen > len(q.Out) {
		*m = marks{}
	}
	for ; m.seen < len(q.Out); m.seen++ {
		m.phase = cmp.Or(u.mark(q.Out[m.seen]), m.phase)
	}
	if m.phase != "" {
		return m.phase
	}
	for _, id := range slices.Backward(q.Prompt[max(0, len(q.Prompt)-promptTail):]) {
		if phase := u.mark(id); phase != "" {
			return phase
		}
	}
	return phaseAnswer
}

// mark is the phase that an id begins, empty for none.
func (u *rule) mark(id int32) string {
	switch id {
	case u.text.ThinkStart:
		return phaseThink
	case u.text.ThinkEnd:
		return phaseAnswer
	}
	return ""
}
