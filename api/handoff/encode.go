package handoff

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/tokenrouter/tokenrouter/api/routing"
)

// Flags of Handoff and Progress: which sections follow the tokens.
const (
	flagDone = 1 << iota
	flagSeen
	flagState
	flagBlob
	flagFirst
	flagLogprobs
	// flagOverride says that a First ends with an Override. Peers that do not know
	// it refuse the frame.
	flagOverride
	// flagVersion says that a First has a Version behind that. Peers that do not know
	// it refuse the frame.
	flagVersion
)

// flagOldest, of a Hello, says that the oldest version follows the newest one.
const flagOldest = 1

// Parts of an encoded Override.
const (
	overrideThreshold = 1 << iota
	overrideShare
	overrideParts = 1<<iota - 1
)

// Flags that a kind may carry.
const (
	handoffFlags  = flagDone | flagSeen | flagState | flagBlob | flagFirst | flagLogprobs | flagOverride | flagVersion
	progressFlags = flagSeen | flagState | flagLogprobs
)

const (
	tokenSize    = 5 // id and model
	topEntrySize = 8 // id and log-probability
	biasSize     = 8 // id and value
)

// Append appends the encoding of f to dst. It returns dst unchanged and an
// error if f breaks a limit or holds a field that its kind does not carry.
func Append(dst []byte, f *Frame) ([]byte, error) {
	if err := check(f); err != nil {
		return dst, err
	}
	n := len(dst)
	out := dst
	switch f.Kind {
	case KindHello:
		out = appendHello(out, f)
	case KindAck:
		out = append(out, byte(KindAck), 0)
		out = binary.LittleEndian.AppendUint64(out, f.Ack)
		out = binary.LittleEndian.AppendUint32(out, f.Credits)
	case KindGroup:
		out = append(out, byte(KindGroup), 0)
		out = binary.LittleEndian.AppendUint64(out, f.Seq)
		out = binary.LittleEndian.AppendUint32(appendInt32(out, f.Live), f.StepMicros)
	default:
		out = appendTurn(out, f)
	}
	if len(out)-n > MaxFrameSize {
		return dst, fmt.Errorf("%w: %d bytes", ErrTooLarge, len(out)-n)
	}
	return out, nil
}

func appendHello(dst []byte, f *Frame) []byte {
	if f.OldestVersion == 0 {
		dst = append(dst, byte(KindHello), 0)
		dst = binary.LittleEndian.AppendUint16(dst, f.ProtocolVersion)
	} else {
		dst = append(dst, byte(KindHello), flagOldest)
		dst = binary.LittleEndian.AppendUint16(dst, f.ProtocolVersion)
		dst = binary.LittleEndian.AppendUint16(dst, f.OldestVersion)
	}
	dst = binary.LittleEndian.AppendUint64(dst, f.Session)
	dst = binary.LittleEndian.AppendUint64(dst, f.PeerSession)
	dst = binary.LittleEndian.AppendUint64(dst, f.Ack)
	dst = binary.LittleEndian.AppendUint32(dst, f.Credits)
	dst = appendString(dst, f.Replica)
	return appendString(dst, f.Model)
}

func appendTurn(dst []byte, f *Frame) []byte {
	dst = append(dst, byte(f.Kind), flagsOf(f))
	dst = binary.LittleEndian.AppendUint64(dst, f.Seq)
	dst = binary.LittleEndian.AppendUint64(dst, f.Request)
	dst = binary.LittleEndian.AppendUint32(dst, f.Epoch)
	dst = binary.LittleEndian.AppendUint32(dst, f.Hop)
	dst = append(dst, f.From, f.To)
	switch f.Kind {
	case KindNack:
		return appendInt32(dst, f.Known)
	case KindRelease:
		dst = append(dst, byte(f.Done))
		return appendString(dst, f.Code)
	}
	dst = appendInt32(dst, f.Base)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(f.Tokens)))
	for _, t := range f.Tokens {
		dst = append(appendInt32(dst, t.ID), t.Model)
	}
	if f.Done != NotDone {
		dst = append(dst, byte(f.Done))
	}
	if len(f.Seen) > 0 {
		dst = append(dst, byte(len(f.Seen)))
		for _, n := range f.Seen {
			dst = appendInt32(dst, n)
		}
	}
	if len(f.State) > 0 {
		dst = append(append(dst, byte(len(f.State))), f.State...)
	}
	if len(f.Blob) > 0 {
		dst = append(binary.LittleEndian.AppendUint16(dst, uint16(len(f.Blob))), f.Blob...)
	}
	if f.First != nil {
		dst = appendFirst(dst, f.First)
	}
	if f.First != nil && !f.First.Override.Empty() {
		dst = appendOverride(dst, f.First.Override)
	}
	if f.First != nil && f.First.Version != 0 {
		dst = binary.LittleEndian.AppendUint64(dst, f.First.Version)
	}
	for i := range f.Logprobs {
		dst = appendLogprob(dst, &f.Logprobs[i])
	}
	return dst
}

func appendFirst(dst []byte, x *First) []byte {
	p := &x.Sampling
	dst = appendString(dst, x.Deployment)
	dst = appendInt32(dst, x.PromptLen)
	dst = appendString(dst, x.Entry)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(x.Age))
	dst = append(dst, x.Salt[:]...)
	dst = appendFloat32(dst, p.Temperature)
	dst = appendFloat32(dst, p.TopP)
	dst = appendInt32(dst, p.TopK)
	dst = binary.LittleEndian.AppendUint64(dst, p.Seed)
	dst = appendInt32(dst, p.MaxTokens)
	dst = appendInt32(dst, p.Logprobs)
	dst = append(dst, byte(len(p.StopIDs)))
	for _, id := range p.StopIDs {
		dst = appendInt32(dst, id)
	}
	dst = appendFloat32(dst, p.MinP)
	dst = appendFloat32(dst, p.RepetitionPenalty)
	dst = appendFloat32(dst, p.FrequencyPenalty)
	dst = appendFloat32(dst, p.PresencePenalty)
	dst = appendInt32(dst, p.MinTokens)
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(p.LogitBias)))
	for _, b := range p.LogitBias {
		dst = appendFloat32(appendInt32(dst, b.ID), b.Value)
	}
	return dst
}

// appendOverride appends policy str8, parts u8, [threshold f64], [share f64].
func appendOverride(dst []byte, o *routing.Override) []byte {
	dst = append(appendString(dst, o.Policy), 0)
	at := len(dst) - 1
	for _, p := range []struct {
		bit   byte
		value *float64
	}{{overrideThreshold, o.Threshold}, {overrideShare, o.MaxLargeShare}} {
		if p.value != nil {
			dst[at] |= p.bit
			dst = binary.LittleEndian.AppendUint64(dst, math.Float64bits(*p.value))
		}
	}
	return dst
}

func appendLogprob(dst []byte, l *Logprob) []byte {
	dst = append(appendFloat32(dst, l.Logprob), byte(len(l.Top)))
	for _, t := range l.Top {
		dst = appendFloat32(appendInt32(dst, t.ID), t.Logprob)
	}
	return dst
}

func appendString(dst []byte, s string) []byte { return append(append(dst, byte(len(s))), s...) }

func appendInt32(dst []byte, v int32) []byte {
	return binary.LittleEndian.AppendUint32(dst, uint32(v))
}

func appendFloat32(dst []byte, v float32) []byte {
	return binary.LittleEndian.AppendUint32(dst, math.Float32bits(v))
}

// flagsOf says which sections of f are not empty.
func flagsOf(f *Frame) byte {
	if f.Kind != KindHandoff && f.Kind != KindProgress {
		return 0
	}
	var b byte
	if f.Done != NotDone {
		b |= flagDone
	}
	if len(f.Seen) > 0 {
		b |= flagSeen
	}
	if len(f.State) > 0 {
		b |= flagState
	}
	if len(f.Blob) > 0 {
		b |= flagBlob
	}
	if f.First != nil {
		b |= flagFirst
		if !f.First.Override.Empty() {
			b |= flagOverride
		}
		if f.First.Version != 0 {
			b |= flagVersion
		}
	}
	if len(f.Logprobs) > 0 {
		b |= flagLogprobs
	}
	return b
}
