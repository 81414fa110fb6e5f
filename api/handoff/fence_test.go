package handoff

import (
	"bytes"
	"errors"
	"testing"

	"pgregory.net/rapid"
)

func toks(ids ...int32) []Token {
	out := make([]Token, len(ids))
	for i, id := range ids {
		out[i] = Token{ID: id, Model: 1}
	}
	return out
}

func turn(k Kind, epoch, hop uint32, base int32, ids ...int32) Frame {
	return Frame{Kind: k, Request: 1, Epoch: epoch, Hop: hop, Base: base, Tokens: toks(ids...)}
}

func end(epoch, hop uint32, d Done) Frame {
	return Frame{Kind: KindRelease, Request: 1, Epoch: epoch, Hop: hop, Done: d}
}

func TestFence(t *testing.T) {
	const H, P, N = KindHandoff, KindProgress, KindNack
	type step struct {
		f       Frame
		verdict Verdict
		err     error
		overlap int // of an Apply
	}
	nack := func(hop uint32, known int32) Frame {
		return Frame{Kind: N, Request: 1, Epoch: 1, Hop: hop, Known: known}
	}
	state := turn(H, 1, 1, 0, 1)
	state.State = []byte{1}
	renumbered := turn(H, 1, 1, 0, 1)
	renumbered.Seq = 99
	cases := map[string][]step{
		"first frame of any turn": {{f: turn(H, 7, 9, 0, 1), verdict: Apply}},
		"newer hops":              {{f: turn(H, 1, 1, 0, 1), verdict: Apply}, {f: turn(H, 1, 3, 1, 2), verdict: Apply}},
		"older hop":               {{f: turn(H, 1, 3, 0, 1), verdict: Apply}, {f: turn(H, 1, 2, 0, 1), err: ErrStale}},
		"older epoch, newer hop":  {{f: turn(H, 2, 1, 0, 1), verdict: Apply}, {f: turn(H, 1, 9, 0, 1), err: ErrStale}},
		"newer epoch, older hop":  {{f: turn(H, 1, 9, 0, 1), verdict: Apply}, {f: turn(H, 2, 1, 0, 1), verdict: Apply}},
		"last epoch":              {{f: turn(H, 1<<32-1, 1<<32-1, 0, 1), verdict: Apply}, {f: turn(H, 0, 0, 0, 1), err: ErrStale}},
		"duplicate":               {{f: turn(H, 1, 1, 0, 1), verdict: Apply}, {f: turn(H, 1, 1, 0, 1), verdict: Duplicate}},
		"duplicate, other number": {{f: turn(H, 1, 1, 0, 1), verdict: Apply}, {f: renumbered, verdict: Duplicate}},
		"conflict of tokens":      {{f: turn(H, 1, 1, 0, 1), verdict: Apply}, {f: turn(H, 1, 1, 0, 2), err: ErrConflict}},
		"conflict of base":        {{f: turn(H, 1, 1, 0, 1), verdict: Apply}, {f: turn(H, 1, 1, 1, 1), err: ErrConflict}},
		"conflict of state":       {{f: turn(H, 1, 1, 0, 1), verdict: Apply}, {f: state, err: ErrConflict}},
		"after a conflict":        {{f: turn(H, 1, 1, 0, 1), verdict: Apply}, {f: turn(H, 1, 1, 0, 2), err: ErrConflict}, {f: turn(H, 1, 1, 0, 1), verdict: Duplicate}},
		"progress": {
			{f: turn(P, 1, 1, 5, 10, 11), verdict: Apply},
			{f: turn(P, 1, 1, 7, 12), verdict: Apply},
			{f: turn(P, 1, 1, 5, 10, 11), verdict: Duplicate},
			{f: turn(P, 1, 1, 6, 11, 12, 13), verdict: Apply, overlap: 2},
			{f: turn(P, 1, 1, 6, 11, 9), err: ErrConflict},
			{f: turn(P, 1, 1, 10, 14), err: ErrGap},
			{f: turn(P, 1, 1, 4, 9, 10), err: ErrConflict},
			{f: turn(P, 1, 1, 9), verdict: Duplicate},
			{f: turn(P, 1, 1, 9, 14), verdict: Apply},
		},
		"progress, then the turn back": {
			{f: turn(P, 1, 1, 5, 10, 11), verdict: Apply},
			{f: turn(H, 1, 2, 5, 10, 11, 12), verdict: Apply, overlap: 2},
			{f: turn(H, 1, 2, 5, 10, 11, 12), verdict: Duplicate},
			{f: turn(P, 1, 1, 7, 12), err: ErrStale},
		},
		"turn back without what progress said": {
			{f: turn(P, 1, 1, 5, 10, 11), verdict: Apply},
			{f: turn(H, 1, 2, 7, 12), verdict: Apply},
		},
		"turn back contradicts progress": {
			{f: turn(P, 1, 1, 5, 10, 11), verdict: Apply},
			{f: turn(H, 1, 2, 4, 9, 10, 12), err: ErrConflict},
			{f: turn(H, 1, 2, 4, 9, 10, 11), verdict: Apply},
		},
		"progress of a later hop": {
			{f: turn(P, 1, 1, 5, 10), verdict: Apply},
			{f: turn(H, 1, 2, 6, 11), verdict: Apply},
			{f: turn(P, 1, 3, 9, 14), verdict: Apply},
			{f: turn(P, 1, 3, 9, 15), err: ErrConflict},
		},
		"new epoch forgets progress": {
			{f: turn(P, 1, 1, 5, 10), verdict: Apply},
			{f: turn(P, 2, 1, 5, 77), verdict: Apply},
		},
		"hand-off and nack of one hop": {
			{f: turn(H, 1, 1, 0, 1), verdict: Apply},
			{f: nack(1, 0), verdict: Apply},
			{f: nack(1, 0), verdict: Duplicate},
			{f: nack(1, 5), err: ErrConflict},
		},
		"release": {
			{f: turn(H, 1, 4, 0, 1), verdict: Apply},
			{f: end(1, 3, DoneStop), err: ErrStale},
			{f: end(1, 4, DoneStop), verdict: Apply},
			{f: end(1, 4, DoneStop), verdict: Duplicate},
			{f: end(1, 4, DoneAbort), err: ErrConflict},
			{f: turn(H, 1, 4, 0, 1), verdict: Duplicate},
			{f: turn(H, 1, 5, 0, 1), err: ErrStale},
			{f: turn(P, 1, 4, 0, 1), err: ErrStale},
			{f: turn(H, 2, 1, 0, 1), verdict: Apply},
		},
		"not a turn": {{f: Frame{Kind: KindAck}, err: ErrKind}, {f: Frame{Kind: KindHello}, err: ErrKind}, {f: Frame{}, err: ErrKind}},
	}
	for name, steps := range cases {
		t.Run(name, func(t *testing.T) {
			var x Fence
			for i, s := range steps {
				v, err := x.Check(&s.f)
				if v != s.verdict || !errors.Is(err, s.err) {
					t.Fatalf("step %d: verdict %d, error %v; want %d, %v", i, v, err, s.verdict, s.err)
				}
				if v == Apply && x.Overlap() != s.overlap {
					t.Fatalf("step %d: overlap %d, want %d", i, x.Overlap(), s.overlap)
				}
			}
		})
	}
}

// slowFence decides from the list of all applied frames.
type slowFence struct{ applied []Frame }

func (s *slowFence) check(f *Frame) (Verdict, error) {
	var newest *Frame // of the newest turn
	released := false
	for i := range s.applied {
		a := &s.applied[i]
		if newest == nil || a.Epoch > newest.Epoch || a.Epoch == newest.Epoch && a.Hop > newest.Hop {
			if newest == nil || a.Epoch > newest.Epoch {
				released = false
			}
			newest = a
		}
		if a.Kind == KindRelease && a.Epoch == newest.Epoch {
			released = true
		}
	}
	if newest == nil || f.Epoch > newest.Epoch {
		return Apply, nil
	}
	same := f.Epoch == newest.Epoch && f.Hop == newest.Hop
	progressed := false
	known, from, to := map[int]Token{}, 0, 0 // positions [from, to) of the newest run
	for _, a := range s.applied {
		if a.Epoch != newest.Epoch {
			continue
		}
		if same && a.Kind == f.Kind && a.Hop == f.Hop {
			if f.Kind != KindProgress {
				if bytes.Equal(encode(&a), encode(f)) {
					return Duplicate, nil
				}
				return Refuse, ErrConflict
			}
			progressed = true
		}
		if a.Kind == KindProgress {
			if len(known) == 0 || int(a.Base) > to {
				clear(known)
				from, to = int(a.Base), int(a.Base)
			}
			for i, tok := range a.Tokens {
				known[int(a.Base)+i] = tok
			}
			to = max(to, int(a.Base)+len(a.Tokens))
		}
	}
	if f.Epoch < newest.Epoch || f.Hop < newest.Hop || released {
		return Refuse, ErrStale
	}
	fresh := false
	if f.Kind == KindHandoff || f.Kind == KindProgress {
		if f.Kind == KindProgress && len(known) > 0 && int(f.Base) < from {
			return Refuse, ErrConflict
		}
		if progressed && len(known) > 0 && int(f.Base) > to {
			return Refuse, ErrGap
		}
		for i, tok := range f.Tokens {
			old, ok := known[int(f.Base)+i]
			if ok && old != tok {
				return Refuse, ErrConflict
			}
			fresh = fresh || !ok
		}
	}
	if progressed && !fresh {
		return Duplicate, nil
	}
	return Apply, nil
}

func encode(f *Frame) []byte {
	g := *f
	g.Seq = 0
	b, err := Append(nil, &g)
	if err != nil {
		panic(err)
	}
	return b
}

// On any sequence of frames, the fence and the slow fence agree, and no frame
// is applied twice.
func TestFenceModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var x Fence
		var slow slowFence
		var sent []Frame
		for range rapid.IntRange(1, 40).Draw(t, "frames") {
			var f Frame
			if len(sent) > 0 && rapid.IntRange(0, 2).Draw(t, "replay") == 0 {
				f = sent[rapid.IntRange(0, len(sent)-1).Draw(t, "which")]
				f.Seq++
			} else {
				f = drawTurn(t)
			}
			sent = append(sent, f)
			want, wantErr := slow.check(&f)
			got, err := x.Check(&f)
			if got != want || !errors.Is(err, wantErr) {
				t.Fatalf("%+v: verdict %d, error %v; want %d, %v", f, got, err, want, wantErr)
			}
			if got != Apply {
				continue
			}
			for _, a := range slow.applied {
				if f.Kind != KindProgress && bytes.Equal(encode(&a), encode(&f)) {
					t.Fatalf("applied twice: %+v", f)
				}
			}
			slow.applied = append(slow.applied, f)
		}
	})
}

// drawTurn draws from few values, so that turns meet.
func drawTurn(t *rapid.T) Frame {
	f := Frame{
		Request: 1,
		Kind:    Kind(rapid.IntRange(int(KindHandoff), int(KindRelease)).Draw(t, "kind")),
		Epoch:   rapid.Uint32Range(0, 2).Draw(t, "epoch"),
		Hop:     rapid.Uint32Range(0, 3).Draw(t, "hop"),
	}
	switch f.Kind {
	case KindNack:
		f.Known = rapid.Int32Range(0, 1).Draw(t, "known")
	case KindRelease:
		f.Done = Done(rapid.IntRange(1, 2).Draw(t, "done"))
	default:
		f.Base = rapid.Int32Range(0, 6).Draw(t, "base")
		// Mostly the one true text, so that overlaps are often equal.
		for i := range rapid.Int32Range(0, 4).Draw(t, "tokens") {
			f.Tokens = append(f.Tokens, Token{ID: 100 + f.Base + i, Model: uint8(rapid.IntRange(0, 9).Draw(t, "model") / 9)})
		}
	}
	return f
}
