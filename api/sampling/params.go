package sampling

// MaxLogprobs bounds the number of alternatives a client may ask for (the OpenAI limit).
const MaxLogprobs = 20

// MaxStopIDs bounds the set of ids that end a sequence.
const MaxStopIDs = 64

// Params are one request's sampling parameters, with all defaults filled in.
type Params struct {
	// Temperature divides the logits; 0 means greedy (largest logit, lowest id on ties).
	Temperature float32
	// TopP keeps the smallest set of tokens whose probability (after temperature
	// and TopK) reaches it; 1 keeps all.
	TopP float32
	// TopK keeps the k largest logits; 0 keeps all.
	TopK int32
	// Seed keys every draw. The gateway mints one when the client gives none, so
	// that a re-submitted request draws the same numbers.
	Seed uint64
	// MaxTokens bounds the committed tokens of the answer, at least 1.
	MaxTokens int32
	// Logprobs is the number of alternatives reported with every token, 0 to
	// MaxLogprobs; -1 means that no log-probabilities are wanted.
	Logprobs int32
	// StopIDs end the answer when committed, by either model. The entry
	// sub-service fills it from the checkpoint's generation config.
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
