package handoff

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// PrefixSize is the size of the length before a frame on a stream, in bytes.
const PrefixSize = 4

// AppendFramed appends the length prefix and the encoding of f to dst. It
// returns dst unchanged and an error where Append would.
func AppendFramed(dst []byte, f *Frame) ([]byte, error) {
	n := len(dst)
	out, err := Append(append(dst, 0, 0, 0, 0), f)
	if err != nil {
		return dst, err
	}
	binary.LittleEndian.PutUint32(out[n:], uint32(len(out)-n-PrefixSize))
	return out, nil
}

// readChunk is the buffer of a Reader. A frame longer than that is collected in
// pieces of this size, so a false length cannot make it allocate more than has
// arrived.
const readChunk = 64 << 10

// Reader reads length-prefixed frames from a stream. It is not safe for
// concurrent use.
type Reader struct {
	br  *bufio.Reader
	big []byte // the last frame longer than readChunk
}

// NewReader returns a Reader of r.
func NewReader(r io.Reader) *Reader {
	return &Reader{br: bufio.NewReaderSize(r, readChunk)}
}

// Buffered returns the number of bytes that were received and not yet decoded.
// Zero means that the next call of Next has to wait.
func (r *Reader) Buffered() int { return r.br.Buffered() }

// Next decodes the next frame into f, reusing its slices. It returns io.EOF at
// the end of the stream, ErrTruncated if the stream ends inside a frame, and
// the errors of Decode. After an error the stream is out of step and must be closed.
func (r *Reader) Next(f *Frame) error {
	prefix, err := r.br.Peek(PrefixSize)
	if err != nil {
		if len(prefix) > 0 && errors.Is(err, io.EOF) {
			return ErrTruncated
		}
		return err
	}
	n := int64(binary.LittleEndian.Uint32(prefix))
	if n == 0 {
		return fmt.Errorf("%w: empty frame", ErrMalformed)
	}
	if n > MaxFrameSize {
		return fmt.Errorf("%w: %d bytes", ErrTooLarge, n)
	}
	if _, err := r.br.Discard(PrefixSize); err != nil {
		return err
	}
	b, err := r.body(int(n))
	if err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return ErrTruncated
		}
		return err
	}
	err = Decode(b, f)
	if int(n) <= r.br.Size() {
		if _, derr := r.br.Discard(int(n)); err == nil {
			err = derr
		}
	}
	return err
}

// body returns the n bytes of a frame. They stay in the buffer if they fit.
func (r *Reader) body(n int) ([]byte, error) {
	if n <= r.br.Size() {
		return r.br.Peek(n)
	}
	r.big = r.big[:0]
	for len(r.big) < n {
		k := len(r.big)
		r.big = append(r.big, make([]byte, min(readChunk, n-k))...)
		if _, err := io.ReadFull(r.br, r.big[k:]); err != nil {
			return nil, err
		}
	}
	return r.big, nil
}
