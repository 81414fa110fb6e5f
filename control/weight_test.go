package control

import (
	"bytes"
	"testing"

	"github.com/tokenrouter/tokenrouter/control/state"
)

// The weight is that of the snapshot, and a warning comes before it is too large.
func TestWeight(t *testing.T) {
	s := filled(t).view.State()
	w, err := weightOf(s)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := writeSnapshot(&out, s); err != nil || out.Len() != w.Bytes || w.Limit != maxSnapshot {
		t.Errorf("%d bytes, %+v, %v", out.Len(), w, err)
	}
	if w.Kinds[state.KindNode] == 0 || w.heavy() {
		t.Errorf("%+v", w)
	}
	w.Bytes = w.Limit / 5 * 4
	if w.heavy() {
		t.Error("heavy at 80 %")
	}
	if w.Bytes += 1 << 20; !w.heavy() {
		t.Error("not heavy above")
	}
	w.Kinds = map[state.ObjectKind]int{"a": 1, "b": 30, "c": 20, "d": 20}
	if got := w.largest(); got != "b 30, c 20, d 20" {
		t.Errorf("largest %q", got)
	}
}
