package handoff

import "fmt"

// Verdict is what a Fence says of a frame.
type Verdict uint8

const (
	// Refuse: do not apply; the error says why.
	Refuse Verdict = iota
	// Apply: the frame is new. Apply it, but for the first Overlap tokens.
	Apply
	// Duplicate: the frame was applied before. Acknowledge it, change nothing.
	Duplicate
)

// Fence decides for one request, on one side, which turn frames are applied. It
// is pure: no clock, no lock, no I/O. The zero value has applied nothing.
//
// Turns are ordered by (epoch, hop). Within the newest turn the first frame of
// each kind is applied, and every later one must be equal (Seq aside). Progress
// is compared by position instead, since a turn has many: the part already known must be
// equal, the rest is new. A Release ends its epoch.
//
//	frame's (epoch, hop)          verdict
//	newer epoch                   Apply
//	newer hop, not released       Apply; tokens that overlap progress must be equal, else ErrConflict
//	same, kind not seen yet       Apply
//	same, equal                   Duplicate
//	same, different               ErrConflict
//	same, progress with a gap     ErrGap
//	progress from before the run  ErrConflict
//	older, or epoch released      ErrStale (an equal Release is a Duplicate)
type Fence struct {
	epoch, hop uint32
	started    bool
	released   bool
	// seen and digest say which kinds were applied in the newest turn, and what
	// they held; progress has no digest.
	seen   [KindAck + 1]bool
	digest [KindAck + 1]uint64
	// ledger is the newest unbroken run of tokens that progress reported in this
	// epoch, from position base on. What overlaps it later must be equal.
	base    int32
	ledger  []Token
	overlap int
}

// Epoch and Hop are the newest turn applied.
func (x *Fence) Epoch() uint32 { return x.epoch }

// Hop is the newest turn's hop.
func (x *Fence) Hop() uint32 { return x.hop }

// Released reports whether a Release of the newest epoch was applied.
func (x *Fence) Released() bool { return x.released }

// Overlap is the number of leading tokens of the last frame that got Apply
// which earlier progress of the epoch has reported already. They were compared
// and are equal.
func (x *Fence) Overlap() int { return x.overlap }

// Check says whether f, a valid turn frame of the fence's request, is applied,
// and if so remembers it as applied. With Refuse the error is ErrStale,
// ErrConflict, ErrGap or ErrKind, and the fence is unchanged.
func (x *Fence) Check(f *Frame) (Verdict, error) {
	if f.Kind < KindHandoff || f.Kind > KindRelease {
		return Refuse, fmt.Errorf("%w: a fence takes turn frames, not %s", ErrKind, f.Kind)
	}
	if !x.started || f.Epoch > x.epoch {
		*x = Fence{epoch: f.Epoch, hop: f.Hop, started: true, ledger: x.ledger[:0]}
		x.apply(f, 0)
		return Apply, nil
	}
	same := f.Epoch == x.epoch && f.Hop == x.hop
	if same && x.seen[f.Kind] && f.Kind != KindProgress {
		if x.digest[f.Kind] != digest(f) {
			return Refuse, x.refuse(ErrConflict, f)
		}
		return Duplicate, nil
	}
	if f.Epoch < x.epoch || f.Hop < x.hop || x.released {
		return Refuse, x.refuse(ErrStale, f)
	}
	n, err := x.compare(f)
	if err != nil {
		return Refuse, err
	}
	if same && f.Kind == KindProgress && x.seen[KindProgress] && n == len(f.Tokens) {
		return Duplicate, nil
	}
	if !same {
		x.hop = f.Hop
		x.seen = [KindAck + 1]bool{}
	}
	x.apply(f, n)
	return Apply, nil
}

// compare returns how many leading tokens of f the ledger holds already.
func (x *Fence) compare(f *Frame) (int, error) {
	if len(x.ledger) == 0 || (f.Kind != KindHandoff && f.Kind != KindProgress) {
		return 0, nil
	}
	base, end := int(f.Base), int(x.base)+len(x.ledger)
	if f.Kind == KindProgress {
		switch {
		case f.Base < x.base:
			return 0, x.refuse(ErrConflict, f)
		case base > end && x.seen[KindProgress] && f.Hop == x.hop:
			return 0, x.refuse(ErrGap, f)
		}
	}
	// Positions that both hold are [from, to).
	from, to := max(int(x.base), base), min(end, base+len(f.Tokens))
	for p := from; p < to; p++ {
		if x.ledger[p-int(x.base)] != f.Tokens[p-base] {
			return 0, x.refuse(ErrConflict, f)
		}
	}
	if from > base || to <= from {
		return 0, nil
	}
	return to - base, nil
}

// apply records f, whose first n tokens are in the ledger, as applied.
func (x *Fence) apply(f *Frame, n int) {
	x.overlap = n
	x.seen[f.Kind] = true
	switch f.Kind {
	case KindProgress:
		if len(x.ledger) == 0 || int(f.Base) > int(x.base)+len(x.ledger) {
			x.base, x.ledger = f.Base, x.ledger[:0]
		}
		x.ledger = append(x.ledger, f.Tokens[n:]...)
		return
	case KindRelease:
		x.released, x.ledger = true, nil
	}
	x.digest[f.Kind] = digest(f)
}

func (x *Fence) refuse(err error, f *Frame) error {
	return fmt.Errorf("%w: %s of epoch %d hop %d at epoch %d hop %d", err, f.Kind, f.Epoch, f.Hop, x.epoch, x.hop)
}
