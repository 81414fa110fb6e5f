package generate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// ErrMalformed says that an event's bytes break the format.
var ErrMalformed = errors.New("generate: malformed event")

// ErrTooLarge says that a value is over a limit of this package.
var ErrTooLarge = errors.New("generate: over a size limit")

// Token flags in an encoded event.
const (
	tokenHasText = 1 << iota
	tokenHasLogprob
	tokenFlags = 1<<iota - 1
)

// Flags in the byte turn of EventTokens.
const (
	turnChanged = 1 << iota
	turnAlone
	turnFlags = 1<<iota - 1
)

// versionFollows is added to the number of models of EventAdmitted.
const versionFollows = 0x80

// AppendEvent appends the encoding of e (without a length prefix) to dst. All
// numbers are little-endian; floats travel as their bits; strings and lists
// carry their length first:
//
//	event    = kind u8, epoch u32, body
//	admitted = ids (u32 n, n × i32), replica str16, models (u8 n, 128 more if a version follows; n × str16), [version u64, not 0]
//	tokens   = base i32, cached i32, turn u8 (1: it has changed, 2: alone), owner u8, state (u8 n, bytes), u32 n, n × token
//	prompt   = base i32, cached i32, u32 n, n × token
//	token    = id i32, model u8, flags u8, [text str16],
//	           [bytes str16, logprob f32, u8 n, n × (id i32, logprob f32, text str16, bytes str16)]
//	finish   = finish u8, cached i32, tail str16
//	alive    = nothing
//	error    = code str16, message str16, param str16, retryable u8
//
// It returns ErrTooLarge, and dst as it was, if a part of e is over its limit.
func AppendEvent(dst []byte, e *Event) ([]byte, error) {
	a := appender{b: dst}
	a.u8(uint8(e.Kind))
	a.u32(e.Epoch)
	switch e.Kind {
	case EventAdmitted:
		a.admitted(e)
	case EventTokens:
		a.tokens(e)
	case EventPrompt:
		a.i32(e.Base)
		a.i32(e.Cached)
		a.list(e.Tokens)
	case EventAlive:
	case EventFinish:
		a.u8(uint8(e.Finish))
		a.i32(e.Cached)
		a.str(e.Tail, MaxText)
	case EventError:
		a.fail(e.Err)
	default:
		return dst, fmt.Errorf("%w: kind %d", ErrMalformed, e.Kind)
	}
	if a.err != nil {
		return dst, a.err
	}
	if len(a.b)-len(dst) > MaxEventBytes {
		return dst, fmt.Errorf("%w: event of %d bytes", ErrTooLarge, len(a.b)-len(dst))
	}
	return a.b, nil
}

// appender builds an encoding and keeps the first error.
type appender struct {
	b   []byte
	err error
}

func (a *appender) u8(v uint8)    { a.b = append(a.b, v) }
func (a *appender) u32(v uint32)  { a.b = binary.LittleEndian.AppendUint32(a.b, v) }
func (a *appender) i32(v int32)   { a.u32(uint32(v)) }
func (a *appender) f32(v float32) { a.u32(math.Float32bits(v)) }

func (a *appender) bool(v bool) {
	if v {
		a.u8(1)
	} else {
		a.u8(0)
	}
}

// within notes ErrTooLarge if n is over limit.
func (a *appender) within(n, limit int, what string) bool {
	if n > limit {
		if a.err == nil {
			a.err = fmt.Errorf("%w: %s of %d, limit %d", ErrTooLarge, what, n, limit)
		}
		return false
	}
	return true
}

func (a *appender) str(s string, limit int) {
	if a.within(len(s), limit, "string") {
		a.b = binary.LittleEndian.AppendUint16(a.b, uint16(len(s)))
		a.b = append(a.b, s...)
	}
}

func (a *appender) raw(s []byte) {
	if a.within(len(s), MaxText, "bytes") {
		a.b = binary.LittleEndian.AppendUint16(a.b, uint16(len(s)))
		a.b = append(a.b, s...)
	}
}

func (a *appender) admitted(e *Event) {
	if !a.within(len(e.PromptIDs), MaxIDs, "prompt") || !a.within(len(e.Models), MaxModels, "models") {
		return
	}
	a.u32(uint32(len(e.PromptIDs)))
	for _, id := range e.PromptIDs {
		a.i32(id)
	}
	a.str(e.Replica, MaxName)
	n := uint8(len(e.Models))
	if e.Version != 0 {
		n |= versionFollows
	}
	a.u8(n)
	for _, m := range e.Models {
		a.str(m, MaxName)
	}
	if e.Version != 0 {
		a.b = binary.LittleEndian.AppendUint64(a.b, e.Version)
	}
}

func (a *appender) tokens(e *Event) {
	if !a.within(len(e.State), MaxState, "policy state") {
		return
	}
	a.i32(e.Base)
	a.i32(e.Cached)
	var turn uint8
	if e.Turn {
		turn |= turnChanged
	}
	if e.Alone {
		turn |= turnAlone
	}
	a.u8(turn)
	a.u8(e.Owner)
	a.u8(uint8(len(e.State)))
	a.b = append(a.b, e.State...)
	a.list(e.Tokens)
}

func (a *appender) list(tokens []TokenEvent) {
	if !a.within(len(tokens), MaxBatch, "tokens") {
		return
	}
	a.u32(uint32(len(tokens)))
	for i := range tokens {
		a.token(&tokens[i])
	}
}

func (a *appender) token(t *TokenEvent) {
	var flags uint8
	if t.Text != "" {
		flags |= tokenHasText
	}
	if math.Float32bits(t.Logprob) != 0 || len(t.Bytes) > 0 || len(t.Top) > 0 {
		flags |= tokenHasLogprob
	}
	a.i32(t.ID)
	a.u8(t.Model)
	a.u8(flags)
	if flags&tokenHasText != 0 {
		a.str(t.Text, MaxText)
	}
	if flags&tokenHasLogprob == 0 || !a.within(len(t.Top), MaxTop, "alternatives") {
		return
	}
	a.raw(t.Bytes)
	a.f32(t.Logprob)
	a.u8(uint8(len(t.Top)))
	for i := range t.Top {
		top := &t.Top[i]
		a.i32(top.ID)
		a.f32(top.Logprob)
		a.str(top.Text, MaxText)
		a.raw(top.Bytes)
	}
}

func (a *appender) fail(e *Error) {
	if e == nil {
		a.err = fmt.Errorf("%w: error event without an error", ErrMalformed)
		return
	}
	a.str(e.Code, MaxName)
	a.str(e.Message, MaxText)
	a.str(e.Param, MaxName)
	a.bool(e.Retryable)
}
