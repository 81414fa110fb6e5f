package policies

import (
	"bytes"
	"encoding/binary"
)

// progress says where a request's answer stands in its reasoning. It is a function
// of the prompt and the committed ids; the encoded form in Req.State only saves
// reading them again.
type progress struct {
	// seen is the number of answer ids that were read.
	seen uint32
	// thinking says that the reasoning goes on. Nothing changes once it is over.
	thinking bool
	// newline says that the last id ended with a line break, within its step.
	newline bool
	// tokens is the length of the present step, 0 at its start; thought that of the reasoning.
	tokens, thought uint32
	// hash is of the present step's ids, last of the step before; 0 means none.
	hash, last uint64
}

// progressBytes is the length of an encoded progress.
const progressBytes = 4 + 1 + 4 + 4 + 8 + 8

func (p *progress) store(s *State) {
	var b [progressBytes]byte
	binary.LittleEndian.PutUint32(b[0:], p.seen)
	if p.thinking {
		b[4] |= 1
	}
	if p.newline {
		b[4] |= 2
	}
	binary.LittleEndian.PutUint32(b[5:], p.tokens)
	binary.LittleEndian.PutUint32(b[9:], p.thought)
	binary.LittleEndian.PutUint64(b[13:], p.hash)
	binary.LittleEndian.PutUint64(b[21:], p.last)
	s.Set(b[:])
}

// load reads what store wrote; ok is false for anything else, and for a state that
// has seen more than n ids.
func (p *progress) load(s *State, n int) (ok bool) {
	b := s.Get()
	if len(b) != progressBytes || b[4] > 3 {
		return false
	}
	*p = progress{
		seen: binary.LittleEndian.Uint32(b), thinking: b[4]&1 != 0, newline: b[4]&2 != 0,
		tokens: binary.LittleEndian.Uint32(b[5:]), thought: binary.LittleEndian.Uint32(b[9:]),
		hash: binary.LittleEndian.Uint64(b[13:]), last: binary.LittleEndian.Uint64(b[21:]),
	}
	return int64(p.seen) <= int64(n)
}

// lineBreaks tells of every id where its text has line breaks: bit 0 that it begins
// with one, bit 1 that it ends with one, bit 2 that it holds a blank line ("\n\n").
type lineBreaks []uint8

const (
	beginsLine = 1 << iota
	endsLine
	blankLine
)

func newLineBreaks(t *Text) lineBreaks {
	lines := make(lineBreaks, t.Size)
	for id := range lines {
		text := t.Bytes(int32(id))
		if bytes.HasPrefix(text, []byte("\n")) {
			lines[id] |= beginsLine
		}
		if bytes.HasSuffix(text, []byte("\n")) {
			lines[id] |= endsLine
		}
		if bytes.Contains(text, []byte("\n\n")) {
			lines[id] |= blankLine
		}
	}
	return lines
}

func (l lineBreaks) of(id int32) uint8 {
	if id < 0 || int(id) >= len(l) {
		return 0
	}
	return l[id]
}

// stepper follows the steps of a reasoning. It does not change.
type stepper struct {
	stepTokens, thinkTokens int
	thinkStart, thinkEnd    int32
	// close are the ids of "\n</think>\n\n".
	close []int32
	lines lineBreaks
}

// promptTail is how many of the prompt's last ids may say that the reasoning is
// over before it begins, as templates do that turn it off.
const promptTail = 8

// begin is the progress of an empty answer.
func (s *stepper) begin(prompt []int32) progress {
	for i := len(prompt) - 1; i >= max(0, len(prompt)-promptTail); i-- {
		switch prompt[i] {
		case s.thinkStart:
			return progress{thinking: true}
		case s.thinkEnd:
			return progress{}
		}
	}
	return progress{thinking: true}
}

// catchUp returns where q stands, and keeps that in its state.
func (s *stepper) catchUp(q *Req) progress {
	var p progress
	if !p.load(&q.State, len(q.Out)) {
		p = s.begin(q.Prompt)
	}
	if int(p.seen) == len(q.Out) && q.State.Len == progressBytes {
		return p
	}
	for _, id := range q.Out[p.seen:] {
		if p.thinking {
			s.advance(&p, id)
		}
	}
	p.seen = uint32(len(q.Out))
	p.store(&q.State)
	return p
}

// advance reads one more id of a reasoning. It leaves seen alone.
func (s *stepper) advance(p *progress, id int32) {
	p.thought++
	if id == s.thinkEnd {
		p.thinking = false
		return
	}
	p.tokens++
	p.hash = mix(p.hash, id)
	line := s.lines.of(id)
	ends := line&blankLine != 0 || p.newline && line&beginsLine != 0
	p.newline = line&endsLine != 0
	if ends || int(p.tokens) >= s.stepTokens {
		if p.hash == p.last {
			p.thinking = false // the same step twice
			return
		}
		p.last, p.hash, p.tokens, p.newline = p.hash, 0, 0, false
	}
	if int(p.thought) >= s.thinkTokens {
		p.thinking = false
	}
}

// closing are the ids that are still wanted after the last id of a reasoning: all
// of "\n</think>\n\n", or what comes after the model's own </think>.
func (s *stepper) closing(last int32) []int32 {
	if last != s.thinkEnd {
		return s.close
	}
	for i, id := range s.close {
		if id == s.thinkEnd {
			return s.close[i+1:]
		}
	}
	return nil
}

// mix adds an id to a hash of ids (FNV-1a); never 0.
func mix(h uint64, id int32) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211
	if h == 0 {
		h = offset
	}
	for range 4 {
		h = (h ^ uint64(id&0xff)) * prime
		id >>= 8
	}
	return max(h, 1)
}
