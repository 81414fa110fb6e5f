package trace

import (
	"encoding/json"
	"errors"
	"net/http/httptest"
	"testing"
	"time"
)

func TestID(t *testing.T) {
	for _, text := range []string{"chatcmpl-00000000000000ff", "cmpl-00000000000000ff", "00000000000000ff"} {
		if id, err := ID(text); err != nil || id != 255 || Text(id) != "00000000000000ff" {
			t.Errorf("%s: %d, %v", text, id, err)
		}
	}
	for _, text := range []string{"", "x", "ff", "chatcmpl-", "chatcmpl-00000000000000fg", "req-00000000000000ff", "+0000000000000ff", "000000000000000ff"} {
		if _, err := ID(text); !errors.Is(err, ErrID) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestSort(t *testing.T) {
	began := time.Unix(0, 0)
	parts := []Part{
		{Epoch: 2, Replica: "b"}, {Epoch: 2, Replica: "a", Entry: true}, {Epoch: 1, Replica: "c", Began: began.Add(1)},
		{Epoch: 1, Replica: "d", Began: began}, {Epoch: 1, Replica: "e", Began: began},
	}
	Sort(parts)
	got := ""
	for _, p := range parts {
		got += p.Replica
	}
	if got != "decab" {
		t.Error(got)
	}
}

func TestHandler(t *testing.T) {
	h := Handler(func(id uint64) []Part { return []Part{{Request: Text(id)}} })
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", Path+"?id=chatcmpl-00000000000000ff", nil))
	var parts []Part
	if err := json.Unmarshal(w.Body.Bytes(), &parts); err != nil || w.Code != 200 || len(parts) != 1 || parts[0].Request != "00000000000000ff" {
		t.Errorf("%d %s %v", w.Code, w.Body, err)
	}
	w = httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", Path+"?id=nothing", nil))
	if w.Code != 400 {
		t.Error(w.Code)
	}
}

func FuzzID(f *testing.F) {
	f.Add("chatcmpl-0123456789abcdef")
	f.Add("cmpl-chatcmpl-0123456789abcdef")
	f.Fuzz(func(t *testing.T, text string) {
		if id, err := ID(text); err == nil {
			if again, err := ID(Text(id)); err != nil || again != id {
				t.Errorf("%q is %d, which is %d, %v", text, id, again, err)
			}
		}
	})
}
