package decimal

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestEncode(t *testing.T) {
	v := New(1000)
	tests := []struct {
		text string
		want []int32
		bad  bool
	}{
		{"", nil, false},
		{"7", []int32{7}, false},
		{" 0 999\n12\t", []int32{0, 999, 12}, false},
		{"007", []int32{7}, false},
		{"1000", nil, true},
		{"-1", nil, true},
		{"+1", nil, true},
		{"1.0", nil, true},
		{"hello", nil, true},
		{"99999999999999999999", nil, true},
	}
	for _, tc := range tests {
		got, err := v.Encode(tc.text)
		if !slices.Equal(got, tc.want) || errors.Is(err, ErrText) != tc.bad {
			t.Errorf("%q: %v, %v", tc.text, got, err)
		}
	}
}

func TestText(t *testing.T) {
	v := New(50)
	if got := v.Next(0) + v.Next(49) + v.Next(-1) + v.Next(50) + v.Flush(); got != " 0 49" {
		t.Errorf("text %q", got)
	}
	if v.TokenBytes(50) != nil || string(v.TokenBytes(3)) != " 3" {
		t.Error("bytes of a token")
	}
	if New(50).Fingerprint() != v.Fingerprint() || New(51).Fingerprint() == v.Fingerprint() || v.Size() != 50 {
		t.Error("fingerprint or size")
	}
}

// Every text that can be read is, written again, read as the same ids.
func FuzzRoundTrip(f *testing.F) {
	f.Add(" 1 2 3")
	f.Add("9999999999999999999999")
	f.Add("\u00a01")
	f.Fuzz(func(t *testing.T, text string) {
		v := New(1 << 20)
		ids, err := v.Encode(text)
		if err != nil {
			return
		}
		var b strings.Builder
		for _, id := range ids {
			b.WriteString(v.Next(id))
		}
		again, err := v.Encode(b.String())
		if err != nil || !slices.Equal(again, ids) {
			t.Errorf("%q gives %v, then %v, %v", text, ids, again, err)
		}
	})
}
