package sampler

import (
	"math"
	"math/bits"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/internal/philox"
)

// gumbelMax is above every value of Gumbel (the largest is 33·ln 2 = 22.87).
const gumbelMax = 23

// Gumbel maps a random word to a standard Gumbel number.
func Gumbel(word uint32) float64 {
	v := (float64(word) + 0.5) * (1.0 / (1 << 32)) // exact, in (0, 1)
	return -math.Log(-math.Log1p(-v))
}

// contest keeps the best score seen. Scores are compared with ids as the tie
// break, so the order in which ids are offered does not matter.
type contest struct {
	stream philox.Stream
	temp   float64
	id     int32
	score  float64
	// block caches the words of ids [4·index, 4·index+4).
	block [4]uint32
	index uint32
	held  bool
}

func (c *contest) offer(id int32, z float32) {
	base := float64(z) / c.temp
	// An id that cannot win with the largest Gumbel number needs no draw. The
	// outcome is the same; for peaked logits nearly all ids stop here.
	if base+gumbelMax < c.score {
		return
	}
	if n := uint32(id) / 4; !c.held || n != c.index {
		c.block, c.index, c.held = c.stream.Block(n), n, true
	}
	// -ln(1-v) >= v, so g <= -ln v, and v >= 2^-(z+1) for a word with z leading
	// zeros. This bound spares most of the logarithms; the constant is ln 2 rounded up.
	word := c.block[id%4]
	if base+float64(bits.LeadingZeros32(word)+1)*0.6932 < c.score {
		return
	}
	score := base + Gumbel(word)
	if score > c.score || score == c.score && id < c.id {
		c.id, c.score = id, score
	}
}

// draw returns the drawn id. first is the id of the largest logit.
func (s *Sampler) draw(z []float32, first int32, p *sampling.Params, stream philox.Stream) int32 {
	c := contest{stream: stream, temp: float64(p.Temperature), id: first, score: math.Inf(-1)}
	c.offer(first, z[first])
	topK := p.TopK > 0 && int(p.TopK) < len(z)
	topP := p.TopP > 0 && p.TopP < 1
	t := cut{k: len(z), prob: 1, best: float64(z[first]), temp: c.temp, low: math.Inf(-1)}
	if p.MinP > 0 {
		t.low = math.Log(float64(p.MinP))
	}
	switch {
	case !topK && !topP && p.MinP > 0:
		for i, v := range z {
			if t.exponent(v) >= t.low {
				c.offer(int32(i), v)
			}
		}
		return c.id
	case !topK && !topP:
		for i, v := range z {
			c.offer(int32(i), v)
		}
		return c.id
	}
	if topK {
		t.k = int(p.TopK)
	}
	if topP {
		t.prob = float64(p.TopP)
	}
	for _, id := range s.candidates(z, t) {
		c.offer(id, z[id])
	}
	return c.id
}

// cut says which ids are candidates: the first k, of these the shortest prefix
// with prob of their weight, of these the ones with an exponent of at least low.
type cut struct {
	k          int
	prob       float64
	best, temp float64 // largest logit, temperature
	low        float64
}

// exponent is the logarithm of a logit's weight; the largest logit has 0.
func (t *cut) exponent(z float32) float64 { return (float64(z) - t.best) / t.temp }

func (t *cut) weight(z float32) float64 { return math.Exp(t.exponent(z)) }

// candidates returns the ids kept by a cut, best first. The sum for top-p without
// top-k runs over all ids in order of id, else over the k candidates in order of
// rank.
func (s *Sampler) candidates(z []float32, t cut) []int32 {
	h := idHeap{z: z, ids: s.order[:0]}
	for i := range z {
		h.ids = append(h.ids, int32(i))
	}
	s.order = h.ids
	h.build()
	s.weights = s.weights[:0]
	total := 0.0
	switch {
	case t.prob >= 1:
	case t.k == len(z):
		for _, v := range z {
			total += t.weight(v)
		}
	default:
		// Popped ids gather at the end of the heap's memory, the best one last.
		for range t.k {
			w := t.weight(z[h.pop()])
			s.weights = append(s.weights, w)
			total += w
		}
	}
	n, sum := 0, 0.0
	for n < t.k && (n == 0 || t.prob >= 1 || sum < t.prob*total) {
		if n < len(s.weights) {
			sum += s.weights[n]
			n++
			continue
		}
		v := z[h.pop()]
		n++
		if t.exponent(v) < t.low {
			break // and so are all that follow
		}
		if t.prob < 1 {
			sum += t.weight(v)
		}
	}
	ids := s.order[len(s.order)-max(n, len(s.weights)):]
	reverse(ids)
	ids = ids[:n]
	for len(ids) > 1 && t.exponent(z[ids[len(ids)-1]]) < t.low {
		ids = ids[:len(ids)-1]
	}
	return ids
}

func reverse(ids []int32) {
	for i, j := 0, len(ids)-1; i < j; i, j = i+1, j-1 {
		ids[i], ids[j] = ids[j], ids[i]
	}
}

// idHeap is a heap of ids with the best one, by (logit descending, id
// ascending), at the root.
type idHeap struct {
	z   []float32
	ids []int32
}

func (h *idHeap) before(a, b int32) bool {
	return h.z[a] > h.z[b] || h.z[a] == h.z[b] && a < b
}

func (h *idHeap) build() {
	for i := len(h.ids)/2 - 1; i >= 0; i-- {
		h.down(i)
	}
}

// pop removes the best id and leaves it just behind the heap's end.
func (h *idHeap) pop() int32 {
	n := len(h.ids) - 1
	h.ids[0], h.ids[n] = h.ids[n], h.ids[0]
	id := h.ids[n]
	h.ids = h.ids[:n]
	h.down(0)
	return id
}

func (h *idHeap) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(h.ids) {
			return
		}
		if r := child + 1; r < len(h.ids) && h.before(h.ids[r], h.ids[child]) {
			child = r
		}
		if !h.before(h.ids[child], h.ids[i]) {
			return
		}
		h.ids[i], h.ids[child] = h.ids[child], h.ids[i]
		i = child
	}
}
