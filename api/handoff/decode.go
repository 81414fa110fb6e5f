package handoff

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/tokenrouter/tokenrouter/api/routing"
	"github.com/tokenrouter/tokenrouter/api/sampling"
)

// Decode reads one frame from b into f. The slices of f are reused, so nothing
// of the earlier frame stays valid; First and the strings are fresh. Slices of
// absent sections are empty, not nil. Nothing is allocated before the bytes
// that pay for it have been seen. After an error the content of f is
// unspecified, but for the versions of a Hello after ErrVersion.
func Decode(b []byte, f *Frame) error {
	if len(b) > MaxFrameSize {
		return fmt.Errorf("%w: %d bytes", ErrTooLarge, len(b))
	}
	*f = Frame{
		Tokens: f.Tokens[:0], Logprobs: f.Logprobs[:0], Seen: f.Seen[:0],
		State: f.State[:0], Blob: f.Blob[:0],
	}
	r := cursor{b: b}
	f.Kind = Kind(r.u8())
	flags := r.u8()
	if r.short {
		return ErrTruncated
	}
	var err error
	switch f.Kind {
	case KindHello:
		err = decodeHello(&r, f, flags)
	case KindAck:
		f.Ack, f.Credits = r.u64(), r.u32()
		err = noFlags(flags, 0)
	case KindGroup:
		f.Seq, f.Live, f.StepMicros = r.u64(), r.i32(), r.u32()
		err = noFlags(flags, 0)
	case KindHandoff, KindProgress, KindNack, KindRelease:
		err = decodeTurn(&r, f, flags)
	default:
		return fmt.Errorf("%w: %d", ErrKind, f.Kind)
	}
	switch {
	case err != nil:
		return err
	case r.short:
		return ErrTruncated
	case len(r.b) > 0:
		return fmt.Errorf("%w: %d bytes left over", ErrMalformed, len(r.b))
	}
	return check(f)
}

func noFlags(flags, allowed byte) error {
	if flags&^allowed != 0 {
		return fmt.Errorf("%w: flags %#02x", ErrMalformed, flags)
	}
	return nil
}

func decodeHello(r *cursor, f *Frame, flags byte) error {
	f.ProtocolVersion = r.u16()
	if flags&flagOldest != 0 {
		f.OldestVersion = r.u16()
		if !r.short && f.OldestVersion == 0 {
			return fmt.Errorf("%w: hello: the oldest version is 0", ErrMalformed)
		}
	}
	if r.short {
		return nil // which the caller finds
	}
	// What follows is laid out as the sender's oldest version has it, and may not be
	// looked at before it is known that this build speaks that.
	if _, err := f.Agree(); err != nil {
		return err
	}
	f.Session, f.PeerSession = r.u64(), r.u64()
	f.Ack, f.Credits = r.u64(), r.u32()
	f.Replica, f.Model = r.str(), r.str()
	return noFlags(flags, flagOldest)
}

func decodeTurn(r *cursor, f *Frame, flags byte) error {
	f.Seq, f.Request = r.u64(), r.u64()
	f.Epoch, f.Hop = r.u32(), r.u32()
	f.From, f.To = r.u8(), r.u8()
	switch f.Kind {
	case KindNack:
		f.Known = r.i32()
		return noFlags(flags, 0)
	case KindRelease:
		f.Done, f.Code = Done(r.u8()), r.str()
		return noFlags(flags, 0)
	case KindProgress:
		if err := noFlags(flags, progressFlags); err != nil {
			return err
		}
	default:
		if err := noFlags(flags, handoffFlags); err != nil {
			return err
		}
	}
	if err := decodeTokens(r, f); err != nil {
		return err
	}
	if err := decodeSections(r, f, flags); err != nil {
		return err
	}
	// A flag whose section turned out empty would give a frame a second encoding.
	if got := flagsOf(f); !r.short && got != flags {
		return fmt.Errorf("%w: flags %#02x for sections %#02x", ErrMalformed, flags, got)
	}
	return nil
}

func decodeTokens(r *cursor, f *Frame) error {
	f.Base = r.i32()
	n := r.u32()
	if n > MaxTokens {
		return fmt.Errorf("%w: %d tokens", ErrTooLarge, n)
	}
	b := r.take(int(n) * tokenSize)
	for ; len(b) >= tokenSize; b = b[tokenSize:] {
		f.Tokens = append(f.Tokens, Token{ID: int32(binary.LittleEndian.Uint32(b)), Model: b[4]})
	}
	return nil
}

func decodeSections(r *cursor, f *Frame, flags byte) error {
	if flags&flagDone != 0 {
		f.Done = Done(r.u8())
	}
	if flags&flagSeen != 0 {
		n := int(r.u8())
		if n > MaxModels {
			return fmt.Errorf("%w: seen has %d models", ErrTooLarge, n)
		}
		for b := r.take(4 * n); len(b) >= 4; b = b[4:] {
			f.Seen = append(f.Seen, int32(binary.LittleEndian.Uint32(b)))
		}
	}
	if flags&flagState != 0 {
		n := int(r.u8())
		if n > MaxState {
			return fmt.Errorf("%w: state has %d bytes", ErrTooLarge, n)
		}
		f.State = append(f.State, r.take(n)...)
	}
	if flags&flagBlob != 0 {
		n := int(r.u16())
		if n > MaxBlob {
			return fmt.Errorf("%w: blob has %d bytes", ErrTooLarge, n)
		}
		f.Blob = append(f.Blob, r.take(n)...)
	}
	if flags&flagFirst != 0 {
		if err := decodeFirst(r, f); err != nil {
			return err
		}
	}
	if flags&(flagOverride|flagVersion) != 0 && f.First == nil {
		return fmt.Errorf("%w: flags %#02x", ErrMalformed, flags)
	}
	if flags&flagOverride != 0 {
		if err := decodeOverride(r, f.First); err != nil {
			return err
		}
	}
	if flags&flagVersion != 0 {
		f.First.Version = r.u64()
	}
	if flags&flagLogprobs != 0 {
		return decodeLogprobs(r, f)
	}
	return nil
}

func decodeFirst(r *cursor, f *Frame) error {
	x := &First{Deployment: r.str(), PromptLen: r.i32(), Entry: r.str(), Age: int64(r.u64())}
	copy(x.Salt[:], r.take(len(x.Salt)))
	p := &x.Sampling
	p.Temperature, p.TopP = r.f32(), r.f32()
	p.TopK = r.i32()
	p.Seed = r.u64()
	p.MaxTokens = r.i32()
	p.Logprobs = r.i32()
	n := int(r.u8())
	if n > sampling.MaxStopIDs {
		return fmt.Errorf("%w: %d stop ids", ErrTooLarge, n)
	}
	b := r.take(4 * n)
	if len(b) > 0 {
		p.StopIDs = make([]int32, 0, n)
	}
	for ; len(b) >= 4; b = b[4:] {
		p.StopIDs = append(p.StopIDs, int32(binary.LittleEndian.Uint32(b)))
	}
	f.First = x
	return decodeAdjustments(r, p)
}

func decodeOverride(r *cursor, x *First) error {
	o := &routing.Override{Policy: r.str()}
	parts := r.u8()
	if parts&^overrideParts != 0 {
		return fmt.Errorf("%w: parts %#02x of an override", ErrMalformed, parts)
	}
	for _, p := range []struct {
		bit byte
		to  **float64
	}{{overrideThreshold, &o.Threshold}, {overrideShare, &o.MaxLargeShare}} {
		if parts&p.bit != 0 {
			v := math.Float64frombits(r.u64())
			*p.to = &v
		}
	}
	x.Override = o
	return nil
}

// decodeAdjustments reads the parameters that change the logits.
func decodeAdjustments(r *cursor, p *sampling.Params) error {
	p.MinP, p.RepetitionPenalty = r.f32(), r.f32()
	p.FrequencyPenalty, p.PresencePenalty = r.f32(), r.f32()
	p.MinTokens = r.i32()
	n := int(r.u16())
	if n > sampling.MaxBiases {
		return fmt.Errorf("%w: %d biases", ErrTooLarge, n)
	}
	b := r.take(n * biasSize)
	if len(b) > 0 {
		p.LogitBias = make([]sampling.Bias, 0, n)
	}
	for ; len(b) >= biasSize; b = b[biasSize:] {
		p.LogitBias = append(p.LogitBias, sampling.Bias{
			ID:    int32(binary.LittleEndian.Uint32(b)),
			Value: math.Float32frombits(binary.LittleEndian.Uint32(b[4:])),
		})
	}
	return nil
}

func decodeLogprobs(r *cursor, f *Frame) error {
	for range f.Tokens {
		lp := r.f32()
		n := int(r.u8())
		if n > sampling.MaxLogprobs {
			return fmt.Errorf("%w: %d alternatives", ErrTooLarge, n)
		}
		b := r.take(n * topEntrySize)
		if r.short {
			return ErrTruncated
		}
		// Growing within the capacity brings back an old entry and its Top slice.
		k := len(f.Logprobs)
		if k < cap(f.Logprobs) {
			f.Logprobs = f.Logprobs[:k+1]
		} else {
			f.Logprobs = append(f.Logprobs, Logprob{})
		}
		l := &f.Logprobs[k]
		l.Logprob, l.Top = lp, l.Top[:0]
		for ; len(b) >= topEntrySize; b = b[topEntrySize:] {
			l.Top = append(l.Top, TopEntry{
				ID:      int32(binary.LittleEndian.Uint32(b)),
				Logprob: math.Float32frombits(binary.LittleEndian.Uint32(b[4:])),
			})
		}
	}
	return nil
}
