package threshold

import (
	"context"
	"math"
)

// law is the long-run law of the chain's events from its first state on. States
// outside the closed classes get nothing. There is one closed class unless the
// routing has too little chance in it; several are weighted by the probability
// that the chain ends in them and by how often they have events.
func (h *chain) law(ctx context.Context) ([]float64, error) {
	class, closed := h.classes()
	out := make([]float64, h.len())
	if len(closed) == 1 {
		return out, h.solveClass(ctx, class, closed[0], 1, out)
	}
	weight, err := h.absorbed(ctx, class, closed)
	if err != nil {
		return nil, err
	}
	for k, id := range closed {
		if weight[k] == 0 {
			continue
		}
		part := make([]float64, h.len())
		if err := h.solveClass(ctx, class, id, 1, part); err != nil {
			return nil, err
		}
		var tau float64
		for s, p := range part {
			tau += p * h.tau[s]
		}
		// Time is shared by weight, so events are by weight over mean time.
		axpy(weight[k]/tau, part, out)
	}
	return normalised(out), nil
}

// solveClass adds scale times the stationary law of one closed class to out.
func (h *chain) solveClass(ctx context.Context, class []int32, id int32, scale float64, out []float64) error {
	var members []int32
	local := make([]int32, len(class))
	for s, k := range class {
		if k == id {
			local[s] = int32(len(members))
			members = append(members, int32(s))
		}
	}
	pi, err := h.inflow(members, local).law(ctx)
	for k, s := range members {
		if err == nil {
			out[s] += scale * pi[k]
		}
	}
	return err
}

// classes numbers the strongly connected components (Tarjan's algorithm, with
// its own stack) and lists those that are closed: no transition leaves them.
func (h *chain) classes() (class []int32, closed []int32) {
	n := h.len()
	class = make([]int32, n)
	order, low := make([]int32, n), make([]int32, n)
	at := make([]int, n) // next transition to look at
	var path, stack []int32
	var seen, found int32
	for s := range class {
		class[s], at[s] = -1, h.rows[s]
	}
	enter := func(s int32) {
		seen++
		order[s], low[s] = seen, seen
		path, stack = append(path, s), append(stack, s)
	}
	for begin := 0; begin < len(h.first) || len(path) > 0; {
		if len(path) == 0 { // every state is reached from one of the first
			if s := h.first[begin]; order[s] == 0 {
				enter(s)
			}
			begin++
			continue
		}
		s := path[len(path)-1]
		if at[s] < h.rows[s+1] {
			t := h.to[at[s]]
			at[s]++
			if order[t] == 0 {
				enter(t)
			} else if class[t] < 0 {
				low[s] = min(low[s], order[t])
			}
			continue
		}
		path = path[:len(path)-1]
		if len(path) > 0 {
			up := path[len(path)-1]
			low[up] = min(low[up], low[s])
		}
		if low[s] != order[s] {
			continue
		}
		var member int32 = -1
		for member != s {
			member = stack[len(stack)-1]
			stack = stack[:len(stack)-1]
			class[member] = found
		}
		found++
	}
	open := make([]bool, found)
	for s := range n {
		for e := h.rows[s]; e < h.rows[s+1]; e++ {
			if class[h.to[e]] != class[s] {
				open[class[s]] = true
			}
		}
	}
	for id, o := range open {
		if !o {
			closed = append(closed, int32(id))
		}
	}
	return class, closed
}

// absorbed is the probability to end in each closed class.
func (h *chain) absorbed(ctx context.Context, class, closed []int32) ([]float64, error) {
	slot := map[int32]int{}
	for k, id := range closed {
		slot[id] = k
	}
	weight := make([]float64, len(closed))
	now, next := make([]float64, h.len()), make([]float64, h.len())
	for k, s := range h.first {
		now[s] = h.firstProb[k]
	}
	for left := 1.0; left > 1e-13; {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		clear(next)
		left = 0
		for s, p := range now {
			if p == 0 {
				continue
			}
			if k, ok := slot[class[s]]; ok {
				weight[k] += p
				continue
			}
			left += p
			for e := h.rows[s]; e < h.rows[s+1]; e++ {
				next[h.to[e]] += p * h.prob[e]
			}
		}
		now, next = next, now
	}
	var total float64
	for _, w := range weight {
		total += w
	}
	for k := range weight {
		weight[k] /= math.Max(total, math.SmallestNonzeroFloat64)
	}
	return weight, nil
}
