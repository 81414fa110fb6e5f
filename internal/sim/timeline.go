package sim

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/tokenrouter/tokenrouter/policies"
)

// Panel is one run of a timeline.
type Panel struct {
	Title string
	// Models are the names of the lanes, by model.
	Models []string
	Result *Result
}

// Sizes of a timeline in pixels.
const (
	laneHeight, laneGap = 34, 6
	panelGap, titleHigh = 22, 22
	leftMargin, width   = 70, 900
	axisHigh            = 24
)

// colours are those of requests, in turn: light enough for black text.
var colours = [...]string{"#8ecae6", "#ffb703", "#95d5b2", "#e5989b", "#cdb4db", "#f4a261", "#a3b18a", "#dee2e6"}

// Timeline draws runs as the paper's Fig. 4 does: one panel a run, one lane a
// model, one box a step with the requests that took part, all on one time axis.
// Boxes are divided among the requests; r2.3 is token 3 of request 2.
func Timeline(panels []Panel) []byte {
	var end time.Duration
	for _, p := range panels {
		end = max(end, p.Result.Elapsed)
	}
	end = max(end, 1)
	x := func(t time.Duration) float64 { return leftMargin + float64(t)/float64(end)*(width-leftMargin-20) }
	var b bytes.Buffer
	height := axisHigh + 10
	for _, p := range panels {
		height += titleHigh + len(p.Models)*(laneHeight+laneGap) + panelGap
	}
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	drawAxis(&b, height-axisHigh-4, end, x) // below the boxes
	y := 6
	for _, p := range panels {
		y = drawPanel(&b, &p, y, x)
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// drawPanel draws one run below y and returns where the next one begins.
func drawPanel(b *bytes.Buffer, p *Panel, y int, x func(time.Duration) float64) int {
	fmt.Fprintf(b, `<text x="%d" y="%d" font-weight="bold">%s</text>`, leftMargin, y+15, escaped(p.Title))
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end">mean finish time %s s</text>`+"\n", width-20, y+15, strconv.FormatFloat(p.Result.MeanEnd().Seconds(), 'g', 4, 64))
	y += titleHigh
	top := func(k int) int { return y + k*(laneHeight+laneGap) }
	for k, name := range p.Models {
		fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end">%s</text>`, leftMargin-8, top(k)+laneHeight/2+4, escaped(name))
		fmt.Fprintf(b, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="#ced4da"/>`+"\n", leftMargin, top(k)+laneHeight, width-20, top(k)+laneHeight)
	}
	for i := range p.Result.Steps {
		drawStep(b, &p.Result.Steps[i], top(int(p.Result.Steps[i].Model)), x)
	}
	together := map[time.Duration]int{}
	for i, t := range p.Result.Ended {
		// A tick below the last lane says when a request has ended; those that end
		// together stand side by side.
		bottom, at := top(len(p.Models)-1)+laneHeight, x(t)-4*float64(together[t])
		together[t]++
		fmt.Fprintf(b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="%s" stroke-width="3"/>`+"\n", at, bottom, at, bottom+8, colours[i%len(colours)])
	}
	return top(len(p.Models)) + panelGap
}

// drawStep draws a step as a box, with a part for each request.
func drawStep(b *bytes.Buffer, s *Step, top int, x func(time.Duration) float64) {
	left, right := x(s.Start), x(s.End)
	part := float64(laneHeight) / float64(max(1, len(s.Rows)))
	rows := slices.Clone(s.Rows)
	slices.SortFunc(rows, func(a, b Row) int { return a.Request - b.Request })
	for i, r := range rows {
		at := float64(top) + part*float64(i)
		fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`, left, at, right-left, part, colours[r.Request%len(colours)])
		if right-left >= 16 && part >= 8 {
			size := min(11, part-1)
			fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="middle" font-size="%.1f">r%d.%d</text>`, (left+right)/2, at+part/2+size/2-1.5, size, r.Request+1, r.Position+1)
		}
	}
	fmt.Fprintf(b, `<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="none" stroke="#495057"/>`+"\n", left, top, right-left, laneHeight)
}

// drawAxis draws the time axis with about ten marks.
func drawAxis(b *bytes.Buffer, y int, end time.Duration, x func(time.Duration) float64) {
	mark := time.Duration(1)
	for _, m := range []time.Duration{1, 2, 5} {
		for scaled := m; scaled <= end; scaled *= 10 {
			if end/scaled <= 14 && (mark == 1 || scaled < mark) {
				mark = scaled
			}
		}
	}
	for t := time.Duration(0); t <= end; t += mark {
		unit := ""
		if t+mark > end {
			unit = " s"
		}
		fmt.Fprintf(b, `<line x1="%.1f" y1="0" x2="%.1f" y2="%d" stroke="#e9ecef" stroke-dasharray="2 3"/>`, x(t), x(t), y)
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle" fill="#495057">%s%s</text>`+"\n", x(t), y+12, seconds(t), unit)
	}
}

// seconds writes a time in seconds, with as many digits as it needs, at most four.
func seconds(t time.Duration) string {
	return strconv.FormatFloat(float64(t.Round(100*time.Microsecond))/float64(time.Second), 'f', -1, 64)
}

func escaped(s string) string {
	var b bytes.Buffer
	for _, r := range s {
		switch r {
		case '<':
			b.WriteString("&lt;")
		case '>':
			b.WriteString("&gt;")
		case '&':
			b.WriteString("&amp;")
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// ParsePaths reads paths of requests: letters, one a token, separated by commas.
// S is the first model, L the last one, M the second of three, a digit any model.
func ParsePaths(text string, models int) ([]Request, error) {
	var list []Request
	for part := range bytes.SplitSeq([]byte(text), []byte(",")) {
		var r Request
		for _, c := range bytes.TrimSpace(part) {
			k := int(c - '0')
			switch c {
			case 'S', 's':
				k = 0
			case 'L', 'l':
				k = models - 1
			case 'M', 'm':
				k = 1
			}
			if k < 0 || k >= models {
				return nil, fmt.Errorf("%w: path %q: %q is no model of %d", ErrConfig, part, c, models)
			}
			r.Path = append(r.Path, policies.ModelID(k))
		}
		if len(r.Path) == 0 {
			return nil, fmt.Errorf("%w: a path is empty", ErrConfig)
		}
		list = append(list, r)
	}
	return list, nil
}
