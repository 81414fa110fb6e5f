package sampling

import "fmt"

// FieldError says which parameter is out of range. Field is the name that the
// parameter has in requests of clients, such as "min_p".
type FieldError struct {
	Field   string
	Problem string
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Problem }

// Check returns a *FieldError for the first parameter that is out of range, and
// nil if there is none. vocab is the number of real ids; 0 means that it is not
// known, and then only negative ids are refused. Stop ids are never compared
// with vocab: one beyond it is an id that no model writes.
func (p *Params) Check(vocab int) error {
	for _, c := range []struct {
		field    string
		found    float32
		from, to float32
	}{
		{"temperature", p.Temperature, 0, MaxTemperature},
		{"top_p", p.TopP, 0, 1},
		{"min_p", p.MinP, 0, 1},
		{"frequency_penalty", p.FrequencyPenalty, -MaxPenalty, MaxPenalty},
		{"presence_penalty", p.PresencePenalty, -MaxPenalty, MaxPenalty},
	} {
		if !(c.found >= c.from && c.found <= c.to) { // NaN too
			return fieldError(c.field, "expected %g to %g, found %g", c.from, c.to, c.found)
		}
	}
	r := p.RepetitionPenalty
	switch {
	case r != 0 && !(r >= MinRepetition && r <= MaxRepetition):
		return fieldError("repetition_penalty", "expected %g to %g, found %g", MinRepetition, float32(MaxRepetition), r)
	case p.TopK < 0:
		return fieldError("top_k", "expected at least 0, found %d", p.TopK)
	case p.MaxTokens < 0:
		return fieldError("max_tokens", "expected at least 0, found %d", p.MaxTokens)
	case p.MinTokens < 0 || p.MinTokens > p.MaxTokens:
		return fieldError("min_tokens", "expected 0 to max_tokens (%d), found %d", p.MaxTokens, p.MinTokens)
	case p.Logprobs < -1 || p.Logprobs > MaxLogprobs:
		return fieldError("logprobs", "expected -1 to %d, found %d", MaxLogprobs, p.Logprobs)
	case len(p.StopIDs) > MaxStopIDs:
		return fieldError("stop_token_ids", "expected at most %d ids, found %d", MaxStopIDs, len(p.StopIDs))
	}
	for _, id := range p.StopIDs {
		if id < 0 {
			return fieldError("stop_token_ids", "found the negative id %d", id)
		}
	}
	return p.checkBias(vocab)
}

func (p *Params) checkBias(vocab int) error {
	if len(p.LogitBias) > MaxBiases {
		return fieldError("logit_bias", "expected at most %d ids, found %d", MaxBiases, len(p.LogitBias))
	}
	last := int32(-1)
	for _, b := range p.LogitBias {
		switch {
		case b.ID < 0:
			return fieldError("logit_bias", "found the negative id %d", b.ID)
		case vocab > 0 && int(b.ID) >= vocab:
			return fieldError("logit_bias", "id %d is outside the vocabulary of %d", b.ID, vocab)
		case b.ID <= last:
			return fieldError("logit_bias", "id %d follows id %d: expected ascending ids", b.ID, last)
		case !(b.Value >= -MaxBias && b.Value <= MaxBias):
			return fieldError("logit_bias", "id %d: expected %d to %d, found %g", b.ID, -MaxBias, MaxBias, b.Value)
		}
		last = b.ID
	}
	return nil
}

func fieldError(field, format string, args ...any) error {
	return &FieldError{field, fmt.Sprintf(format, args...)}
}
