package model

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"sort"

	"github.com/tokenrouter/tokenrouter/internal/jsonscan"
)

// ErrCorrupt says that a file breaks its own format.
var ErrCorrupt = errors.New("corrupt model file")

const (
	maxHeader = 100 << 20 // bytes of JSON, the limit of the reference reader
	// maxTensors bounds a whole checkpoint. A family here has at most 14 for each of at
	// most 512 layers.
	maxTensors = 1 << 13
	maxName    = 1 << 10 // bytes of a name
	maxRank    = 8
	maxMeta    = 1 << 12 // entries of __metadata__
	// maxMetaValue is the longest of them that is kept; others are only checked.
	maxMetaValue = 4 << 10
)

// Shard is one safetensors file.
type Shard struct {
	File    string
	Tensors map[string]Tensor
	// Metadata has the texts of at most 4 KiB.
	Metadata map[string]string
}

// ParseShard reads a whole safetensors file. file is used in errors; the
// tensors alias data. Tensors must tile the bytes after the header: no overlap,
// no gap, nothing left over. Whatever the header says, what is allocated is bounded
// by maxTensors and by the names in it, never by a number that it claims.
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
	scan, err := jsonscan.New(header)
	if err != nil {
		return nil, bad("header: %v", err)
	}
	p := headerParser{Scanner: scan, body: body,
		shard: &Shard{File: file, Tensors: map[string]Tensor{}, Metadata: map[string]string{}}}
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

// headerParser walks the header key by key, so that duplicate and unknown keys and
// keys in another letter case are seen (encoding/json hides them).
type headerParser struct {
	*jsonscan.Scanner
	body  []byte
	shard *Shard
	spans []span
}

func (p *headerParser) header() error {
	metadata := false
	return p.Object(maxName, func(key []byte) error {
		name := string(key)
		if name == "__metadata__" {
			if metadata {
				return fmt.Errorf("duplicate name %q", name)
			}
			metadata = true
			return p.metadata()
		}
		if _, ok := p.shard.Tensors[name]; ok {
			return fmt.Errorf("duplicate name %q", name)
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
	n := 0
	return p.Object(maxName, func(key []byte) error {
		name := string(key)
		if _, ok := p.shard.Metadata[name]; ok {
			return fmt.Errorf("__metadata__: duplicate name %q", name)
		}
		if n++; n > maxMeta {
			return fmt.Errorf("__metadata__: more than %d entries", maxMeta)
		}
		text := p.Raw()
		if text[0] != '"' {
			return fmt.Errorf("__metadata__ %q: expected a string, found %q", name, text[:min(len(text), 40)])
		}
		if len(text) > maxMetaValue {
			return nil
		}
		var value string
		if err := json.Unmarshal(text, &value); err != nil {
			return fmt.Errorf("__metadata__ %q: %w", name, err)
		}
		p.shard.Metadata[name] = value
		return nil
	})
}

func (p *headerParser) tensor(name string) error {
	t := Tensor{Name: name}
	var offsets []uint64
	err := p.Object(maxName, func(key []byte) (err error) {
		switch string(key) {
		case "dtype":
			if t.DType != "" {
				return errors.New("duplicate name dtype")
			}
			t.DType, err = p.dtype()
		case "shape":
			if t.Shape != nil {
				return errors.New("duplicate name shape")
			}
			var dims []uint64
			if dims, err = p.list(maxRank); err != nil {
				return err
			}
			t.Shape = make([]int, 0, len(dims))
			for _, d := range dims {
				if d > math.MaxInt32 {
					return fmt.Errorf("shape: dimension %d is too large", d)
				}
				t.Shape = append(t.Shape, int(d))
			}
		case "data_offsets":
			if offsets != nil {
				return errors.New("duplicate name data_offsets")
			}
			offsets, err = p.list(2)
		default:
			err = fmt.Errorf("unknown key %q", key)
		}
		return err
	})
	if err != nil {
		return err
	}
	if t.DType == "" || t.Shape == nil || len(offsets) != 2 {
		return errors.New("expected dtype, shape and two data_offsets")
	}
	return p.place(t, span{offsets[0], offsets[1], name})
}

// dtype reads the name of a known type.
func (p *headerParser) dtype() (DType, error) {
	text, err := p.Bytes(maxName)
	if err != nil {
		return "", err
	}
	t := DType(text)
	if t.Size() == 0 {
		return "", fmt.Errorf("dtype: %q is not known", text)
	}
	return t, nil
}

// list reads an array of at most limit non-negative integers.
func (p *headerParser) list(limit int) ([]uint64, error) {
	out := []uint64{}
	err := p.Array(func(i int) error {
		if i == limit {
			return fmt.Errorf("more than %d numbers", limit)
		}
		v, err := p.Uint()
		out = append(out, v)
		return err
	})
	return out, err
}

// place checks a tensor's offsets against the body and its shape.
func (p *headerParser) place(t Tensor, s span) error {
	if s.begin > s.end || s.end > uint64(len(p.body)) {
		return fmt.Errorf("data_offsets: expected inside [0, %d), found [%d, %d); if the file was cut off, fetch it again", len(p.body), s.begin, s.end)
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
