package handoff

import (
	"encoding/binary"
	"fmt"
	"math"
	"unicode"
	"unicode/utf8"

	"github.com/tokenrouter/tokenrouter/api/routing"
	"github.com/tokenrouter/tokenrouter/api/sampling"
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

// cursor reads fixed-size values. Once short is set, all reads give zeros.
type cursor struct {
	b     []byte
	short bool
}

// take returns the next n bytes, or nil and sets short.
func (r *cursor) take(n int) []byte {
	if n > len(r.b) {
		r.b, r.short = nil, true
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *cursor) u8() uint8 {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *cursor) u16() uint16 {
	if b := r.take(2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

func (r *cursor) u32() uint32 {
	if b := r.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *cursor) u64() uint64 {
	if b := r.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (r *cursor) i32() int32   { return int32(r.u32()) }
func (r *cursor) f32() float32 { return math.Float32frombits(r.u32()) }

// str reads a name. One longer than MaxName is caught by check.
func (r *cursor) str() string { return string(r.take(int(r.u8()))) }

// validName reports whether s may be shown in a log as it is.
func validName(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for _, c := range s {
		if !unicode.IsPrint(c) {
			return false
		}
	}
	return true
}
