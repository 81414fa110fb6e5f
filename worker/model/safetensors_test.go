package model

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
)

// file makes a safetensors file of a header and n bytes 0, 1, 2, ...
func file(header string, n int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	b = append(b, header...)
	for i := range n {
		b = append(b, byte(i))
	}
	return b
}

func TestParseShardAccepts(t *testing.T) {
	tests := []struct {
		name string
		data []byte
		want []string
	}{
		{"no tensors", file(`{}`, 0), nil},
		{"padding", file(`{}      `, 0), nil},
		{"metadata", file(`{"__metadata__":{"format":"pt"}}`, 0), nil},
		{"two, out of order", file(`{"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},"a":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]}}`, 8), []string{"a", "b"}},
		{"scalar", file(`{"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}`, 4), []string{"s"}},
		{"empty tensor", file(`{"e":{"dtype":"F32","shape":[0,2147483647],"data_offsets":[0,0]},"s":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1), []string{"e", "s"}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			s, err := ParseShard("f", tc.data)
			if err != nil {
				t.Fatal(err)
			}
			if got := slices.Sorted(maps.Keys(s.Tensors)); !slices.Equal(got, tc.want) {
				t.Errorf("tensors %v, want %v", got, tc.want)
			}
		})
	}
}

func TestParseShardRefuses(t *testing.T) {
	one := func(entry string) string { return `{"a":` + entry + `}` }
	tests := []struct {
		name, want string
		data       []byte
	}{
		{"empty", "8 bytes", nil},
		{"short", "8 bytes", []byte{1, 2, 3}},
		{"header past the end", "header length", binary.LittleEndian.AppendUint64(nil, 1)},
		{"header of 2^63", "header length", binary.LittleEndian.AppendUint64(nil, 1<<63)},
		{"not JSON", "JSON", file(`{"a"`, 0)},
		{"not an object", "expected", file(`[]`, 0)},
		{"entry is a number", "expected", file(one(`3`), 0)},
		{"unknown key", `"extra"`, file(one(`{"dtype":"U8","shape":[0],"data_offsets":[0,0],"extra":1}`), 0)},
		{"key in another case", `"Dtype"`, file(one(`{"Dtype":"U8","shape":[0],"data_offsets":[0,0]}`), 0)},
		{"duplicate tensor", "duplicate", file(`{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, 0)},
		{"duplicate key", "duplicate", file(one(`{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}`), 0)},
		{"missing shape", "expected dtype", file(one(`{"dtype":"U8","data_offsets":[0,0]}`), 0)},
		{"unknown type", `"F7"`, file(one(`{"dtype":"F7","shape":[0],"data_offsets":[0,0]}`), 0)},
		{"negative dimension", "-1", file(one(`{"dtype":"U8","shape":[-1],"data_offsets":[0,0]}`), 0)},
		{"fraction", "1.5", file(one(`{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}`), 1)},
		{"exponent", "1e0", file(one(`{"dtype":"U8","shape":[1e0],"data_offsets":[0,1]}`), 1)},
		{"huge dimension", "too large", file(one(`{"dtype":"U8","shape":[9999999999],"data_offsets":[0,1]}`), 1)},
		{"rank", "more than 8", file(one(`{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}`), 1)},
		{"product overflows", "more than the file", file(one(`{"dtype":"F64","shape":[2147483647,2147483647,2147483647,4],"data_offsets":[0,8]}`), 8)},
		{"product overflows to zero", "more than the file", file(one(`{"dtype":"F64","shape":[1073741824,1073741824,16],"data_offsets":[0,0]}`), 0)},
		{"three offsets", "more than 2", file(one(`{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}`), 1)},
		{"one offset", "expected dtype", file(one(`{"dtype":"U8","shape":[1],"data_offsets":[1]}`), 1)},
		{"backwards", "[1, 0)", file(one(`{"dtype":"U8","shape":[1],"data_offsets":[1,0]}`), 1)},
		{"past the end", "[0, 2)", file(one(`{"dtype":"U8","shape":[2],"data_offsets":[0,2]}`), 1)},
		{"size differs", "expected 4 bytes", file(one(`{"dtype":"F32","shape":[1],"data_offsets":[0,3]}`), 4)},
		{"gap", "gap", file(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}`, 3)},
		{"gap at the front", "gap", file(one(`{"dtype":"U8","shape":[1],"data_offsets":[1,2]}`), 2)},
		{"overlap", "overlap", file(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, 3)},
		{"the same bytes twice", "overlap", file(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}`, 2)},
		{"trailing data", "end after 1", file(one(`{"dtype":"U8","shape":[1],"data_offsets":[0,1]}`), 2)},
		{"metadata not text", "__metadata__", file(`{"__metadata__":{"a":1}}`, 0)},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			_, err := ParseShard("some.safetensors", tc.data)
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("error %v, want ErrCorrupt", err)
			}
			if !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "some.safetensors") {
				t.Errorf("error %q does not mention %q and the file", err, tc.want)
			}
		})
	}
}

func TestEncodeShardRoundTrip(t *testing.T) {
	in := []Tensor{
		{"b", F32, []int{2}, []byte{0, 0, 128, 63, 0, 0, 0, 192}},
		{"a", BF16, []int{1, 3}, []byte{128, 63, 0, 192, 0, 0}},
		{"s", U8, nil, []byte{7}},
	}
	data, err := EncodeShard(in, map[string]string{"format": "pt"})
	if err != nil {
		t.Fatal(err)
	}
	s, err := ParseShard("f", data)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range in {
		got := s.Tensors[want.Name]
		if got.DType != want.DType || !slices.Equal(got.Shape, want.Shape) || !slices.Equal(got.Bytes, want.Bytes) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	if s.Metadata["format"] != "pt" {
		t.Errorf("metadata %v", s.Metadata)
	}
	for _, bad := range [][]Tensor{{in[0], in[0]}, {{"x", F32, []int{2}, make([]byte, 4)}}, {{"__metadata__", U8, nil, []byte{1}}}} {
		if _, err := EncodeShard(bad, nil); err == nil {
			t.Errorf("%v: no error", bad)
		}
	}
}

func TestFloat32(t *testing.T) {
	half := func(h uint16) Tensor {
		return Tensor{"h", F16, []int{1}, binary.LittleEndian.AppendUint16(nil, h)}
	}
	tests := []struct {
		name string
		t    Tensor
		want float32
	}{
		{"f32", Tensor{"f", F32, []int{1}, []byte{0, 0, 32, 192}}, -2.5},
		{"bf16", Tensor{"b", BF16, []int{1}, []byte{32, 192}}, -2.5},
		{"half one", half(0x3c00), 1},
		{"half -2.5", half(0xc100), -2.5},
		{"half largest", half(0x7bff), 65504},
		{"half smallest", half(0x0001), 1.0 / (1 << 24)},
		{"half largest subnormal", half(0x83ff), -1023.0 / (1 << 24)},
		{"half inf", half(0xfc00), float32(math.Inf(-1))},
		{"half zero", half(0), 0},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			got, err := tc.t.Float32()
			if err != nil || got[0] != tc.want {
				t.Errorf("got %v %v, want %v", got, err, tc.want)
			}
		})
	}
	nan := half(0x7e01)
	if got, _ := nan.Float32(); got[0] == got[0] {
		t.Errorf("half NaN gave %v", got)
	}
	ints := Tensor{"i", I32, []int{1}, make([]byte, 4)}
	if _, err := ints.Float32(); err == nil || !strings.Contains(err.Error(), "I32") {
		t.Errorf("int32: %v", err)
	}
	if err := nan.CopyFloat32(make([]float32, 2)); err == nil {
		t.Error("wrong length: no error")
	}
}

// FuzzParseShard checks that accepted files tile their body: every byte belongs
// to one tensor, whatever the header says.
func FuzzParseShard(f *testing.F) {
	f.Add(file(`{"a":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, 8))
	f.Add(file(`{"__metadata__":{"format":"pt"},"e":{"dtype":"F8_E4M3","shape":[0,3],"data_offsets":[0,0]}}`, 0))
	f.Add(file(`{"a":{"dtype":"F64","shape":[1073741824,1073741824,16],"data_offsets":[0,0]}}`, 0))
	f.Add(file(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}`, 2))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := ParseShard("fuzz", data)
		if err != nil {
			return
		}
		total := 0
		var tensors []Tensor
		for name, x := range s.Tensors {
			n := x.DType.Size()
			for _, d := range x.Shape {
				n *= d
			}
			if name != x.Name || n != len(x.Bytes) {
				t.Fatalf("%s: %v %s in %d bytes", name, x.Shape, x.DType, len(x.Bytes))
			}
			total += n
			tensors = append(tensors, x)
		}
		if n := binary.LittleEndian.Uint64(data); uint64(total) != uint64(len(data))-8-n {
			t.Fatalf("tensors hold %d bytes of %d", total, len(data)-8-int(n))
		}
		if _, err := EncodeShard(tensors, s.Metadata); err != nil {
			t.Fatalf("encode: %v", err)
		}
	})
}

func BenchmarkParseShard(b *testing.B) {
	var tensors []Tensor
	for i := range 300 {
		tensors = append(tensors, Tensor{fmt.Sprintf("model.layers.%d.mlp.gate_proj.weight", i), BF16, []int{64, 8}, make([]byte, 1024)})
	}
	data, err := EncodeShard(tensors, nil)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := ParseShard("f", data); err != nil {
			b.Fatal(err)
		}
	}
}
