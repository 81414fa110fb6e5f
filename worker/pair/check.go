package pair

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Kinds of differences.
const (
	KindFault      = "fault"      // a side cannot be served at all
	KindVocabulary = "vocabulary" // an id means another text
	KindEnd        = "end"        // an id ends answers on one side only
	KindSpecial    = "special"    // an id is a control token on one side only
	KindTemplate   = "template"   // the chat templates differ
	KindBegin      = "begin"      // prompts begin with other ids
	KindSplit      = "split"      // text is cut into ids by other rules
	KindContext    = "context"    // the contexts differ in length
)

// Difference is one thing in which two models differ.
type Difference struct {
	Kind string `json:"kind"`
	// Refuse says that the models cannot write one answer because of it.
	Refuse bool `json:"refuse"`
	// Mapped says that the map of ids explains it.
	Mapped bool   `json:"mapped,omitempty"`
	ID     *int32 `json:"id,omitempty"`
	Small  string `json:"small"`
	Large  string `json:"large"`
	Note   string `json:"note,omitempty"`
}

// Report is the outcome of Check. Its JSON names are stable.
type Report struct {
	Small string `json:"small"`
	Large string `json:"large"`
	// Compatible says that the models can write one answer as they are.
	Compatible bool `json:"compatible"`
	// CompatibleWithMap says that they could if ids were mapped as asked.
	CompatibleWithMap bool `json:"compatible_with_map"`
	// Map is from ids of the small model to those of the large one.
	Map         map[string]int32 `json:"map,omitempty"`
	Differences []Difference     `json:"differences"`
	// More counts the differing ids beyond those listed.
	More int `json:"more,omitempty"`
}

// maxListed bounds the ids that a report lists.
const maxListed = 24

// Map is from ids of the small model to ids of the large one that mean the same.
type Map map[int32]int32

// ParseMap reads pairs such as "<think>=<think>", "151648=151667" or
// "<｜User｜>=<|im_start|>": texts of added tokens, or ids.
func ParseMap(small, large *Side, pairs []string) (Map, error) {
	m := Map{}
	for _, p := range pairs {
		at := strings.LastIndex(p, "=")
		if at <= 0 || at == len(p)-1 {
			return nil, fmt.Errorf("map: expected SMALL=LARGE, found %q", p)
		}
		from, err := small.id(p[:at])
		if err != nil {
			return nil, err
		}
		to, err := large.id(p[at+1:])
		if err != nil {
			return nil, err
		}
		if old, ok := m[from]; ok && old != to {
			return nil, fmt.Errorf("map: id %d is mapped twice", from)
		}
		m[from] = to
	}
	return m, nil
}

// id finds a token by its number or its text.
func (s *Side) id(name string) (int32, error) {
	if s.tokenizer == nil {
		return 0, fmt.Errorf("map: %s has no tokenizer", s.Name)
	}
	if id, ok := s.tokenizer.AddedID(name); ok {
		return id, nil
	}
	n, err := strconv.ParseInt(name, 10, 32)
	if err != nil || n < 0 || int(n) >= s.tokenizer.Size() {
		return 0, fmt.Errorf("map: %s has no token %q", s.Name, name)
	}
	return int32(n), nil
}

// Check compares two models. mapped may be nil.
func Check(small, large *Side, mapped Map) *Report {
	r := &Report{Small: small.Name, Large: large.Name, Differences: []Difference{}}
	for _, s := range []*Side{small, large} {
		for _, f := range s.Faults {
			d := Difference{Kind: KindFault, Refuse: true, Small: f}
			if s == large {
				d.Small, d.Large = "", f
			}
			r.add(d)
		}
	}
	if small.tokenizer != nil && large.tokenizer != nil {
		r.vocabulary(small, large, mapped)
		r.ends(small, large, mapped)
		r.rules(small, large)
	}
	for from, to := range mapped {
		if r.Map == nil {
			r.Map = map[string]int32{}
		}
		r.Map[strconv.Itoa(int(from))] = to
	}
	r.Compatible, r.CompatibleWithMap = true, true
	for _, d := range r.Differences {
		r.Compatible = r.Compatible && !d.Refuse && !d.Mapped
		r.CompatibleWithMap = r.CompatibleWithMap && !d.Refuse
	}
	return r
}

func (r *Report) add(d Difference) { r.Differences = append(r.Differences, d) }

// vocabulary compares the text of every id.
func (r *Report) vocabulary(small, large *Side, mapped Map) {
	listed := 0
	for i := range max(small.Tokens, large.Tokens) {
		id := int32(i)
		a, b := small.tokenizer.TokenBytes(id), large.tokenizer.TokenBytes(id)
		if !bytes.Equal(a, b) {
			to, ok := mapped[id]
			// Nothing in place of a is worth telling only if the map leads nowhere.
			explained := ok && large.tokenizer.TokenBytes(to) != nil || a == nil && slices.Contains(slices.Collect(maps.Values(mapped)), id)
			if listed++; listed > maxListed && explained {
				continue
			}
			if listed > maxListed {
				r.More++
				r.refuseMore()
				continue
			}
			r.add(Difference{Kind: KindVocabulary, Refuse: !explained, Mapped: explained, ID: &id, Small: shown(a), Large: shown(b)})
			continue
		}
		if x, y := small.tokenizer.IsSpecial(id), large.tokenizer.IsSpecial(id); x != y {
			r.add(Difference{Kind: KindSpecial, Refuse: true, ID: &id, Small: fmt.Sprint("special: ", x), Large: fmt.Sprint("special: ", y), Note: shown(a)})
		}
	}
}

// refuseMore makes sure that ids which are not listed still refuse.
func (r *Report) refuseMore() {
	last := &r.Differences[len(r.Differences)-1]
	last.Refuse, last.Mapped = true, false
}

// ends compares the ids that end an answer.
func (r *Report) ends(small, large *Side, mapped Map) {
	ends := func(s *Side) []int32 {
		var ids []int32
		for _, t := range s.End {
			ids = append(ids, t.ID)
		}
		return ids
	}
	a, b := ends(small), ends(large)
	if slices.Equal(a, b) {
		return
	}
	var moved []int32
	for _, id := range a {
		if to, ok := mapped[id]; ok {
			id = to
		}
		moved = append(moved, id)
	}
	slices.Sort(moved)
	same := slices.Equal(moved, b)
	r.add(Difference{Kind: KindEnd, Refuse: !same, Mapped: same, Small: list(small.End), Large: list(large.End), Note: "ids that end an answer"})
}

// rules compares what makes a prompt, which is done once, by the small model's rules.
func (r *Report) rules(small, large *Side) {
	const note = "a prompt is made once, by the small model's"
	source := func(s *Side) string {
		if s.template == nil {
			return ""
		}
		return s.template.Source()
	}
	if a, b := source(small), source(large); a != b {
		r.add(Difference{Kind: KindTemplate, Small: fmt.Sprintf("%d bytes", len(a)), Large: fmt.Sprintf("%d bytes", len(b)), Note: firstDifference(a, b) + note})
	}
	if a, b := list(small.Begin), list(large.Begin); a != b {
		r.add(Difference{Kind: KindBegin, Small: a, Large: b, Note: note})
	}
	if small.Fingerprint != large.Fingerprint && !slices.ContainsFunc(r.Differences, func(d Difference) bool { return d.Kind == KindVocabulary || d.Kind == KindSpecial }) {
		r.add(Difference{Kind: KindSplit, Small: small.Fingerprint[:12], Large: large.Fingerprint[:12], Refuse: true, Note: "the ids are the same, but normalisation, split, merges or flags of added tokens are not"})
	}
	if small.Context != large.Context {
		r.add(Difference{Kind: KindContext, Small: fmt.Sprint(small.Context), Large: fmt.Sprint(large.Context), Note: "together they have the shorter one"})
	}
}

// firstDifference says in which line two templates part.
func firstDifference(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return fmt.Sprintf("from line %d on; ", i+1)
		}
	}
	return fmt.Sprintf("from line %d on; ", min(len(x), len(y))+1)
}

func list(tokens []Token) string {
	var out []string
	for _, t := range tokens {
		out = append(out, fmt.Sprintf("%d %q", t.ID, t.Text))
	}
	if out == nil {
		return "none"
	}
	return strings.Join(out, ", ")
}

func shown(token []byte) string {
	if token == nil {
		return "nothing"
	}
	if len(token) > 60 {
		return strconv.Quote(string(token[:60])) + "..."
	}
	return strconv.Quote(string(token))
}
