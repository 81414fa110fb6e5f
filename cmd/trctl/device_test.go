package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestByteSize(t *testing.T) {
	for text, want := range map[string]byteSize{
		"1": 1, "141GB": 141e9, "80GiB": 80 << 30, "1.5 MiB": 3 << 19, "2kb": 2000, "7B": 7, "1TiB": 1 << 40,
	} {
		var got byteSize
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "GB", "-1GB", "0", "1XB", "1e30", "nan", "inf", "5 G", "12GBB"} {
		var got byteSize
		if err := got.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is read as %d", text, got)
		}
	}
}

func TestLoadFrom(t *testing.T) {
	var l loadFrom
	if err := l.UnmarshalText([]byte("dummy:18446744073709551615")); err != nil || *l.dummy() != 1<<64-1 {
		t.Errorf("%d, %v", l, err)
	}
	for _, text := range []string{"", "dummy", "dummy:", "dummy:-1", "dummy:18446744073709551616", "real:1"} {
		if err := l.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is read as %d", text, l)
		}
	}
	if (*loadFrom)(nil).dummy() != nil {
		t.Error("nothing asked for is a seed")
	}
}

func TestLoadingLines(t *testing.T) {
	var out bytes.Buffer
	l := newLoading(process{err: &out})
	const total = 4 << 30
	for _, done := range []int64{1 << 20, 1 << 30, 3 << 29, 2 << 30, 1 << 30, 3 << 30, total} { // one report is late
		l.report("big", done, total)
	}
	l.report("big", total, total)
	l.report("big", 1<<20, total) // loaded anew
	l.report("big", total, total)
	l.end()
	want := []string{"1.0", "2.0", "3.0", "4.0", "4.0"}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != len(want) {
		t.Fatalf("%d lines, want %d:\n%s", len(lines), len(want), out.String())
	}
	for i, line := range lines {
		if line != "big: "+want[i]+" of 4.0 GiB of weights on the GPU" {
			t.Errorf("line %d: %q", i, line)
		}
	}
}
