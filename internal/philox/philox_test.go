package philox

import (
	"math"
	"testing"
)

// The known answers of the Random123 paper's authors.
func TestBlockKnownAnswers(t *testing.T) {
	tests := []struct {
		name string
		ctr  [4]uint32
		key  [2]uint32
		want [4]uint32
	}{
		{"zeros", [4]uint32{}, [2]uint32{}, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{"ones", [4]uint32{^uint32(0), ^uint32(0), ^uint32(0), ^uint32(0)}, [2]uint32{^uint32(0), ^uint32(0)},
			[4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{"pi", [4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [2]uint32{0xa4093822, 0x299f31d0},
			[4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			if got := Block(tc.ctr, tc.key); got != tc.want {
				t.Errorf("got %08x, want %08x", got, tc.want)
			}
		})
	}
}

func TestStreamLayout(t *testing.T) {
	s := Stream{Seed: 0x1122334455667788, Position: 9, Model: 3, Purpose: Route}
	want := Block([4]uint32{2, 9, 0x103, 0}, [2]uint32{0x55667788, 0x11223344})
	if got := s.Block(2); got != want {
		t.Fatalf("block %08x, want %08x", got, want)
	}
	for i := range uint32(4) {
		if got := s.Word(8 + i); got != want[i] {
			t.Errorf("word %d: %08x, want %08x", 8+i, got, want[i])
		}
	}
}

func TestUniformIsFlatAndKeyed(t *testing.T) {
	const n, cells = 40000, 16
	var count [cells]int
	seen := map[float64]bool{}
	for i := range n {
		u := Uniform(7, uint32(i), 0, Route)
		if u < 0 || u >= 1 {
			t.Fatalf("u = %v", u)
		}
		count[int(u*cells)]++
		seen[u] = true
	}
	chi := 0.0
	for _, c := range count {
		d := float64(c) - n/cells
		chi += d * d / (n / cells)
	}
	if chi > 45 { // 15 degrees of freedom: beyond 1e-4
		t.Errorf("chi-square %.1f", chi)
	}
	if len(seen) != n {
		t.Errorf("%d different of %d", len(seen), n)
	}
	a := Uniform(1, 2, 3, Route)
	for name, b := range map[string]float64{
		"seed": Uniform(1<<32|1, 2, 3, Route), "position": Uniform(1, 3, 3, Route),
		"model": Uniform(1, 2, 4, Route), "purpose": Uniform(1, 2, 3, Token),
	} {
		if math.Abs(a-b) == 0 {
			t.Errorf("%s is not part of the key", name)
		}
	}
}
