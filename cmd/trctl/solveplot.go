package main

import (
	"bytes"
	"context"
	"fmt"
	"image/color"
	"os"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/tokenrouter/tokenrouter/policies/threshold"
)

const (
	// maxCurves bounds the cases in one picture, maxCurvePoints the settings of a case.
	maxCurves, maxCurvePoints = 12, 33
	plotWidth, plotHeight     = 6 * vg.Inch, 4 * vg.Inch
)

// curve is throughput against the slow model's threshold, the others as in the
// best setting.
type curve struct {
	name   string
	points plotter.XYs
	best   plotter.XYs // at most one
}

// curveOf evaluates the settings that a curve shows.
func curveOf(ctx context.Context, in *threshold.Input, r *solveReport, name string) (*curve, error) {
	system, err := in.System()
	if err != nil {
		return nil, err
	}
	slow := system.Slow()
	b := slices.Repeat([]int{1}, len(system.P))
	if r.Best != nil {
		b = slices.Clone(r.Best)
	}
	out := &curve{name: fmt.Sprintf("%s: n = %d", name, in.N)}
	marked := b[slow]
	stride := 1 + (in.N-1)/maxCurvePoints
	for v := 1; v <= in.N; v++ {
		if b[slow] = v; !system.Feasible(b) {
			break
		}
		if (v-1)%stride != 0 && v != marked {
			continue
		}
		e, err := threshold.Evaluate(ctx, system.Case, b)
		if err != nil {
			return nil, err
		}
		at := plotter.XY{X: float64(v), Y: 1000 * e.Theta / system.Tick}
		out.points = append(out.points, at)
		if v == marked && r.Best != nil {
			out.best = plotter.XYs{at}
		}
	}
	return out, nil
}

// writePlot draws the curves into an SVG file.
func writePlot(name string, curves []curve) error {
	p := plot.New()
	p.Title.Text = "Throughput by threshold"
	p.X.Label.Text = "threshold of the slow model"
	p.Y.Label.Text = "tokens/s"
	p.Legend.Top = true
	p.Add(plotter.NewGrid())
	for k, c := range curves {
		line, dots, err := plotter.NewLinePoints(c.points)
		if err != nil {
			return fmt.Errorf("plot %s: %w", c.name, err)
		}
		line.Color = hue(k)
		dots.Color, dots.Shape, dots.Radius = hue(k), draw.CircleGlyph{}, vg.Points(2)
		p.Add(line, dots)
		p.Legend.Add(c.name, line, dots)
		if c.best == nil {
			continue
		}
		best, err := plotter.NewScatter(c.best)
		if err != nil {
			return fmt.Errorf("plot %s: %w", c.name, err)
		}
		best.Color, best.Shape, best.Radius = hue(k), draw.RingGlyph{}, vg.Points(6)
		p.Add(best)
	}
	p.Y.Min = 0
	p.Y.Max *= 1.15 // room for the legend
	to, err := p.WriterTo(plotWidth, plotHeight, "svg")
	if err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	var text bytes.Buffer
	if _, err := to.WriteTo(&text); err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	if err := os.WriteFile(name, text.Bytes(), 0o644); err != nil {
		return &usageError{fmt.Errorf("write plot: %w", err)}
	}
	return nil
}

// hue gives curve k a colour that differs from its neighbours'; the set is that
// of Okabe and Ito, which colour-blind readers can tell apart.
func hue(k int) color.Color {
	set := []color.RGBA{
		{0, 114, 178, 255}, {213, 94, 0, 255}, {0, 158, 115, 255}, {204, 121, 167, 255},
		{230, 159, 0, 255}, {86, 180, 233, 255}, {0, 0, 0, 255},
	}
	return set[k%len(set)]
}
