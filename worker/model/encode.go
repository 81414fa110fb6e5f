package model

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
)

// EncodeShard writes a safetensors file: the tensors in the given order, the
// header padded so that the data begins at a multiple of 8 bytes.
func EncodeShard(tensors []Tensor, metadata map[string]string) ([]byte, error) {
	type entry struct {
		DType   DType  `json:"dtype"`
		Shape   []int  `json:"shape"`
		Offsets [2]int `json:"data_offsets"`
	}
	header := make(map[string]any, len(tensors)+1)
	if len(metadata) > 0 {
		header["__metadata__"] = metadata
	}
	at := 0
	for _, t := range tensors {
		if _, ok := header[t.Name]; ok || t.Name == "__metadata__" {
			return nil, fmt.Errorf("tensor %q: the name is taken", t.Name)
		}
		shape := append([]int{}, t.Shape...)
		header[t.Name] = entry{t.DType, shape, [2]int{at, at + len(t.Bytes)}}
		at += len(t.Bytes)
	}
	h, err := json.Marshal(header)
	if err != nil {
		return nil, err
	}
	for len(h)%8 != 0 {
		h = append(h, ' ')
	}
	out := binary.LittleEndian.AppendUint64(make([]byte, 0, 8+len(h)+at), uint64(len(h)))
	out = append(out, h...)
	for _, t := range tensors {
		out = append(out, t.Bytes...)
	}
	// Reading it back checks shapes, types and sizes.
	if _, err := ParseShard("encoded", out); err != nil {
		return nil, err
	}
	return out, nil
}
