package generate

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

// prefixSize is the length of a frame's length prefix: a little-endian uint32
// that counts the bytes after it.
const prefixSize = 4

// Writer frames events onto a stream. It is not safe for concurrent use.
type Writer struct {
	w   io.Writer
	buf []byte
}

// NewWriter returns a Writer onto w. Every Write is one write to w; the caller flushes.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Write sends the events as consecutive frames in one write. Nothing is sent
// if one of them is over a limit.
func (w *Writer) Write(events ...*Event) error {
	buf := w.buf[:0]
	for _, e := range events {
		start := len(buf)
		buf = append(buf, make([]byte, prefixSize)...)
		var err error
		if buf, err = AppendEvent(buf, e); err != nil {
			return err
		}
		binary.LittleEndian.PutUint32(buf[start:], uint32(len(buf)-start-prefixSize))
	}
	w.buf = buf
	if _, err := w.w.Write(buf); err != nil {
		return fmt.Errorf("write events: %w", err)
	}
	return nil
}

// Reader takes events off a stream. It is not safe for concurrent use.
type Reader struct {
	r   *bufio.Reader
	buf []byte
}

// NewReader returns a Reader from r.
func NewReader(r io.Reader) *Reader { return &Reader{r: bufio.NewReaderSize(r, 4<<10)} }

// Next returns the next event, which is the caller's to keep. The error is
// io.EOF at the end of the stream, io.ErrUnexpectedEOF if it ends inside a
// frame, and wraps ErrMalformed or ErrTooLarge for bad bytes.
func (r *Reader) Next() (*Event, error) {
	var prefix [prefixSize]byte
	if _, err := io.ReadFull(r.r, prefix[:]); err != nil {
		if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, err
		}
		return nil, fmt.Errorf("read event: %w", err)
	}
	n := binary.LittleEndian.Uint32(prefix[:])
	if n > MaxEventBytes {
		return nil, fmt.Errorf("%w: event of %d bytes", ErrTooLarge, n)
	}
	if err := r.fill(int(n)); err != nil {
		return nil, err
	}
	e := new(Event)
	if err := DecodeEvent(r.buf, e); err != nil {
		return nil, err
	}
	return e, nil
}

// fillStep is how much memory a length prefix alone can make the reader take.
const fillStep = 64 << 10

// fill reads n bytes into r.buf, growing it only as they arrive.
func (r *Reader) fill(n int) error {
	r.buf = r.buf[:0]
	for len(r.buf) < n {
		start := len(r.buf)
		r.buf = slices.Grow(r.buf, min(n-start, fillStep))
		r.buf = r.buf[:start+min(n-start, fillStep)]
		if _, err := io.ReadFull(r.r, r.buf[start:]); err != nil {
			if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
				return io.ErrUnexpectedEOF
			}
			return fmt.Errorf("read event: %w", err)
		}
	}
	return nil
}
