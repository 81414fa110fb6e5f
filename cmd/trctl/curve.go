package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/tokenrouter/tokenrouter/api/routing"
	"github.com/tokenrouter/tokenrouter/internal/node"
)

// curvePoint is one measured threshold of one policy; its JSON names are stable.
type curvePoint struct {
	Policy     string   `json:"policy"`
	Threshold  *float64 `json:"threshold"`
	LargeShare float64  `json:"large_share"`
	Accuracy   float64  `json:"accuracy"`
	N          int      `json:"n"`
	// place is where the threshold is on the policy's scale.
	place float64
}

// maxPoints bounds the thresholds of a curve.
const maxPoints = 64

// compare measures curves of policies on one node, by requests that bring policy
// and threshold along.
func (e *evalCmd) compare(ctx context.Context, p process, problems []problem) error {
	switch {
	case e.URL != "":
		return usagef("--curve and --policies measure in this process; they cannot be used with --url")
	case e.Threshold != nil || e.LimitLargeShare != nil || e.Record != "" || e.MinAccuracy != nil || e.MaxAccuracy != nil || e.MaxLargeShare != nil:
		return usagef("--threshold, --limit-large-share, --record and bounds are for one policy, not for curves")
	case e.Points < 1 || e.Points > maxPoints:
		return usagef("--points must be 1 to %d", maxPoints)
	case e.Plot != "" && !strings.HasSuffix(e.Plot, ".svg"):
		return usagef("--plot: the file's name must end in .svg")
	}
	cfg, name, err := e.quiet(p)
	if err != nil {
		return err
	}
	if len(cfg.Deployments) != 1 || len(cfg.Models) != 2 {
		return usagef("curves are of two models; there are %d", len(cfg.Models))
	}
	names, err := e.chosen(cfg.Deployments[0].Policy.Name)
	if err != nil {
		return err
	}
	cfg.Deployments[0].AllowOverride = true
	var points []curvePoint
	err = withNode(ctx, cfg, func(ctx context.Context, n *node.Node) error {
		ask := asking{client: newClient("http://" + reachable(n.Addr())), maxTokens: e.MaxTokens, concurrency: e.Concurrency}
		points, err = e.curves(ctx, p, &ask, cfg.Models, name, problems, names)
		return err
	})
	if err != nil {
		return err
	}
	return e.show(p, points)
}

// chosen are the policies that the flags mean.
func (e *evalCmd) chosen(own string) ([]string, error) {
	switch {
	case len(e.Policies) == 0:
		if _, ok := scaleOf(own); !ok {
			return nil, usagef("--curve: policy %s has no threshold", own)
		}
		return []string{own}, nil
	case len(e.Policies) == 1 && e.Policies[0] == "all":
		return curved(), nil
	}
	for _, name := range e.Policies {
		if !slices.Contains(curved(), name) {
			return nil, usagef("--policies: %q is none with a threshold; those are: %s", name, strings.Join(curved(), ", "))
		}
	}
	return e.Policies, nil
}

// curves measures each model alone, and then every policy.
func (e *evalCmd) curves(ctx context.Context, p process, ask *asking, alone []node.Model, name string, problems []problem, names []string) ([]curvePoint, error) {
	var points []curvePoint
	quiet := process{out: p.out, err: io.Discard}
	for i, m := range alone {
		ask.name, ask.override = m.Name, nil
		r, err := ask.measure(ctx, quiet, problems, nil)
		if err != nil {
			return nil, err
		}
		points = append(points, curvePoint{Policy: m.Name + " alone", LargeShare: float64(i), Accuracy: r.Accuracy, N: r.N})
	}
	ask.name = name
	for _, policy := range names {
		line, _ := scaleOf(policy)
		measure := func(x float64) (curvePoint, error) {
			tau := line.at(x)
			ask.override = &routing.Override{Policy: policy, Threshold: &tau}
			r, err := ask.measure(ctx, quiet, problems, nil)
			if err != nil {
				return curvePoint{}, err
			}
			fmt.Fprintf(p.err, "%-14s threshold %-10.6g large share %6.2f %%  accuracy %.3f\n", policy, tau, 100*r.LargeShare, r.Accuracy)
			return curvePoint{Policy: policy, Threshold: &tau, LargeShare: r.LargeShare, Accuracy: r.Accuracy, N: r.N, place: x}, nil
		}
		found, err := fillGaps(e.Points, measure)
		if refused := (*apiError)(nil); errors.As(err, &refused) && refused.Param == "trctl.policy" {
			fmt.Fprintf(p.err, "%s is left out: it has no router network here\n", policy)
			continue
		}
		if err != nil {
			return nil, err
		}
		points = append(points, found...)
	}
	return points, nil
}

// fillGaps measures n places of a scale, each in the middle of the widest gap so
// far. Gaps are of the square root of the share, since small shares count most.
func fillGaps(n int, measure func(x float64) (curvePoint, error)) ([]curvePoint, error) {
	ends := []curvePoint{{place: 0}, {place: 1, LargeShare: 1}} // taken as they must be, not measured
	for range n {
		widest, at := -1.0, 0
		for i := range len(ends) - 1 {
			a, b := ends[i], ends[i+1]
			gap := math.Abs(math.Sqrt(b.LargeShare)-math.Sqrt(a.LargeShare)) * math.Sqrt(b.place-a.place)
			// Where the scale has become flat, the end that was taken for granted is not reached.
			if i == 0 && len(ends) > 3 && flat(b, ends[2]) || i == len(ends)-2 && len(ends) > 3 && flat(a, ends[i-1]) {
				gap = 0
			}
			if gap > widest {
				widest, at = gap, i
			}
		}
		point, err := measure((ends[at].place + ends[at+1].place) / 2)
		if err != nil {
			return nil, err
		}
		ends = slices.Insert(ends, at+1, point)
	}
	found := ends[1 : len(ends)-1]
	slices.SortStableFunc(found, func(a, b curvePoint) int {
		switch {
		case a.LargeShare < b.LargeShare:
			return -1
		case a.LargeShare > b.LargeShare:
			return 1
		}
		return 0
	})
	return found, nil
}

// flat says that two neighbours have about the same share.
func flat(a, b curvePoint) bool { return math.Abs(a.LargeShare-b.LargeShare) < 0.005 }

// show prints the points, and draws them if that is wanted.
func (e *evalCmd) show(p process, points []curvePoint) error {
	if e.Plot != "" {
		if err := plotCurves(e.Plot, points); err != nil {
			return err
		}
	}
	if e.Output == "json" {
		return writeJSON(p, struct {
			Points []curvePoint `json:"points"`
		}{points})
	}
	fmt.Fprintf(p.out, "%-16s %-12s %-12s %s\n", "policy", "threshold", "large share", "accuracy")
	for _, c := range points {
		threshold := "-"
		if c.Threshold != nil {
			threshold = fmt.Sprintf("%.6g", *c.Threshold)
		}
		fmt.Fprintf(p.out, "%-16s %-12s %9.2f %%  %.3f\n", c.Policy, threshold, 100*c.LargeShare, c.Accuracy)
	}
	return nil
}

// plotCurves draws accuracy over share, one line a policy, into an SVG file. A
// model alone is a ring.
func plotCurves(name string, points []curvePoint) error {
	p := plot.New()
	p.X.Label.Text = "tokens of the large model, %"
	p.Y.Label.Text = "accuracy"
	p.Legend.YOffs = 6
	p.Add(plotter.NewGrid())
	k := 0
	for len(points) > 0 {
		n := 1
		for n < len(points) && points[n].Policy == points[0].Policy {
			n++
		}
		var at plotter.XYs
		for _, c := range points[:n] {
			at = append(at, plotter.XY{X: 100 * c.LargeShare, Y: c.Accuracy})
		}
		line, dots, err := plotter.NewLinePoints(at)
		if err != nil {
			return fmt.Errorf("plot %s: %w", points[0].Policy, err)
		}
		line.Color, dots.Color, dots.Shape, dots.Radius = hue(k), hue(k), draw.CircleGlyph{}, vg.Points(2)
		if points[0].Threshold == nil {
			dots.Shape, dots.Radius = draw.RingGlyph{}, vg.Points(5)
		}
		if k >= hues { // the same colours again, dashed
			line.Dashes = []vg.Length{vg.Points(4), vg.Points(2)}
		}
		p.Add(line, dots)
		p.Legend.Add(points[0].Policy, line, dots)
		points = points[n:]
		k++
	}
	p.X.Min, p.X.Max, p.Y.Max = 0, 100, 1
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

// hues is the number of colours that hue knows.
const hues = 7
