package peer

import (
	"github.com/tokenrouter/tokenrouter/api/handoff"
)

// outbox holds the encoded frames that the other side has not acknowledged, in
// order, each with its length prefix. Frames that were sent once stay until
// acknowledged, so that they can be sent again. Its link's lock guards it.
//
// Positions are absolute: byte 0 is the first byte ever queued.
type outbox struct {
	buf []byte // bytes [off, off+len(buf))
	off uint64
	// ends[lo:] are the end positions of the unacknowledged frames; ends[lo] is frame first.
	ends  []uint64
	lo    int
	first uint64 // Seq of ends[lo]; 1 at the start
	start uint64 // position of frame first
}

func (o *outbox) frames() int { return len(o.ends) - o.lo }
func (o *outbox) bytes() int  { return int(o.off + uint64(len(o.buf)) - o.start) }

// last is the newest Seq queued, 0 if none ever was.
func (o *outbox) last() uint64 { return o.first + uint64(o.frames()) - 1 }

// push queues a copy of f with the next Seq. f is not changed.
func (o *outbox) push(f *handoff.Frame) error {
	g := *f
	g.Seq = o.last() + 1
	buf, err := handoff.AppendFramed(o.buf, &g)
	if err != nil {
		return err
	}
	o.buf = buf
	o.ends = append(o.ends, o.off+uint64(len(buf)))
	return nil
}

// ack forgets the frames up to seq. The caller has checked that first-1 <= seq <= last.
func (o *outbox) ack(seq uint64) {
	n := int(seq - (o.first - 1))
	if n == 0 {
		return
	}
	o.start = o.ends[o.lo+n-1]
	o.lo += n
	o.first = seq + 1
	o.compact()
}

// compact moves the rest to the front once the dead part is the larger one, so
// that each byte is moved at most once per halving.
func (o *outbox) compact() {
	const keep = 1 << 20 // capacity that an idle outbox may hold on to, bytes
	dead := int(o.start - o.off)
	if dead*2 >= len(o.buf) {
		rest := o.buf[dead:]
		if len(rest) == 0 && cap(o.buf) > keep {
			o.buf = nil
		} else {
			o.buf = o.buf[:copy(o.buf, rest)]
		}
		o.off = o.start
	}
	if o.lo*2 >= len(o.ends) {
		o.ends = o.ends[:copy(o.ends, o.ends[o.lo:])]
		o.lo = 0
	}
}

// take appends to dst the frames from seq on, as many as are allowed by limit
// (the last Seq that may be sent) and size (bytes, but at least one frame). It
// returns dst and the Seq that follows.
func (o *outbox) take(dst []byte, seq, limit uint64, size int) ([]byte, uint64) {
	limit = min(limit, o.last())
	if seq > limit {
		return dst, seq
	}
	from := o.start
	if i := seq - o.first; i > 0 {
		from = o.ends[o.lo+int(i)-1]
	}
	to := from
	for ; seq <= limit; seq++ {
		end := o.ends[o.lo+int(seq-o.first)]
		if to > from && end-from > uint64(size) {
			break
		}
		to = end
	}
	return append(dst, o.buf[from-o.off:to-o.off]...), seq
}
