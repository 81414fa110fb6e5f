package handoff

import "math"

// digest folds everything but Seq into 64 bits (FNV-1a over words). It tells a
// repeated turn from a different one; it is no defence against a peer that
// forges collisions, since such a peer could send any valid turn anyway.
func digest(f *Frame) uint64 {
	h := fold(14695981039346656037)
	h.word(uint64(f.Kind)).word(f.Request).word(uint64(f.Epoch)<<32 | uint64(f.Hop))
	h.word(uint64(f.From)<<16 | uint64(f.To)<<8 | uint64(f.Done))
	h.word(uint64(uint32(f.Base))<<32 | uint64(uint32(f.Known)))
	h.word(uint64(len(f.Tokens)))
	for _, t := range f.Tokens {
		h.word(uint64(uint32(t.ID))<<8 | uint64(t.Model))
	}
	h.word(uint64(len(f.Seen)))
	for _, n := range f.Seen {
		h.word(uint64(uint32(n)))
	}
	h.bytes(f.State).bytes(f.Blob).bytes([]byte(f.Code))
	if x := f.First; x != nil {
		p := &x.Sampling
		h.bytes([]byte(x.Deployment)).word(uint64(uint32(x.PromptLen)))
		h.bytes([]byte(x.Entry)).word(uint64(x.Age)).bytes(x.Salt[:])
		h.word(uint64(math.Float32bits(p.Temperature))<<32 | uint64(math.Float32bits(p.TopP)))
		h.word(uint64(uint32(p.TopK))<<32 | uint64(uint32(p.MaxTokens)))
		h.word(p.Seed).word(uint64(uint32(p.Logprobs))).word(uint64(len(p.StopIDs)))
		for _, id := range p.StopIDs {
			h.word(uint64(uint32(id)))
		}
		h.word(uint64(math.Float32bits(p.MinP))<<32 | uint64(math.Float32bits(p.RepetitionPenalty)))
		h.word(uint64(math.Float32bits(p.FrequencyPenalty))<<32 | uint64(math.Float32bits(p.PresencePenalty)))
		h.word(uint64(uint32(p.MinTokens))<<32 | uint64(len(p.LogitBias)))
		for _, b := range p.LogitBias {
			h.word(uint64(uint32(b.ID))<<32 | uint64(math.Float32bits(b.Value)))
		}
	}
	if x := f.First; x != nil && !x.Override.Empty() {
		h.bytes([]byte(x.Override.Policy))
		for _, v := range []*float64{x.Override.Threshold, x.Override.MaxLargeShare} {
			if v == nil {
				h.word(0)
				continue
			}
			h.word(1).word(math.Float64bits(*v))
		}
	}
	if x := f.First; x != nil && x.Version != 0 {
		h.word(x.Version)
	}
	for i := range f.Logprobs {
		l := &f.Logprobs[i]
		h.word(uint64(math.Float32bits(l.Logprob))<<32 | uint64(len(l.Top)))
		for _, t := range l.Top {
			h.word(uint64(uint32(t.ID))<<32 | uint64(math.Float32bits(t.Logprob)))
		}
	}
	return uint64(h)
}

type fold uint64

func (h *fold) word(w uint64) *fold {
	const prime = 1099511628211
	x := uint64(*h)
	for range 8 {
		x = (x ^ w&0xff) * prime
		w >>= 8
	}
	*h = fold(x)
	return h
}

func (h *fold) bytes(b []byte) *fold {
	h.word(uint64(len(b)))
	for _, c := range b {
		h.word(uint64(c))
	}
	return h
}
