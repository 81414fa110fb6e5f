package model

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"sort"
	"strconv"
)

// ErrCorrupt says that a file breaks its own format.
var ErrCorrupt = errors.New("corrupt model file")

const (
	maxHeader  = 100 << 20 // bytes of JSON, the limit of the reference reader
	maxTensors = 1 << 17
	maxRank    = 8
	maxMeta    = 1 << 12 // entries of __metadata__
)

// Shard is one safetensors file.
type Shard struct {
	File     string
	Tensors  map[string]Tensor
	Metadata map[string]string
}

// ParseShard reads a whole safetensors file. file is used in errors; the
// tensors alias data. Tensors must tile the bytes after the header: no overlap,
// no gap, nothing left over.
func ParseShard(file string, data []byte) (*Shard, error) {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%s: %w: %s", file, ErrCorrupt, fmt.Sprintf(format, args...))
	}
	if len(data) < 8 {
		return nil, bad("expected 8 bytes of header length, found %d bytes", len(data))
	}
	n := binary.LittleEndian.Uint64(data)
	if n > maxHeader || n > uint64(len(data)-8) {
		return nil, bad("header length: expected at most %d, found %d", min(maxHeader, len(data)-8), n)
	}
	header, body := data[8:8+n], data[8+n:]
	// The token reader below accepts a few things that JSON does not.
	if !json.Valid(header) {
		return nil, bad("header: expected JSON")
	}
	p := headerParser{dec: json.NewDecoder(bytes.NewReader(header)), body: body,
		shard: &Shard{File: file, Tensors: map[string]Tensor{}, Metadata: map[string]string{}}}
	p.dec.UseNumber()
	if err := p.header(); err != nil {
		return nil, bad("%v", err)
	}
	if err := p.tiled(); err != nil {
		return nil, bad("%v", err)
	}
	return p.shard, nil
}

// span is where a tensor's bytes stand in the body.
type span struct {
	begin, end uint64
	name       string
}

// headerParser walks the header token by token, so that duplicate and unknown
// keys and keys in another letter case are seen (encoding/json hides them).
type headerParser struct {
	dec   *json.Decoder
	body  []byte
	shard *Shard
	spans []span
}

func (p *headerParser) header() error {
	return p.object(func(name string) error {
		if name == "__metadata__" {
			return p.metadata()
		}
		if len(p.shard.Tensors) == maxTensors {
			return fmt.Errorf("more than %d tensors", maxTensors)
		}
		if err := p.tensor(name); err != nil {
			return fmt.Errorf("tensor %q: %w", name, err)
		}
		return nil
	})
}

func (p *headerParser) metadata() error {
	return p.object(func(key string) error {
		v, err := p.text()
		if err != nil {
			return fmt.Errorf("__metadata__ %q: %w", key, err)
		}
		if len(p.shard.Metadata) == maxMeta {
			return fmt.Errorf("__metadata__: more than %d entries", maxMeta)
		}
		p.shard.Metadata[key] = v
		return nil
	})
}

func (p *headerParser) tensor(name string) error {
	t := Tensor{Name: name}
	var offsets []uint64
	err := p.object(func(key string) error {
		switch key {
		case "dtype":
			v, err := p.text()
			t.DType = DType(v)
			if err == nil && t.DType.Size() == 0 {
				err = fmt.Errorf("dtype: %q is not known", v)
			}
			return err
		case "shape":
			dims, err := p.list(maxRank)
			t.Shape = make([]int, 0, len(dims))
			for _, d := range dims {
				if d > math.MaxInt32 {
					return fmt.Errorf("shape: dimension %d is too large", d)
				}
				t.Shape = append(t.Shape, int(d))
			}
			return err
		case "data_offsets":
			var err error
			offsets, err = p.list(2)
			return err
		}
		return fmt.Errorf("unknown key %q", key)
	})
	if err != nil {
		return err
	}
	if t.DType == "" || t.Shape == nil || len(offsets) != 2 {
		return errors.New("expected dtype, shape and two data_offsets")
	}
	return p.place(t, span{offsets[0], offsets[1], name})
}

// place checks a tensor's offsets against the body and its shape.
func (p *headerParser) place(t Tensor, s span) error {
	if s.begin > s.end || s.end > uint64(len(p.body)) {
		return fmt.Errorf("data_offsets: expected inside [0, %d), found [%d, %d)", len(p.body), s.begin, s.end)
	}
	// Every product is bounded by the body's size, so it cannot overflow: a
	// factor that would pass the bound is refused before multiplying.
	want := uint64(t.DType.Size())
	for _, d := range t.Shape {
		if d != 0 && want > uint64(len(p.body))/uint64(d) {
			return fmt.Errorf("shape %v of %s: more than the file's %d bytes", t.Shape, t.DType, len(p.body))
		}
		want *= uint64(d)
	}
	if s.end-s.begin != want {
		return fmt.Errorf("data_offsets: expected %d bytes for shape %v of %s, found %d", want, t.Shape, t.DType, s.end-s.begin)
	}
	t.Bytes = p.body[s.begin:s.end:s.end]
	p.shard.Tensors[t.Name] = t
	p.spans = append(p.spans, s)
	return nil
}

// tiled checks that the tensors cover the body exactly.
func (p *headerParser) tiled() error {
	sort.Slice(p.spans, func(i, j int) bool {
		a, b := p.spans[i], p.spans[j]
		if a.begin != b.begin {
			return a.begin < b.begin
		}
		return a.end < b.end
	})
	at := uint64(0)
	for _, s := range p.spans {
		if s.begin != at {
			what := "a gap before it"
			if s.begin < at {
				what = "an overlap"
			}
			return fmt.Errorf("tensor %q: expected to begin at byte %d, found %d (%s)", s.name, at, s.begin, what)
		}
		at = s.end
	}
	if at != uint64(len(p.body)) {
		return fmt.Errorf("expected the file to end after %d bytes of tensors, found %d", at, len(p.body))
	}
	return nil
}

// object reads one object and calls field at each key, with the value next.
func (p *headerParser) object(field func(key string) error) error {
	if err := p.delim('{'); err != nil {
		return err
	}
	seen := map[string]bool{}
	for p.dec.More() {
		key, err := p.text()
		if err != nil {
			return err
		}
		if seen[key] {
			return fmt.Errorf("duplicate name %q", key)
		}
		seen[key] = true
		if err := field(key); err != nil {
			return err
		}
	}
	return p.delim('}')
}

func (p *headerParser) delim(want json.Delim) error {
	tok, err := p.dec.Token()
	if err == nil && tok != want {
		err = fmt.Errorf("expected %q, found %v", want.String(), tok)
	}
	return err
}

func (p *headerParser) text() (string, error) {
	tok, err := p.dec.Token()
	if err != nil {
		return "", err
	}
	s, ok := tok.(string)
	if !ok {
		return "", fmt.Errorf("expected a string, found %v", tok)
	}
	return s, nil
}

// list reads an array of at most limit non-negative integers.
func (p *headerParser) list(limit int) ([]uint64, error) {
	if err := p.delim('['); err != nil {
		return nil, err
	}
	out := []uint64{}
	for p.dec.More() {
		tok, err := p.dec.Token()
		if err != nil {
			return nil, err
		}
		num, ok := tok.(json.Number)
		if !ok {
			return nil, fmt.Errorf("expected an integer, found %v", tok)
		}
		v, err := strconv.ParseUint(num.String(), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("expected a non-negative integer, found %v", num)
		}
		if len(out) == limit {
			return nil, fmt.Errorf("more than %d numbers", limit)
		}
		out = append(out, v)
	}
	return out, p.delim(']')
}
