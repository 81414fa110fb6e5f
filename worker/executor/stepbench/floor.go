package stepbench

import (
	"time"

	"github.com/tokenrouter/tokenrouter/worker/model"
)

// Machine is what a device can do at best.
type Machine struct {
	BytesPerSecond float64 // read bandwidth
	FlopsPerSecond float64 // dense bfloat16 products
}

// H200 is what one NVIDIA H200 has been measured to do.
func H200() Machine { return Machine{BytesPerSecond: 4.3e12, FlopsPerSecond: 790e12} }

// Work is what one step has to do at least.
type Work struct {
	WeightBytes, KVBytes, Flops float64
}

// StepWork is the work of rows that feed some tokens each at a context, and sample one position each. Weights are read
// once; an own embedding table is not read.
func StepWork(m *model.Config, rows, tokens, context int) Work {
	q, kv := m.Heads*m.HeadDim, m.KVHeads*m.HeadDim
	layer := float64(m.Hidden*(q+2*kv) + q*m.Hidden + 3*m.Hidden*m.FFN)
	layers, head := layer*float64(m.Layers), float64(m.VocabSize*m.Hidden)
	t := float64(rows * tokens)
	// A token attends to the context and, on average, to half of the row's own tokens.
	pairs := t * (float64(context) + float64(tokens+1)/2)
	return Work{
		WeightBytes: 2 * (layers + head),
		KVBytes:     float64(rows*(context+tokens)) * float64(4*kv*m.Layers),
		Flops:       2*layers*t + 2*head*float64(rows) + 4*pairs*float64(q*m.Layers),
	}
}

// Floor is the shortest time in which a machine can do the work, and whether memory bounds it.
func (w Work) Floor(m Machine) (_ time.Duration, memory bool) {
	bytes, flops := (w.WeightBytes+w.KVBytes)/m.BytesPerSecond, w.Flops/m.FlopsPerSecond
	return time.Duration(max(bytes, flops) * 1e9), bytes >= flops
}
