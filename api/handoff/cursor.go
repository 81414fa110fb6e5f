package handoff

import (
	"encoding/binary"
	"math"
)

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

func (r *cursor) i32() int32 { return int32(r.u32()) }

func (r *cursor) f32() float32 { return math.Float32frombits(r.u32()) }

// str reads a name. One longer than MaxName is caught by check.
func (r *cursor) str() string { return string(r.take(int(r.u8()))) }
