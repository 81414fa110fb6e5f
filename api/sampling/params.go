package sampling

// Limits of Params. Check enforces them.
const (
	// MaxLogprobs bounds the number of alternatives a client may ask for (the OpenAI limit).
	MaxLogprobs = 20
	// MaxStopIDs bounds the set of ids that end a sequence.
	MaxStopIDs = 64
	// MaxBiases bounds LogitBias.
	MaxBiases = 1024
	// MaxBias bounds the size of a bias (the OpenAI limit).
	MaxBias = 100
	// MaxPenalty bounds the size of presence and frequency penalties (the OpenAI limit).
	MaxPenalty = 2
	// MinRepetition and MaxRepetition bound the repetition penalty.
	MinRepetition, MaxRepetition = 0.01, 100
	// MaxTemperature bounds the temperature.
	MaxTemperature = 1e6
)

// Bias is added to the logit of one id.
type Bias struct {
	ID    int32
	Value float32
}

// Params are one request's sampling parameters, with all defaults filled in.
// For all fields but MaxTokens, zero is neutral.
//
// Order of use, at every position: penalties, bias, banned ids, temperature,
// top-k, top-p, min-p, draw. Package sampler has the exact recipe. Reported
// log-probabilities and routing features are those of the raw logits.
type Params struct {
	// Temperature divides the logits; 0 means greedy (largest logit, lowest id on ties).
	Temperature float32
	// TopP keeps the smallest set of tokens whose probability (after temperature
	// and TopK) reaches it; 1 and 0 keep all.
	TopP float32
	// TopK keeps the k largest logits; 0 keeps all.
	TopK int32
	// MinP keeps the tokens whose probability is at least MinP times the largest
	// one; 0 keeps all.
	MinP float32 `json:",omitempty"`

	// RepetitionPenalty divides positive and multiplies negative logits of all ids
	// of prompt and answer; 1 and 0 are off.
	RepetitionPenalty float32 `json:",omitempty"`
	// FrequencyPenalty is subtracted once for each time that an id stands in the
	// answer, PresencePenalty once if it stands there at all. The answer is what
	// all models have committed, whoever wrote it.
	FrequencyPenalty float32 `json:",omitempty"`
	PresencePenalty  float32 `json:",omitempty"`
	// LogitBias is sorted by id, each id once.
	LogitBias []Bias `json:",omitempty"`
	// MinTokens bans StopIDs while the answer has fewer tokens. It is at most MaxTokens.
	MinTokens int32 `json:",omitempty"`

	// Seed keys every draw. The gateway mints one when the client gives none, so
	// that a re-submitted request draws the same numbers.
	Seed uint64
	// MaxTokens bounds the committed tokens of the answer. 0 asks for none, as when
	// a client wants the prompt's log-probabilities alone.
	MaxTokens int32
	// Logprobs is the number of alternatives reported with every token, 0 to
	// MaxLogprobs; -1 means that no log-probabilities are wanted.
	Logprobs int32
	// StopIDs end the answer when committed, by either model: the client's, and those
	// of the checkpoint's generation config, which the entry sub-service adds.
	StopIDs []int32
}

// Greedy reports whether the parameters ask for the arg max.
func (p *Params) Greedy() bool { return p.Temperature == 0 }

// Stops reports whether committing id ends the answer.
func (p *Params) Stops(id int32) bool {
	for _, s := range p.StopIDs {
		if s == id {
			return true
		}
	}
	return false
}

// Repeats reports whether RepetitionPenalty is on.
func (p *Params) Repeats() bool { return p.RepetitionPenalty != 0 && p.RepetitionPenalty != 1 }

// Penalizes reports whether the ids so far change the logits, so that whoever
// samples must count them.
func (p *Params) Penalizes() bool {
	return p.Repeats() || p.FrequencyPenalty != 0 || p.PresencePenalty != 0
}

// Adjusts reports whether the logits are changed at any position: by penalties,
// bias or banned ids.
func (p *Params) Adjusts() bool {
	return p.Penalizes() || len(p.LogitBias) > 0 || p.MinTokens > 0 && len(p.StopIDs) > 0
}
