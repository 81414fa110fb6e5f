package kernels_test

import (
	"math"
	"testing"
	"unsafe"

	"github.com/tokenrouter/tokenrouter/cuda/cudatest"
	"github.com/tokenrouter/tokenrouter/cuda/kernels"
	"github.com/tokenrouter/tokenrouter/cuda/ref"
	"github.com/tokenrouter/tokenrouter/models/dummy"
)

func TestHashfill(t *testing.T) {
	r := newRig(t, tiny)
	for _, n := range []int{0, 1, 8, 2047, 2049, 5000} {
		for _, name := range []string{"model.layers.0.mlp.up_proj.weight", "model.norm.weight", "lm_head.weight"} {
			shape := []int{64, 1024}
			if name == "model.norm.weight" {
				shape = shape[1:]
			}
			recipe := dummy.Of(42, name, shape)
			p := kernels.HashfillParams{
				Out: cudatest.Make[uint16](t, r.Device, n), Key: recipe.Key, First: 1 << 33, N: uint64(n), Scale: recipe.Scale, Offset: recipe.Offset,
			}
			r.ok(r.set.Hashfill(r.Stream, &p))
			want := make([]uint16, n)
			recipe.Fill(want, 1<<33)
			for i, v := range cudatest.Get[uint16](t, r.Device, p.Out, n) {
				if v != want[i] {
					t.Fatalf("%s n=%d: element %d is %#x, Go has %#x", name, n, i, v, want[i])
				}
			}
		}
	}
}

func TestConvert(t *testing.T) {
	r := newRig(t, tiny)
	floats := append(cudatest.Normals(1, 1021), 0, float32(math.Inf(1)), float32(math.NaN()), math.MaxFloat32, math.SmallestNonzeroFloat32, 1.00390625)
	for _, n := range []int{0, 1, 4, 1023, len(floats)} {
		p := kernels.ConvertParams{In: cudatest.Put(t, r.Device, floats[:n]), Out: cudatest.Make[uint16](t, r.Device, n), N: uint64(n), From: 1}
		r.ok(r.set.Convert(r.Stream, &p))
		for i, v := range cudatest.Get[uint16](t, r.Device, p.Out, n) {
			if v != ref.BF16(floats[i]) {
				t.Fatalf("float32 %v became %#x, want %#x", floats[i], v, ref.BF16(floats[i]))
			}
		}
	}
	halves := make([]uint16, 1<<16)
	for i := range halves {
		halves[i] = uint16(i)
	}
	p := kernels.ConvertParams{In: cudatest.Put(t, r.Device, halves), Out: cudatest.Make[uint16](t, r.Device, len(halves)), N: 1 << 16, From: 2}
	r.ok(r.set.Convert(r.Stream, &p))
	for i, v := range cudatest.Get[uint16](t, r.Device, p.Out, len(halves)) {
		if want := ref.BF16(half(uint16(i))); v != want {
			t.Fatalf("float16 %#x became %#x, want %#x", i, v, want)
		}
	}
	p.From = 3
	if r.set.Convert(r.Stream, &p) == nil {
		t.Error("an unknown type was launched")
	}
}

// half widens a float16 by its definition.
func half(h uint16) float32 {
	sign, exponent, fraction := 1.0, int(h>>10&31), float64(h&1023)
	if h>>15 == 1 {
		sign = -1
	}
	switch {
	case exponent == 31 && fraction != 0:
		return float32(math.NaN())
	case exponent == 31:
		return float32(math.Inf(int(sign)))
	case exponent == 0:
		return float32(math.Copysign(fraction/1024*math.Pow(2, -14), sign))
	}
	return float32(sign * (1 + fraction/1024) * math.Pow(2, float64(exponent-15)))
}

func TestPrep(t *testing.T) {
	r := newRig(t, tiny)
	const maxPages = 3
	at := func(n int32) int32 { return n * 256 }
	const ring, turn = 3, 7 // so entry 1
	in := make([]byte, ring*at(9))
	entry := in[at(9):]
	view := func(i int32) unsafe.Pointer { return unsafe.Pointer(&entry[at(i)]) }
	head := (*kernels.StepHead)(view(0))
	*head = kernels.StepHead{Step: 9, Tokens: 5, Samples: 1, Items: 2, Patches: 2}
	copy((*[5]int32)(view(1))[:], []int32{11, 12, 13, 14, 15})
	copy((*[5]int32)(view(8))[:], []int32{0, 1, 0, 0, 1})
	copy((*[5]int32)(view(2))[:], []int32{0, 17, 47, 3, 5})
	copy((*[5]int32)(view(3))[:], []int32{0, 2, 2, -1, 3})
	copy((*[2]kernels.Patch)(view(4))[:], []kernels.Patch{{Slot: 0, Index: 0, Page: 7}, {Slot: 2, Index: 2, Page: 1}})
	copy((*[2]kernels.AttnItem)(view(5))[:], []kernels.AttnItem{{Token: 1}, {Token: 2, Partial: -1}})
	(*kernels.Sample)(view(7)).TopK = 5
	table := []int32{-1, -1, -1, -1, -1, -1, -1, 4, -1, 6, -1, -1}
	p := kernels.PrepParams{
		In: cudatest.Put(t, r.Device, in), Out: cudatest.Make[byte](t, r.Device, int(at(9))), Table: cudatest.Put(t, r.Device, table),
		Slots: cudatest.Make[int32](t, r.Device, 5), Turn: cudatest.Put(t, r.Device, []uint32{turn}),
		Last: cudatest.Put(t, r.Device, []int32{-1, -1, 102, 103}), IDsAt: at(1), SourceAt: at(8), PosAt: at(2), OwnerAt: at(3), PatchesAt: at(4),
		ItemsAt: at(5), SamplesAt: at(7), MaxPages: maxPages, PageSize: 16, EntryBytes: at(9), Ring: ring,
	}
	r.ok(r.set.Prep(r.Stream, &p))
	for i, want := range []int32{7 * 16, 4*16 + 1, 1*16 + 15, -1, 6*16 + 5} {
		if got := cudatest.Get[int32](t, r.Device, p.Slots, 5)[i]; got != want {
			t.Errorf("token %d has slot %d, want %d", i, got, want)
		}
	}
	if got := cudatest.Get[int32](t, r.Device, p.Table, len(table)); got[0] != 7 || got[8] != 1 || got[7] != 4 {
		t.Errorf("table is %v", got)
	}
	if got := cudatest.Get[uint32](t, r.Device, p.Turn, 1)[0]; got != turn+1 {
		t.Errorf("turn is %d, want %d", got, turn+1)
	}
	copy((*[5]int32)(view(1))[:], []int32{11, 102, 13, 14, 103}) // what was last sampled for slots 2 and 3
	out := cudatest.Get[byte](t, r.Device, p.Out, int(at(9)))
	for _, part := range [][2]int32{{at(0), 32}, {at(1), 20}, {at(2), 20}, {at(3), 20}, {at(4), 24}, {at(5), 96}, {at(7), 40}} {
		if string(out[part[0]:part[0]+part[1]]) != string(entry[part[0]:part[0]+part[1]]) {
			t.Errorf("part at %d was not copied", part[0])
		}
	}
}
