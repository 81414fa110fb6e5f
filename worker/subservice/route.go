package subservice

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tokenrouter/tokenrouter/api/generate"
	override "github.com/tokenrouter/tokenrouter/api/routing"
	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/scheduler"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// route is a policy of a deployment, with the sequences of the current step that
// it judges.
type route struct {
	dep     *deployment
	name    string // of the policy, for people; may be empty
	policy  policies.Policy
	spec    policies.Spec
	net     uint8 // the policy's router net, among the executor's
	rows    []*sequence
	outs    []*step.Out
	kinds   []policies.Kind
	batch   policies.Batch
	result  policies.Result
	tops    []policies.TopEntry // of all rows, behind result.Top
	choices []policies.Decision
	// panicked are the rows about which the policy panicked.
	panicked []bool
}

// newDeployment takes a deployment's policies, as far as the executor can serve
// them: the deployment's own must be among them.
func newDeployment(d Deployment, in *executor.Info) (*deployment, error) {
	dep := &deployment{Deployment: d, routing: routing{to: make([]float64, len(d.Models)), kept: make([]float64, len(d.Models))}}
	newRoute := func(name string, p policies.Policy) *route {
		return &route{dep: dep, name: name, policy: p, spec: p.Spec()}
	}
	dep.own, dep.alone = newRoute(d.PolicyName, d.Policy), newRoute(d.PolicyName, stay{d.Policy})
	if err := dep.own.check(in); err != nil {
		return nil, err
	}
	if d.Others == nil {
		return dep, nil
	}
	dep.others = map[string]*route{}
	for _, name := range slices.Sorted(maps.Keys(d.Others)) {
		if r := newRoute(name, d.Others[name]); r.check(in) == nil {
			dep.others[name] = r
		}
	}
	return dep, nil
}

// check reports what the executor lacks for the policy, and finds its router net.
func (r *route) check(in *executor.Info) error {
	offered := in.Features
	if want, _ := r.wants(); want&^offered != 0 {
		return fmt.Errorf("the policy needs features %b that the executor lacks", want&^offered)
	}
	// An executor that names no nets and offers scores has one for all names.
	if r.spec.Needs&policies.FeatureScore != 0 && len(in.Nets) > 0 {
		i := slices.Index(in.Nets, r.spec.Net)
		if i < 0 {
			return fmt.Errorf("the policy needs the router %q; the executor has %s", r.spec.Net, strings.Join(in.Nets, ", "))
		}
		r.net = uint8(i)
	}
	if r.spec.Mixes && offered&step.FMix == 0 {
		return fmt.Errorf("the policy mixes distributions, which this executor cannot do")
	}
	return nil
}

// via is the policy for a request; nil if it asks for one that it cannot have.
func (d *deployment) via(o *override.Override) *route {
	switch {
	case o.Empty():
		return d.own
	case d.others == nil:
		return nil
	case o.Policy == "":
		return d.own
	}
	if r := d.others[o.Policy]; r != nil {
		return r
	}
	return nil
}

// refuseOverride is the answer to a request whose wish a deployment cannot meet.
// Gateways refuse such requests before; this is for those that know less.
func refuseOverride(d *deployment) *generate.Error {
	if d.others == nil {
		return &generate.Error{Code: generate.CodeInvalid, Param: "trctl", Message: "the deployment does not allow requests to override its routing (allow_policy_override)"}
	}
	offered := slices.Sorted(maps.Keys(d.others))
	return &generate.Error{
		Code: generate.CodeInvalid, Param: "trctl.policy",
		Message: "this replica has no such policy, or lacks what it needs; besides the deployment's own it has " + strings.Join(offered, ", "),
	}
}

// wants are the outputs that the policy needs from every step.
func (r *route) wants() (step.Feature, int32) {
	var want step.Feature
	for _, f := range []struct {
		needs policies.Feature
		want  step.Feature
	}{
		{policies.FeatureEntropy, step.FEntropy},
		{policies.FeatureTopK, step.FTopK},
		{policies.FeatureHidden, step.FHidden},
		{policies.FeatureScore, step.FScore},
	} {
		if r.spec.Needs&f.needs != 0 {
			want |= f.want
		}
	}
	return want, int32(r.spec.TopK)
}

// add takes a sampled row of the current step.
func (r *route) add(q *sequence, out *step.Out, kind policies.Kind) {
	r.rows = append(r.rows, q)
	r.outs = append(r.outs, out)
	r.kinds = append(r.kinds, kind)
}

// reset forgets the rows.
func (r *route) reset() {
	clear(r.rows)
	r.rows, r.outs, r.kinds = r.rows[:0], r.outs[:0], r.kinds[:0]
}

// decide fills r.choices for r.rows. The error tells of rows that have none.
func (r *route) decide() error {
	b, x := &r.batch, &r.result
	b.Reqs = b.Reqs[:0]
	*x = policies.Result{
		Token: x.Token[:0], Entropy: x.Entropy[:0], Score: x.Score[:0], Margin: x.Margin[:0],
		Top: x.Top[:0], Hidden: x.Hidden[:0], Kind: r.kinds,
	}
	r.tops = r.tops[:0]
	for i, q := range r.rows {
		out := r.outs[i]
		b.Reqs = append(b.Reqs, &q.q)
		x.Token = append(x.Token, out.Token)
		x.Entropy = append(x.Entropy, out.Entropy)
		x.LogV = max(x.LogV, out.LogV) // 0 of a row whose logits are not finite
		x.Score = append(x.Score, out.Score)
		x.Margin = append(x.Margin, out.Margin)
		if r.spec.Needs&policies.FeatureTopK != 0 {
			from := len(r.tops)
			for _, e := range out.Top[:min(r.spec.TopK, len(out.Top))] {
				r.tops = append(r.tops, policies.TopEntry{ID: e.ID, Logit: e.Logit, Logprob: e.Logprob})
			}
			x.Top = append(x.Top, r.tops[from:len(r.tops):len(r.tops)])
		}
		if r.spec.Needs&policies.FeatureHidden != 0 {
			x.Hidden = append(x.Hidden, out.Hidden)
		}
		q.q.Mix = nil // it was mixed into this draw
	}
	if cap(r.choices) < len(r.rows) {
		r.choices = make([]policies.Decision, len(r.rows))
	}
	r.choices = r.choices[:len(r.rows)]
	clear(r.choices)
	return r.ask()
}

// mixIn gives the rows of a plan the distributions that their policies want mixed
// into the next draw.
func (s *Subservice) mixIn(plan *scheduler.Plan) {
	for i := range plan.Batch.Rows {
		q := s.seqs[uint64(plan.IDs[i])]
		if row := &plan.Batch.Rows[i]; q.q.Mix == nil || row.Sample == 0 || row.Continue {
			continue
		}
		m := &step.Mixture{Weight: q.q.Mix.Weight}
		if !(m.Weight >= 0 && m.Weight <= 1) {
			continue
		}
		for _, e := range q.q.Mix.Entries {
			if e.ID >= 0 && int(e.ID) < s.info.Vocab && e.Logprob <= 1 {
				m.Entries = append(m.Entries, step.TopEntry{ID: e.ID, Logit: e.Logit, Logprob: e.Logprob})
			}
		}
		plan.Batch.Rows[i].Mix = m
	}
}
