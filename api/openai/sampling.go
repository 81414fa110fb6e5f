package openai

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"

	"github.com/tokenrouter/tokenrouter/api/sampling"
)

// Bounds of the parameters of sampling and stopping.
const (
	// MaxN bounds the answers to one prompt.
	MaxN = 8
	// MaxStops bounds the stop strings, MaxStopBytes the length of one.
	MaxStops     = 4
	MaxStopBytes = 256
	// MaxStopIDs bounds the client's stop ids; the checkpoint's come on top.
	MaxStopIDs = 32
)

// sampling takes the parameters of sampling and stopping, except the limits.
func (o *object) sampling(r *Options) {
	if v, ok := o.number("temperature", 0, 2); ok {
		r.Temperature = &v
	}
	if v, ok := o.number("top_p", 0, 1); ok {
		r.TopP = &v
	}
	if v, ok := o.integer("top_k", -1, math.MaxInt32); ok {
		k := int32(max(v, 0))
		r.TopK = &k
	}
	if v, ok := o.integer("seed", math.MinInt64, math.MaxInt64); ok {
		seed := uint64(v)
		r.Seed = &seed
	}
	r.MinP, _ = o.number("min_p", 0, 1)
	r.PresencePenalty, _ = o.number("presence_penalty", -sampling.MaxPenalty, sampling.MaxPenalty)
	r.FrequencyPenalty, _ = o.number("frequency_penalty", -sampling.MaxPenalty, sampling.MaxPenalty)
	r.RepetitionPenalty, _ = o.number("repetition_penalty", sampling.MinRepetition, sampling.MaxRepetition)
	r.IgnoreEOS, _ = o.bool("ignore_eos")
	o.choices(r)
	o.logitBias(r)
	o.stop(r)
	o.stopIDs(r)
}

// choices takes n, and best_of, which must say the same.
func (o *object) choices(r *Options) {
	r.N = 1
	if v, ok := o.integer("n", 1, MaxN); ok {
		r.N = int(v)
	}
	if v, ok := o.integer("best_of", 1, MaxN); ok && int(v) != r.N {
		o.fail(invalid("best_of", "'best_of' is %d, but only the value of 'n' (%d) is supported", v, r.N))
	}
}

// minTokens takes the least length of the answer.
func (o *object) minTokens(r *Options) {
	v, ok := o.integer("min_tokens", 0, math.MaxInt32)
	if !ok {
		return
	}
	if given := r.MaxTokens > 0 || r.NoTokens; given && v > r.MaxTokens {
		o.fail(invalid("min_tokens", "'min_tokens' is %d, but '%s' is %d", v, r.limitName, r.MaxTokens))
	}
	r.MinTokens = int32(v)
}

// stop takes stop strings. An empty list equals absence; an empty string would
// match everywhere, so it is an error.
func (o *object) stop(r *Options) {
	raw, ok := o.take("stop")
	if !ok {
		return
	}
	one := func(e []byte) bool {
		switch s, isText := text(e); {
		case !isText:
			o.fail(wrongType("stop", "a string or an array of strings"))
		case s == "":
			o.fail(invalid("stop", "'stop' holds an empty string"))
		case len(s) > MaxStopBytes:
			o.fail(invalid("stop", "'stop' holds a string of more than %d bytes", MaxStopBytes))
		default:
			r.Stop = append(r.Stop, s)
			return true
		}
		return false
	}
	switch kind(raw) {
	case '"':
		one(raw)
	case '[':
		elements(raw, func(i int, e []byte) bool {
			if i >= MaxStops {
				o.fail(invalid("stop", "'stop' holds more than %d strings", MaxStops))
				return false
			}
			return one(e)
		})
	default:
		o.fail(wrongType("stop", "a string or an array of strings"))
	}
}

func (o *object) stopIDs(r *Options) {
	raw, ok := o.take("stop_token_ids")
	if !ok {
		return
	}
	if kind(raw) != '[' {
		o.fail(wrongType("stop_token_ids", "an array of token ids"))
		return
	}
	elements(raw, func(i int, e []byte) bool {
		v, err := integer(e)
		switch {
		case i >= MaxStopIDs:
			o.fail(invalid("stop_token_ids", "'stop_token_ids' holds more than %d ids", MaxStopIDs))
		case kind(e) != '0' || err != nil || v < 0 || v > math.MaxInt32:
			o.fail(invalid("stop_token_ids", "'stop_token_ids[%d]' is not a token id", i))
		default:
			r.StopIDs = append(r.StopIDs, int32(v))
			return true
		}
		return false
	})
}

func (o *object) logitBias(r *Options) {
	raw, ok := o.take("logit_bias")
	if !ok {
		return
	}
	var bias map[string]json.RawMessage
	if kind(raw) != '{' || json.Unmarshal(raw, &bias) != nil {
		o.fail(wrongType("logit_bias", "an object of token ids and numbers"))
		return
	}
	if len(bias) > sampling.MaxBiases {
		o.fail(invalid("logit_bias", "'logit_bias' holds more than %d ids", sampling.MaxBiases))
		return
	}
	for name, value := range bias {
		id, err := strconv.ParseUint(name, 10, 31)
		if err != nil || strconv.FormatUint(id, 10) != name {
			o.fail(invalid("logit_bias", "%q in 'logit_bias' is not a token id", Excerpt(name)))
			return
		}
		v, err := strconv.ParseFloat(string(value), 64)
		if kind(value) != '0' || err != nil || !(v >= -sampling.MaxBias && v <= sampling.MaxBias) {
			o.fail(invalid("logit_bias", "'logit_bias' of id %s must be between %d and %d", name, -sampling.MaxBias, sampling.MaxBias))
			return
		}
		if r.LogitBias == nil {
			r.LogitBias = make(map[int32]float32, len(bias))
		}
		r.LogitBias[int32(id)] = float32(v)
	}
}

// checkIDs reports an id of stop_token_ids or logit_bias that the models do not
// have, and a least length that the context does not hold.
func (o *Options) checkIDs(l Limits) *Error {
	for i, id := range o.StopIDs {
		if int(id) >= l.Vocab {
			return invalid("stop_token_ids", "'%s' is %d, but ids of this model are below %d", fmt.Sprintf("stop_token_ids[%d]", i), id, l.Vocab)
		}
	}
	for id := range o.LogitBias {
		if int(id) >= l.Vocab {
			return invalid("logit_bias", "'logit_bias' names id %d, but ids of this model are below %d", id, l.Vocab)
		}
	}
	if int(o.MinTokens) > l.MaxContext {
		return invalid("min_tokens", "'min_tokens' is %d, but the model's context holds %d tokens in all", o.MinTokens, l.MaxContext)
	}
	return nil
}
