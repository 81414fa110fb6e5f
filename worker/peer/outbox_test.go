package peer

import (
	"bytes"
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/tokenrouter/tokenrouter/api/handoff"
)

// The outbox gives the same bytes as a plain list of frames, and its memory
// stays in proportion to what it holds.
func TestOutboxModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := outbox{first: 1}
		frames := [][]byte{nil} // by Seq
		first := uint64(1)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			last := uint64(len(frames) - 1)
			switch rapid.IntRange(0, 2).Draw(t, "step") {
			case 0:
				f := handoff.Frame{
					Kind: handoff.KindHandoff, Request: last,
					Tokens: make([]handoff.Token, rapid.IntRange(0, 300).Draw(t, "tokens")),
				}
				if err := o.push(&f); err != nil {
					t.Fatal(err)
				}
				f.Seq = last + 1
				b, err := handoff.AppendFramed(nil, &f)
				if err != nil {
					t.Fatal(err)
				}
				frames = append(frames, b)
			case 1:
				seq := rapid.Uint64Range(first-1, last).Draw(t, "ack")
				o.ack(seq)
				first = seq + 1
			case 2:
				seq := rapid.Uint64Range(first, last+1).Draw(t, "from")
				limit := rapid.Uint64Range(0, last+3).Draw(t, "limit")
				size := rapid.IntRange(0, 3000).Draw(t, "size")
				got, next := o.take([]byte("x"), seq, limit, size)
				want, to := []byte("x"), seq
				for ; to <= min(limit, last); to++ {
					if len(want) > 1 && len(want)-1+len(frames[to]) > size {
						break
					}
					want = append(want, frames[to]...)
				}
				if !bytes.Equal(got, want) || next != to {
					t.Fatalf("take from %d, limit %d, size %d: %d bytes, next %d; want %d, %d", seq, limit, size, len(got), next, len(want), to)
				}
			}
			held := 0
			for _, b := range frames[first:] {
				held += len(b)
			}
			if o.frames() != len(frames)-int(first) || o.bytes() != held || o.last() != uint64(len(frames)-1) {
				t.Fatalf("%d frames, %d bytes, last %d", o.frames(), o.bytes(), o.last())
			}
			if len(o.buf) > 2*held+1600 {
				t.Fatalf("%d bytes for %d", len(o.buf), held)
			}
		}
	})
}

// A peer may not send more than it was granted, nor skip or leave out a number.
func TestReceive(t *testing.T) {
	l := newLink(&Config{Limits: Limits{Window: 2}}, 1)
	if h := l.hello(); h.Credits != 2 || h.Ack != 0 {
		t.Fatalf("hello grants %d after %d", h.Credits, h.Ack)
	}
	for _, c := range []struct {
		seq    uint64
		handle bool
		err    error
	}{
		{0, false, ErrProtocol},
		{2, false, ErrProtocol},
		{1, true, nil},
		{1, false, nil},
		{2, true, nil},
		{1, false, nil},
		{4, false, ErrProtocol},
		{3, false, ErrProtocol}, // beyond the credits
	} {
		handle, err := l.receive(c.seq)
		if handle != c.handle || !errors.Is(err, c.err) {
			t.Errorf("frame %d: %v, %v", c.seq, handle, err)
		}
	}
	if h := l.hello(); h.Ack != 2 {
		t.Errorf("a new hello acknowledges %d", h.Ack)
	}
	if handle, err := l.receive(3); !handle || err != nil {
		t.Errorf("frame 3, granted by the new hello: %v, %v", handle, err)
	}
}
