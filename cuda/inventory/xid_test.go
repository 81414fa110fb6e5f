package inventory

import (
	"slices"
	"strings"
	"testing"
)

func TestEvent(t *testing.T) {
	tests := []struct {
		e             Event
		text, label   string
		known, spoils bool
	}{
		{Event{Kind: XID, Code: 13, UUID: "a"}, "Xid 13 (exception in a kernel) on a", "13", true, false},
		{Event{Kind: XID, Code: 79, UUID: "a"}, "Xid 79 (the GPU has fallen off the bus) on a", "79", true, true},
		{Event{Kind: XID, Code: 79}, "Xid 79 (the GPU has fallen off the bus) on an unknown GPU", "79", true, true},
		{Event{Kind: XID, Code: 9999, UUID: "a"}, "Xid 9999 (not in trctl's list) on a", "other", false, false},
		{Event{Kind: DoubleBit, UUID: "a"}, "memory error that cannot be corrected on a", "double-bit-ecc", true, true},
		{Event{Kind: Lost, UUID: "a"}, "the GPU does not answer on a", "lost", true, true},
	}
	for _, tt := range tests {
		if got := tt.e.String(); got != tt.text {
			t.Errorf("got %q, want %q", got, tt.text)
		}
		if m := tt.e.Meaning(); m.Spoils != tt.spoils || m.What == "" || m.Do == "" {
			t.Errorf("%v means %+v", tt.e, m)
		}
		if tt.e.Known() != tt.known || tt.e.Label() != tt.label || !slices.Contains(Labels(), tt.e.Label()) {
			t.Errorf("%v: known %v, label %q", tt.e, tt.e.Known(), tt.e.Label())
		}
	}
}

// A GPU is condemned by what a process that opens it anew cannot help.
func TestCondemns(t *testing.T) {
	for code := range uint64(200) {
		want := slices.Contains([]uint64{48, 64, 79, 95, 119, 120}, code)
		e := Event{Kind: XID, Code: code, UUID: "a"}
		if e.Condemns() != want {
			t.Errorf("%v condemns: %v, want %v", e, e.Condemns(), want)
		}
		if m := e.Meaning(); want && !m.Urgent || m.Spoils && !want {
			t.Errorf("%v condemns: %v, and means %+v", e, want, m)
		}
	}
	for kind, want := range map[Kind]bool{Lost: true, DoubleBit: true, "mood": false} {
		if got := (Event{Kind: kind}).Condemns(); got != want {
			t.Errorf("%s condemns: %v, want %v", kind, got, want)
		}
	}
}

// Every known fault says what it is and what to do; the GPU that it spoils is one that needs a hand.
func TestXids(t *testing.T) {
	for _, code := range []uint64{13, 31, 43, 45, 48, 63, 64, 74, 79, 92, 94, 95, 119, 120} {
		if _, known := xids()[code]; !known {
			t.Errorf("Xid %d is not known", code)
		}
	}
	for code, m := range xids() {
		if m.What == "" || m.Do == "" || m.Spoils && !m.Urgent || strings.HasSuffix(m.Do, ".") {
			t.Errorf("Xid %d: %+v", code, m)
		}
	}
	labels := Labels()
	slices.Sort(labels)
	if len(slices.Compact(labels)) != len(xids())+3 {
		t.Errorf("the labels are %v", labels)
	}
}
