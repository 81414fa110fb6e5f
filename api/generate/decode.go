package generate

import (
	"encoding/binary"
	"fmt"
	"math"
)

// DecodeEvent decodes one event, which must fill b, into e. Nothing of e
// aliases b afterwards. Slices of e are overwritten and grown as needed, so an
// event may be reused once its fields are no longer looked at. Unused fields
// are zero. Errors wrap ErrMalformed or ErrTooLarge; e is then undefined.
func DecodeEvent(b []byte, e *Event) error {
	*e = Event{PromptIDs: e.PromptIDs[:0], Models: e.Models[:0], Tokens: e.Tokens[:0], State: e.State[:0]}
	d := decoder{b: b}
	e.Kind = EventKind(d.u8())
	e.Epoch = d.u32()
	switch e.Kind {
	case EventAdmitted:
		d.admitted(e)
	case EventTokens:
		d.tokens(e)
	case EventPrompt:
		d.head(e)
		d.list(e)
	case EventAlive:
	case EventFinish:
		e.Finish = Finish(d.u8())
		if e.Finish != FinishStop && e.Finish != FinishLength {
			d.fail("finish")
		}
		e.Cached = d.count32("cached")
		e.Tail = d.str(MaxText)
	case EventError:
		e.Err = &Error{Code: d.str(MaxName), Message: d.str(MaxText), Param: d.str(MaxName), Retryable: d.bool()}
	default:
		d.fail("kind")
	}
	if d.err == nil && len(d.b) != 0 {
		d.fail("trailing bytes")
	}
	return d.err
}

// decoder consumes b and keeps the first error; after it, every read is zero.
type decoder struct {
	b   []byte
	err error
	// text is the rest of b as a string, made once for an event of tokens, so
	// that their texts share one allocation. Invariant: len(text) == len(b) if set.
	text string
}

func (d *decoder) fail(what string) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s", ErrMalformed, what)
	}
	d.b, d.text = nil, ""
}

// take consumes n bytes, or fails.
func (d *decoder) take(n int) []byte {
	if n > len(d.b) {
		d.fail("cut short")
		return nil
	}
	out := d.b[:n]
	d.b = d.b[n:]
	if d.text != "" {
		d.text = d.text[n:]
	}
	return out
}

func (d *decoder) u8() uint8 {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) u16() uint16 {
	if b := d.take(2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

func (d *decoder) u32() uint32 {
	if b := d.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (d *decoder) i32() int32   { return int32(d.u32()) }
func (d *decoder) f32() float32 { return math.Float32frombits(d.u32()) }

func (d *decoder) bool() bool {
	v := d.u8()
	if v > 1 {
		d.fail("boolean")
	}
	return v == 1
}

func (d *decoder) str(limit int) string {
	n := int(d.u16())
	if n > limit {
		d.fail("string over its limit")
		return ""
	}
	text := d.text
	b := d.take(n)
	if n == 0 || b == nil {
		return ""
	}
	if text != "" {
		return text[:n]
	}
	return string(b)
}

// count reads a list's length. Every element takes at least size bytes, so a
// length that the rest of b cannot hold is refused before anything is allocated.
func (d *decoder) count(n, limit, size int) int {
	if n < 0 || n > limit || n*size > len(d.b) {
		d.fail("list length")
		return 0
	}
	return n
}

func (d *decoder) admitted(e *Event) {
	n := d.count(int(d.u32()), MaxIDs, 4)
	ids := d.take(n * 4)
	if n > cap(e.PromptIDs) {
		e.PromptIDs = make([]int32, 0, n)
	}
	for ; len(ids) >= 4; ids = ids[4:] {
		e.PromptIDs = append(e.PromptIDs, int32(binary.LittleEndian.Uint32(ids)))
	}
	e.Replica = d.str(MaxName)
	models := d.u8()
	for range d.count(int(models&^versionFollows), MaxModels, 2) {
		e.Models = append(e.Models, d.str(MaxName))
	}
	if models&versionFollows == 0 {
		return
	}
	if b := d.take(8); b != nil {
		e.Version = binary.LittleEndian.Uint64(b)
	}
	if e.Version == 0 {
		d.fail("version")
	}
}

// count32 reads a number that is not negative.
func (d *decoder) count32(what string) int32 {
	v := d.i32()
	if v < 0 {
		d.fail(what)
		return 0
	}
	return v
}

// head reads what EventTokens and EventPrompt begin with.
func (d *decoder) head(e *Event) {
	if len(d.b) > 0 {
		d.text = string(d.b)
	}
	e.Base = d.count32("base")
	e.Cached = d.count32("cached")
}

func (d *decoder) tokens(e *Event) {
	d.head(e)
	turn := d.u8()
	if turn&^turnFlags != 0 {
		d.fail("turn flags")
	}
	e.Turn, e.Alone = turn&turnChanged != 0, turn&turnAlone != 0
	e.Owner = d.u8()
	e.State = append(e.State, d.take(d.count(int(d.u8()), MaxState, 1))...)
	d.list(e)
}

func (d *decoder) list(e *Event) {
	n := d.count(int(d.u32()), MaxBatch, 6)
	if n > cap(e.Tokens) {
		e.Tokens = make([]TokenEvent, 0, n)
	}
	for range n {
		e.Tokens = append(e.Tokens, d.token())
	}
}

func (d *decoder) token() TokenEvent {
	t := TokenEvent{ID: d.i32(), Model: d.u8()}
	flags := d.u8()
	if flags&^tokenFlags != 0 {
		d.fail("token flags")
	}
	if flags&tokenHasText != 0 {
		t.Text = d.str(MaxText)
	}
	if flags&tokenHasLogprob == 0 {
		return t
	}
	t.Bytes = d.bytes()
	t.Logprob = d.f32()
	n := d.count(int(d.u8()), MaxTop, 12)
	if n == 0 {
		return t
	}
	t.Top = make([]TopLogprob, n)
	for i := range t.Top {
		t.Top[i] = TopLogprob{ID: d.i32(), Logprob: d.f32(), Text: d.str(MaxText), Bytes: d.bytes()}
	}
	return t
}

func (d *decoder) bytes() []byte {
	n := d.count(int(d.u16()), MaxText, 1)
	if n == 0 {
		return nil
	}
	return append([]byte(nil), d.take(n)...)
}
