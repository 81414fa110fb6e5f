package pair

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tokenrouter/tokenrouter/worker/tokenizer"
	"github.com/tokenrouter/tokenrouter/worker/tokenizer/chat"
)

// Of is the side of a model that is open already. template may be nil.
func Of(name string, words *tokenizer.Tokenizer, template *chat.Template, eos []int32, context int) *Side {
	s := &Side{Description: Description{Name: name, End: []Token{}, Context: context}, tokenizer: words, template: template}
	s.words(eos)
	if template != nil {
		s.Template = len(template.Source())
	}
	return s
}

// Refusal says in lines why the models cannot write one answer together, with
// at most limit differences; empty if they can.
func (r *Report) Refusal(limit int) string {
	var lines []string
	refused := 0
	for _, d := range r.Differences {
		if !d.Refuse && !d.Mapped {
			continue
		}
		if refused++; refused <= limit {
			lines = append(lines, "  "+d.String())
		}
	}
	if refused == 0 {
		return ""
	}
	if more := refused - min(refused, limit) + r.More; more > 0 {
		lines = append(lines, fmt.Sprintf("  and %d more", more))
	}
	return strings.Join(lines, "\n")
}

// Notes are the differences of the given kinds that do not refuse.
func (r *Report) Notes(kinds ...string) []Difference {
	var out []Difference
	for _, d := range r.Differences {
		if !d.Refuse && !d.Mapped && slices.Contains(kinds, d.Kind) {
			out = append(out, d)
		}
	}
	return out
}

// String is the difference in one line.
func (d Difference) String() string {
	what := d.Kind
	if d.ID != nil {
		what = fmt.Sprintf("%s: id %d", d.Kind, *d.ID)
	}
	s := fmt.Sprintf("%s: %s and %s", what, d.Small, d.Large)
	if d.Note != "" {
		s += " (" + d.Note + ")"
	}
	return s
}
