package main

import (
	"fmt"
	"image/color"
	"strings"
	"time"

	"charm.land/lipgloss/v2"
)

// painter gives every model of a conversation its colour. The first model seen,
// as a rule the entry model, gets the calmest one.
type painter struct {
	palette []color.Color
	seen    []string
}

func newPainter() *painter {
	return &painter{palette: []color.Color{
		lipgloss.Color("75"),  // blue
		lipgloss.Color("208"), // orange
		lipgloss.Color("120"), // green
		lipgloss.Color("213"), // pink
		lipgloss.Color("226"), // yellow
	}}
}

// style is the style of a model; text that no model claims has none.
func (p *painter) style(model string) lipgloss.Style {
	plain := lipgloss.NewStyle().Inline(true).TabWidth(lipgloss.NoTabConversion)
	if model == "" {
		return plain
	}
	for i, name := range p.seen {
		if name == model {
			return plain.Foreground(p.palette[i%len(p.palette)])
		}
	}
	p.seen = append(p.seen, model)
	return plain.Foreground(p.palette[(len(p.seen)-1)%len(p.palette)])
}

// paint colours text that model wrote; thoughts are faint. Line ends stay as
// they are: a style would pad the lines to one width.
func (p *painter) paint(model, text string, thought bool) string {
	if text == "" {
		return ""
	}
	style := p.style(model).Faint(thought)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if line != "" {
			lines[i] = style.Render(line)
		}
	}
	return strings.Join(lines, "\n")
}

// summary says who wrote how much of an answer.
func (p *painter) summary(got *chatReport, wall time.Duration) string {
	if len(got.Models) == 0 {
		return "(the server does not say which model wrote which token)"
	}
	var parts []string
	all := 0
	for _, model := range got.Models {
		n := got.Tokens[model]
		all += n
		parts = append(parts, fmt.Sprintf("%s %d", p.paint(model, model, false), n))
	}
	line := fmt.Sprintf("tokens: %s; %.0f tokens/s", strings.Join(parts, ", "), float64(all)/wall.Seconds())
	if len(got.Models) > 1 {
		line += fmt.Sprintf("; large share %.1f %%; policy %s", 100*got.LargeShare, got.Policy)
	}
	return line
}
