package router

import (
	"fmt"
	"math"
)

// Reference is the network as its authors wrote it: unfolded, every layer on its own,
// in float64. embedding is the candidate's vector; nets that do not look at the
// candidate ignore it. It is slow, and there for tests.
func (c *Checkpoint) Reference(r *Row, embedding []float32) float64 {
	hidden := widen(r.Hidden)
	switch c.Kind {
	case CITER:
		v := c.linear("mlp.0", hidden)
		mean, variance := c.vector("mlp.1.running_mean"), c.vector("mlp.1.running_var")
		n := c.norm("mlp.1")
		for i := range v {
			v[i] = (v[i]-float64(mean[i]))/math.Sqrt(float64(variance[i])+NormEps)*float64(n.Gain[i]) + float64(n.Bias[i])
			v[i] = max(v[i], 0)
		}
		return logistic(c.linear("linear", c.linear("mlp.4", v))[0])
	case CoLLM:
		sum := 0.0
		for i, w := range c.vector("defer.weight") {
			sum += float64(w) * hidden[i]
		}
		return logistic(sum)
	}
	token, logits := widen(embedding), widen(r.Top[:c.LogitsSize])
	if c.NormalizeInput {
		hidden, token = c.layerNorm("layer_norm_hidden_states", hidden), c.layerNorm("layer_norm_token", token)
		sum := 0.0
		for i := range logits {
			sum += math.Exp(logits[i] - float64(r.Top[0]))
		}
		for i := range logits {
			logits[i] = math.Exp(logits[i]-float64(r.Top[0])) / sum
		}
	}
	u := append(append(hidden, token...), c.linear("logits_projection", logits)...)
	v := c.linear("backbone.input_projection", c.linear("combined_projection", u))
	for b := range c.shape.Blocks {
		p := fmt.Sprintf("backbone.blocks.%d.", b)
		inner := c.linear(p+"mlp.0", c.layerNorm(p+"layer_norm", v))
		for i, x := range inner {
			inner[i] = 0.5 * x * (1 + math.Erf(x/math.Sqrt2))
		}
		for i, x := range c.linear(p+"mlp.3", inner) {
			v[i] += x
		}
	}
	return logistic(c.linear("backbone.output_layer.1", c.layerNorm("backbone.output_layer.0", v))[0])
}

func widen(v []float32) []float64 {
	out := make([]float64, len(v))
	for i, x := range v {
		out[i] = float64(x)
	}
	return out
}

func logistic(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// linear is weight·x + bias.
func (c *Checkpoint) linear(name string, x []float64) []float64 {
	weight, out := c.vector(name+".weight"), widen(c.vector(name+".bias"))
	for i := range out {
		for j, v := range x {
			out[i] += float64(weight[i*len(x)+j]) * v
		}
	}
	return out
}

func (c *Checkpoint) layerNorm(name string, x []float64) []float64 {
	n := c.norm(name)
	var mean, variance float64
	for _, v := range x {
		mean += v / float64(len(x))
	}
	for _, v := range x {
		variance += (v - mean) * (v - mean) / float64(len(x))
	}
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = (v-mean)/math.Sqrt(variance+NormEps)*float64(n.Gain[i]) + float64(n.Bias[i])
	}
	return out
}
