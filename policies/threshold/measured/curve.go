package measured

// LeastSteps is how many steps of a batch size make its time known.
const LeastSteps = 5

// Step is the time of steps of one batch size: the mean of N, in milliseconds.
type Step struct {
	N  uint64
	MS float64
}

// Curve is the time of a step by batch size: measured where there is enough, that
// of the smallest known batch below it, else on the line through what was measured.
// Times are in milliseconds.
type Curve struct {
	known       map[int]float64
	steps       map[int]uint64 // measured, of each known batch
	least       int            // the smallest batch that is known
	at0, growth float64
}

// Fit is nil if nothing is known. steps[b-1] is for batches of b.
func Fit(steps []Step) *Curve {
	f := &Curve{known: map[int]float64{}, steps: map[int]uint64{}}
	var w, x, y, xx, xy float64
	for i, e := range steps {
		if e.N < LeastSteps || e.MS <= 0 {
			continue
		}
		b, weight := float64(i+1), float64(min(e.N, 64))
		f.known[i+1], f.steps[i+1] = e.MS, e.N
		w, x, y, xx, xy = w+weight, x+weight*b, y+weight*e.MS, xx+weight*b*b, xy+weight*b*e.MS
	}
	if w == 0 {
		return nil
	}
	for f.least = 1; f.known[f.least] == 0; f.least++ {
	}
	if spread := w*xx - x*x; spread > 1e-9 {
		f.growth = max(0, (w*xy-x*y)/spread)
	}
	f.at0 = (y - f.growth*x) / w
	return f
}

// Times are those of batches of 1 to n. They do not fall: where larger batches seem
// faster, chance or company has made it so, and all of them get their mean.
func (f *Curve) Times(n int) []float64 {
	out, weight := make([]float64, n), make([]float64, n)
	for b := 1; b <= n; b++ {
		t, ok := f.known[b]
		switch {
		case b < f.least:
			t = f.known[f.least]
		case !ok:
			t = f.at0 + f.growth*float64(b)
		}
		out[b-1], weight[b-1] = max(t, 1e-3), 1e-3+float64(f.steps[b])
	}
	rising(out, weight)
	return out
}

// rising replaces values by the nearest ones, in weighted squares, that do not fall:
// neighbours in the wrong order are pooled.
func rising(values, weights []float64) {
	type pool struct {
		mean, weight float64
		n            int
	}
	var pools []pool
	for i, v := range values {
		p := pool{v, weights[i], 1}
		for k := len(pools) - 1; k >= 0 && pools[k].mean > p.mean; k-- {
			w := pools[k].weight + p.weight
			p = pool{(pools[k].mean*pools[k].weight + p.mean*p.weight) / w, w, pools[k].n + p.n}
			pools = pools[:k]
		}
		pools = append(pools, p)
	}
	i := 0
	for _, p := range pools {
		for range p.n {
			values[i] = p.mean
			i++
		}
	}
}
