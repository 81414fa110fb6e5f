package tensor

import (
	"errors"
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

func TestDType(t *testing.T) {
	for d, want := range map[DType]struct {
		name  string
		bytes uint64
	}{BF16: {"bf16", 2}, F32: {"f32", 4}, F16: {"f16", 2}, F8E4M3: {"f8e4m3", 1}, U8: {"u8", 1}, I32: {"i32", 4}, U32: {"u32", 4},
		I64: {"i64", 8}, U64: {"u64", 8}, 0: {"dtype(0)", 0}, 200: {"dtype(200)", 0}} {
		if d.String() != want.name || d.Bytes() != want.bytes || d.Valid() != (want.bytes > 0) {
			t.Errorf("%d: %s, %d bytes", uint8(d), d, d.Bytes())
		}
	}
}

func TestCheck(t *testing.T) {
	good := View{Ptr: 0x1000, Shape: Of(4, 128), DType: BF16}
	tests := []struct {
		name string
		view View
		err  error
	}{
		{"good", good, nil},
		{"wrong type", View{Ptr: 0x1000, Shape: Of(4, 128), DType: F32}, ErrDType},
		{"no type", View{Ptr: 0x1000, Shape: Of(4, 128)}, ErrDType},
		{"wrong rank", View{Ptr: 0x1000, Shape: Of(4, 128, 1), DType: BF16}, ErrShape},
		{"wrong extent", View{Ptr: 0x1000, Shape: Of(4, 64), DType: BF16}, ErrShape},
		{"negative extent", View{Ptr: 0x1000, Shape: Of(-4, 128), DType: BF16}, ErrShape},
		{"too large", View{Ptr: 0x1000, Shape: Of(1<<62, 128), DType: BF16}, ErrShape},
		{"not aligned", View{Ptr: 0x1008, Shape: Of(4, 128), DType: BF16}, ErrAlign},
		{"no address", View{Shape: Of(4, 128), DType: BF16}, ErrAlign},
		{"empty without address", View{Shape: Of(0, 128), DType: BF16}, nil},
	}
	for _, tt := range tests {
		if err := tt.view.Check("x", BF16, 16, Any, 128); !errors.Is(err, tt.err) {
			t.Errorf("%s: got %v, want %v", tt.name, err, tt.err)
		}
	}
	if err := (View{Ptr: 256, Shape: Of(1, 1, 1, 1, 1, 1, 1), DType: U8}).Check("x", U8, 1, 1, 1, 1, 1, 1, 1, 1); !errors.Is(err, ErrShape) {
		t.Errorf("seven axes: %v", err)
	}
}

func TestSizes(t *testing.T) {
	x := View{Shape: Of(4, 128), DType: BF16}
	w := View{Shape: Of(128), DType: BF16}
	var s Sizes
	s.Bind("x", x, "T", "C")
	s.Bind("weight", w, "C")
	s.Bind("out", x, "T", "_")
	if s.Err() != nil || s.Get("T") != 4 || s.Get("C") != 128 || s.Get("V") != 0 {
		t.Errorf("T %d C %d: %v", s.Get("T"), s.Get("C"), s.Err())
	}
	s.Bind("bad", w, "T")
	if !errors.Is(s.Err(), ErrShape) {
		t.Errorf("disagreement: %v", s.Err())
	}
	var r Sizes
	r.Bind("x", x, "T")
	if !errors.Is(r.Err(), ErrShape) {
		t.Errorf("rank: %v", r.Err())
	}
	var many Sizes
	for i := range 3 {
		letters := "ABCDEFGHIJKLMNOPQR"[6*i : 6*i+6]
		many.Bind("v", View{Shape: Of(1, 1, 1, 1, 1, 1)}, letters[:1], letters[1:2], letters[2:3], letters[3:4], letters[4:5], letters[5:])
	}
	if !errors.Is(many.Err(), ErrShape) {
		t.Errorf("too many symbols: %v", many.Err())
	}
}

func TestRowsAndReshape(t *testing.T) {
	v := View{Ptr: 4096, Shape: Of(10, 3, 8), DType: F32}
	r, err := v.Rows(2, 5)
	if err != nil || r.Ptr != 4096+2*96 || r.Shape != Of(3, 3, 8) {
		t.Errorf("rows: %v at %d, %v", r, r.Ptr, err)
	}
	for _, bad := range [][2]int{{-1, 2}, {3, 2}, {0, 11}} {
		if _, err := v.Rows(bad[0], bad[1]); !errors.Is(err, ErrShape) {
			t.Errorf("rows %v: %v", bad, err)
		}
	}
	if _, err := (View{DType: U8}).Rows(0, 0); !errors.Is(err, ErrShape) {
		t.Errorf("rows of a scalar: %v", err)
	}
	if f, err := v.Reshape(Of(30, 8)); err != nil || f.Shape.Dim(-1) != 8 || f.Shape.Dim(0) != 30 {
		t.Errorf("reshape: %v, %v", f, err)
	}
	if _, err := v.Reshape(Of(31, 8)); !errors.Is(err, ErrShape) {
		t.Errorf("reshape: %v", err)
	}
}

// Bytes agrees with arithmetic of any size.
func TestBytesAgainstBig(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dims := rapid.SliceOfN(rapid.OneOf(rapid.IntRange(-1, 9), rapid.IntRange(0, 1<<40)), 0, MaxRank).Draw(t, "dims")
		v := View{Shape: Of(dims...), DType: DType(rapid.IntRange(0, 10).Draw(t, "dtype"))}
		want, bad := big.NewInt(int64(v.DType.Bytes())), !v.DType.Valid()
		partial := big.NewInt(1)
		for _, n := range dims {
			bad = bad || n < 0
			want.Mul(want, big.NewInt(int64(n)))
			if n > 0 {
				partial.Mul(partial, big.NewInt(int64(n)))
			}
		}
		got, err := v.Bytes()
		if err == nil && (bad || want.Cmp(new(big.Int).SetUint64(got)) != 0) {
			t.Fatalf("%v: got %d, want %v", v, got, want)
		}
		if err != nil && !bad && want.BitLen() <= 63 && partial.BitLen() <= 63 {
			t.Fatalf("%v: %v", v, err)
		}
	})
}

func TestArena(t *testing.T) {
	a, err := NewArena(1<<20, 2048)
	if err != nil {
		t.Fatal(err)
	}
	x, err := a.View(BF16, 3, 5)
	if err != nil || x.Ptr != 1<<20 {
		t.Errorf("first: %v, %v", x, err)
	}
	mark := a.Mark()
	y, err := a.View(F32, 100)
	if err != nil || y.Ptr != 1<<20+256 || a.Used() != 656 {
		t.Errorf("second: %#x, used %d, %v", y.Ptr, a.Used(), err)
	}
	if _, err := a.View(U8, 2000); !errors.Is(err, ErrSpace) || a.Used() != 656 {
		t.Errorf("full: %v, used %d", err, a.Used())
	}
	if err := a.Reset(mark); err != nil || a.Used() != 30 || a.Peak() != 656 {
		t.Errorf("reset: %v, used %d, peak %d", err, a.Used(), a.Peak())
	}
	if err := a.Reset(31); !errors.Is(err, ErrShape) {
		t.Errorf("mark ahead: %v", err)
	}
	for _, align := range []uint64{0, 3, 512} {
		if _, err := a.Bytes(1, align); !errors.Is(err, ErrAlign) {
			t.Errorf("align %d: %v", align, err)
		}
	}
	for _, bad := range [][2]uint64{{0, 1}, {128, 1}, {1 << 63, 1 << 63}, {^uint64(0) &^ 255, 257}} {
		if _, err := NewArena(bad[0], bad[1]); err == nil && bad[0]+bad[1] < bad[0] || err == nil && bad[0]%256 != 0 || err == nil && bad[0] == 0 {
			t.Errorf("arena %v was accepted", bad)
		}
	}
}

// Parts are aligned, inside the arena, apart from each other; and measuring agrees with laying out.
func TestArenaParts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.Uint64Range(0, 1<<14).Draw(t, "size")
		a, err := NewArena(4096, size)
		if err != nil {
			t.Fatal(err)
		}
		m := Measure()
		var end uint64 = 4096
		for range rapid.IntRange(0, 20).Draw(t, "parts") {
			bytes := rapid.Uint64Range(0, 3000).Draw(t, "bytes")
			align := uint64(1) << rapid.IntRange(0, 8).Draw(t, "align")
			before := a.Used()
			p, err := a.Bytes(bytes, align)
			if err != nil {
				if a.Used() != before || !errors.Is(err, ErrSpace) || before+bytes+align-1 < size {
					t.Fatalf("%v with %d of %d used, want %d", err, before, size, bytes)
				}
				return
			}
			if p%align != 0 || p < end || p+bytes > 4096+size {
				t.Fatalf("part [%d, +%d) after %d", p, bytes, end)
			}
			end = p + bytes
			if _, err := m.Bytes(bytes, align); err != nil || m.Used() != a.Used() {
				t.Fatalf("measured %d, used %d, %v", m.Used(), a.Used(), err)
			}
		}
	})
}

func TestViewsAllocateNothing(t *testing.T) {
	x := View{Ptr: 4096, Shape: Of(4, 128), DType: BF16}
	if n := testing.AllocsPerRun(100, func() {
		var s Sizes
		s.Bind("x", x, "T", "C")
		if x.Check("x", BF16, 16, Any, s.Get("C")) != nil || s.Err() != nil {
			t.Fatal("refused")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
