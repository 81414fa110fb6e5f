package threshold

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// maxOutcomes bounds the ways in which the requests of one event can spread.
const maxOutcomes = 200_000

// outcome is one way in which the requests that ended a step spread over the
// models, with its probability.
type outcome struct {
	arrive []int32
	p      float64
}

// router enumerates outcomes and keeps them: they depend on P alone, so settings
// of one case share them.
type router struct {
	p      [][]float64
	logFac []float64
	seen   map[string][]outcome
	stored int
}

func newRouter(c *Case) *router {
	r := &router{p: c.P, logFac: make([]float64, c.N+1), seen: map[string][]outcome{}}
	for k := 1; k <= c.N; k++ {
		r.logFac[k] = r.logFac[k-1] + math.Log(float64(k))
	}
	return r
}

// outcomes returns the law of the arrivals when ended[i] requests end a step on
// i: the sum of one multinomial for each model.
func (r *router) outcomes(ended []int32) ([]outcome, error) {
	var buf [4 * MaxModels]byte
	key := buf[:0]
	for _, n := range ended {
		key = binary.LittleEndian.AppendUint32(key, uint32(n))
	}
	if o, ok := r.seen[string(key)]; ok {
		return o, nil
	}
	law := []outcome{{arrive: make([]int32, len(ended)), p: 1}}
	for i, n := range ended {
		if n == 0 {
			continue
		}
		one, err := r.multinomial(i, int(n))
		if err != nil {
			return nil, err
		}
		if law, err = sum(law, one); err != nil {
			return nil, err
		}
	}
	if r.stored += len(law); r.stored > 4*maxOutcomes {
		r.seen, r.stored = map[string][]outcome{}, len(law)
	}
	r.seen[string(key)] = law
	return law, nil
}

// multinomial is the law of n requests of model i spread by row i of P.
func (r *router) multinomial(i, n int) ([]outcome, error) {
	var targets []int
	for j, p := range r.p[i] {
		if p > 0 {
			targets = append(targets, j)
		}
	}
	ways := 1.0
	for k := 1; k < len(targets); k++ {
		ways = ways * float64(n+k) / float64(k)
	}
	if ways > maxOutcomes {
		return nil, fmt.Errorf("%w: %d requests spread over %d models in %.0f ways, at most %d", ErrTooLarge, n, len(targets), ways, maxOutcomes)
	}
	var law []outcome
	arrive := make([]int32, len(r.p))
	var spread func(k, left int, logP float64)
	spread = func(k, left int, logP float64) {
		j := targets[k]
		put := func(count int) float64 {
			arrive[j] = int32(count)
			return logP + float64(count)*math.Log(r.p[i][j]) - r.logFac[count]
		}
		if k == len(targets)-1 {
			p := math.Exp(put(left))
			law = append(law, outcome{slices.Clone(arrive), p})
			return
		}
		for count := 0; count <= left; count++ {
			spread(k+1, left-count, put(count))
		}
		arrive[j] = 0
	}
	spread(0, n, r.logFac[n])
	return tidy(law), nil
}

// sum is the law of the sum of two independent arrivals.
func sum(a, b []outcome) ([]outcome, error) {
	if len(a) == 1 && a[0].p == 1 && !slices.ContainsFunc(a[0].arrive, func(v int32) bool { return v != 0 }) {
		return b, nil
	}
	if len(a)*len(b) > 4*maxOutcomes {
		return nil, fmt.Errorf("%w: %d by %d ways to spread the requests of one event, at most %d", ErrTooLarge, len(a), len(b), 4*maxOutcomes)
	}
	all := make([]outcome, 0, len(a)*len(b))
	for _, u := range a {
		for _, v := range b {
			arrive := slices.Clone(u.arrive)
			for j, n := range v.arrive {
				arrive[j] += n
			}
			all = append(all, outcome{arrive, u.p * v.p})
		}
	}
	slices.SortFunc(all, func(x, y outcome) int { return slices.CompareFunc(x.arrive, y.arrive, cmp.Compare[int32]) })
	out := all[:0]
	for _, o := range all {
		if k := len(out) - 1; k >= 0 && slices.Equal(out[k].arrive, o.arrive) {
			out[k].p += o.p
			continue
		}
		out = append(out, o)
	}
	return tidy(out), nil
}

// tidy drops the rarest outcomes and lets the others sum to 1 again.
func tidy(law []outcome) []outcome {
	law = slices.DeleteFunc(law, func(o outcome) bool { return o.p < rarest })
	var total float64
	for _, o := range law {
		total += o.p
	}
	for k := range law {
		law[k].p /= total
	}
	return law
}

// binomials are the laws Bin(n, p) for n = 0..N: row n has n+1 entries.
func binomials(n int, p float64) [][]float64 {
	rows := make([][]float64, n+1)
	rows[0] = []float64{1}
	for k := 1; k <= n; k++ {
		row := make([]float64, k+1)
		for j, v := range rows[k-1] {
			row[j] += v * (1 - p)
			row[j+1] += v * p
		}
		rows[k] = row
	}
	return rows
}
