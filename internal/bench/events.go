package bench

import (
	"bytes"
	"errors"
	"io"
	"time"
)

// Bounds on what a server may send.
const (
	// maxEventBytes bounds one event of a stream.
	maxEventBytes = 4 << 20
	// maxReplyBytes bounds an answer that is not streamed, or an error's body.
	maxReplyBytes = 64 << 20
	// startBytes is the first size of a stream's buffer.
	startBytes = 8 << 10
)

// errEventSize says that an event of a stream is larger than maxEventBytes.
var errEventSize = errors.New("an event of the stream is too large")

// event is one event of a stream of server-sent events. Its data is valid until
// the next call of next.
type event struct {
	name []byte
	data []byte
	// at is when the read that completed the event returned.
	at time.Time
}

// events reads server-sent events. Lines end with LF or CR LF. Comments and
// fields that do not matter here are skipped; several data lines are one event's
// data, joined with LF. An event at the end counts without its blank line.
type events struct {
	from  io.Reader
	buf   []byte
	start int // what is before it has been used
	end   int // what is from it on has not been read
	seen  int // no line end in [start, seen)
	at    time.Time
	err   error // what the last read returned
	joint []byte
}

// reset starts a new stream and keeps the buffers.
func (e *events) reset(from io.Reader) {
	if e.buf == nil {
		e.buf = make([]byte, startBytes)
	}
	*e = events{from: from, buf: e.buf, joint: e.joint[:0]}
}

// next returns the next event that has data. At the end of the stream it returns
// io.EOF; an error of the reader is returned after the events before it.
func (e *events) next() (event, error) {
	var out event
	lines := 0
	for {
		line, ok, err := e.line()
		if err != nil {
			return event{}, err
		}
		if !ok || len(line) == 0 {
			if lines > 0 && (ok || e.err == io.EOF) {
				out.at = e.at
				return out, nil
			}
			if !ok {
				return event{}, e.err
			}
			out = event{}
			continue
		}
		name, value := field(line)
		switch string(name) {
		case "event":
			out.name = append([]byte(nil), value...)
		case "data":
			lines++
			if out.data, err = e.join(lines, out.data, value); err != nil {
				return event{}, err
			}
		}
	}
}

// join adds data line number n to what an event has.
func (e *events) join(n int, data, value []byte) ([]byte, error) {
	if n == 1 && e.blankFollows() {
		return value, nil // nothing is read before the event is used, so it stays
	}
	if n > 1 {
		value = append([]byte{'\n'}, value...)
	}
	e.joint = append(e.joint[:len(data)], value...)
	if len(e.joint) > maxEventBytes {
		return nil, errEventSize
	}
	return e.joint, nil
}

// blankFollows says that the blank line which ends the event is in the buffer.
func (e *events) blankFollows() bool {
	rest := e.buf[e.start:e.end]
	return len(rest) > 0 && (rest[0] == '\n' || len(rest) > 1 && rest[0] == '\r' && rest[1] == '\n')
}

// line returns the next line without its end. It reports false at the end of the
// stream; what stands there without a line end is a last line.
func (e *events) line() (line []byte, ok bool, err error) {
	for {
		if n := bytes.IndexByte(e.buf[e.seen:e.end], '\n'); n >= 0 {
			stop := e.seen + n
			line = e.buf[e.start:stop]
			e.start, e.seen = stop+1, stop+1
			return bytes.TrimSuffix(line, []byte{'\r'}), true, nil
		}
		e.seen = e.end
		if e.err != nil {
			if e.start == e.end || e.err != io.EOF {
				return nil, false, nil
			}
			line = e.buf[e.start:e.end]
			e.start = e.end
			return bytes.TrimSuffix(line, []byte{'\r'}), true, nil
		}
		if err := e.fill(); err != nil {
			return nil, false, err
		}
	}
}

// fill reads once more and notes the time.
func (e *events) fill() error {
	if e.end == len(e.buf) {
		if e.start > 0 {
			copy(e.buf, e.buf[e.start:e.end])
			e.end -= e.start
			e.seen -= e.start
			e.start = 0
		} else if len(e.buf) >= maxEventBytes {
			return errEventSize
		} else {
			e.buf = append(e.buf, make([]byte, len(e.buf))...)
		}
	}
	n, err := e.from.Read(e.buf[e.end:])
	e.at = time.Now()
	e.end += n
	e.err = err
	return nil
}

// field splits a line into its field and value; a comment has an empty field.
func field(line []byte) (name, value []byte) {
	name, value, _ = bytes.Cut(line, []byte{':'})
	return name, bytes.TrimPrefix(value, []byte{' '})
}
