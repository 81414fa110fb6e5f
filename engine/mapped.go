package engine

import (
	"errors"
	"fmt"
	"slices"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/worker/subservice"
	"github.com/tokenrouter/tokenrouter/worker/tokenizer/idmap"
)

// Vocabulary is what is known of a model's vocabulary in other processes than its own.
type Vocabulary struct {
	Words *cluster.Words
	// Ends are the ids that end an answer.
	Ends []int32
}

// errUnheard says that the vocabulary of a model is not known yet.
var errUnheard = errors.New("its vocabulary is not known yet")

// checkMapped refuses what cannot be where models have different vocabularies: what knows
// ids of the entry model's, on every model.
func (d *Deployment) checkMapped() error {
	if len(d.SpecialMap) == 0 {
		return nil
	}
	bad := func(what string) error {
		return fmt.Errorf("special_map: not with %s, which knows the ids of one vocabulary", what)
	}
	switch {
	case d.Policy.Own != nil:
		return bad("a policy of one's own")
	case d.Policy.Mode == "compose":
		return bad("the mode compose")
	case d.Policy.Rule != "":
		return bad("the policy rule")
	case d.Policy.Name == "glimp-router":
		return bad("the policy glimp-router")
	}
	return nil
}

// side is a model of a deployment as maps are made from.
type side struct {
	name  string
	words idmap.Words // nil for a model without a tokenizer
	ends  []int32
}

// side is the model as maps are made from.
func (m *loaded) side() side {
	s := side{name: m.cfg.Name, ends: m.stopIDs}
	if m.tokenizer != nil {
		s.words = m.tokenizer
	}
	return s
}

func sides(group []*loaded) []side {
	var list []side
	for _, m := range group {
		list = append(list, m.side())
	}
	return list
}

// idMaps makes the maps of the models that have pairs, by index, and lists the entry's
// ids that some of them lacks.
func idMaps(d *Deployment, group []side) (maps []*idmap.Map, lacking []int32, err error) {
	maps = make([]*idmap.Map, len(group))
	if len(d.SpecialMap) == 0 {
		return maps, nil, nil
	}
	if err := d.checkMapped(); err != nil {
		return nil, nil, fmt.Errorf("deployment %s: %w", d.Name, err)
	}
	entry := &group[0]
	for name, pairs := range d.SpecialMap {
		i := slices.IndexFunc(group[1:], func(s side) bool { return s.name == name }) + 1
		switch {
		case i == 0:
			return nil, nil, fmt.Errorf("deployment %s: special_map: %s is not one of its models behind the entry model", d.Name, name)
		case entry.words == nil || group[i].words == nil:
			return nil, nil, fmt.Errorf("deployment %s: special_map: %s and %s need tokenizers", d.Name, entry.name, name)
		}
		from, err := idmap.Parse(entry.words, group[i].words, pairs)
		if err == nil {
			maps[i], err = idmap.New(idmap.Model{Words: entry.words, Ends: entry.ends}, idmap.Model{Words: group[i].words, Ends: group[i].ends}, from)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("deployment %s: special_map: %s: %w", d.Name, name, err)
		}
		lacking = append(lacking, maps[i].OnlyEntry()...)
	}
	slices.Sort(lacking)
	return maps, slices.Compact(lacking), nil
}

// summarize is what other processes need to know of the model's tokenizer for maps.
func (m *loaded) summarize() (*cluster.Words, error) {
	if m.tokenizer == nil {
		return nil, fmt.Errorf("special_map: %s has no tokenizer", m.cfg.Name)
	}
	s := idmap.Summarize(m.tokenizer)
	w := &cluster.Words{Plain: s.Plain, Size: s.Size}
	for _, a := range s.Added {
		t := cluster.AddedToken{ID: a.ID, Text: a.Text}
		if a.Shown != a.Text {
			t.Shown = a.Shown
		}
		w.Added = append(w.Added, t)
	}
	if err := w.Check(); err != nil {
		return nil, fmt.Errorf("special_map: %s: %w", m.cfg.Name, err)
	}
	return w, nil
}

// mapIDs gives a replica's part in a deployment the maps that its special map wants, from
// this model's tokenizer and what is known of the others'.
func (r *replica) mapIDs(g *Routing, d *subservice.Deployment) error {
	if len(g.SpecialMap) == 0 {
		return nil
	}
	if _, err := r.model.summary(); err != nil {
		return fmt.Errorf("deployment %s: %w", g.Name, err)
	}
	own := int(d.Self)
	group := make([]side, len(g.Models))
	for i, name := range g.Models {
		switch {
		case i == own:
			group[i] = r.model.side()
			continue
		case i > 0 && g.SpecialMap[name] == nil:
			continue // it has the entry model's vocabulary, which needs no map
		case i >= len(g.Vocabularies) || g.Vocabularies[i] == nil || g.Vocabularies[i].Words == nil:
			return fmt.Errorf("deployment %s: special_map: %s: %w", g.Name, name, errUnheard)
		}
		v := g.Vocabularies[i]
		s := idmap.Summary{Plain: v.Words.Plain, Size: v.Words.Size}
		for _, a := range v.Words.Added {
			t := idmap.Added{ID: a.ID, Text: a.Text, Shown: a.Shown}
			if t.Shown == "" {
				t.Shown = a.Text
			}
			s.Added = append(s.Added, t)
		}
		words, err := idmap.Remote(r.model.tokenizer, &s)
		if err != nil {
			return fmt.Errorf("deployment %s: special_map: %s and %s: %w", g.Name, r.model.cfg.Name, name, err)
		}
		group[i] = side{name: name, words: words, ends: v.Ends}
	}
	maps, lacking, err := idMaps(&g.Deployment, group)
	if err != nil {
		return err
	}
	d.IDs, d.Lacking = maps[own], entrys(own, lacking)
	return nil
}
