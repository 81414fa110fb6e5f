package router

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/worker/model"
	"github.com/tokenrouter/tokenrouter/worker/router/pickle"
)

// TestConvert: files of torch.save give the same nets as the pairs that Python wrote.
func TestConvert(t *testing.T) {
	for _, tc := range []struct {
		file, pair string
		c          Conversion
	}{
		{"r2r.pt", "r2r", Conversion{}},
		{"r2r-normalized.pt", "r2r-normalized", Conversion{}},
		{"citer.pth", "citer", Conversion{Model: "random"}},
		{"citer-legacy.pth", "citer", Conversion{Model: "random"}},
	} {
		got, err := Convert("testdata/"+tc.file, tc.c)
		if err != nil {
			t.Errorf("%s: %v", tc.file, err)
			continue
		}
		want := read(t, tc.pair)
		if got.Kind != want.Kind || got.Model != "random" || got.HiddenSize != want.HiddenSize || got.LogitsSize != want.LogitsSize || got.NormalizeInput != want.NormalizeInput {
			t.Errorf("%s: %+v, want %+v", tc.file, got.Sidecar, want.Sidecar)
		}
		if want.Kind == R2R && (got.Threshold == nil || *got.Threshold != 0.35) {
			t.Errorf("%s: threshold %v", tc.file, got.Threshold)
		}
		mine, theirs := got.Tensors(), want.Tensors()
		if len(mine) != len(theirs) {
			t.Errorf("%s: %d tensors, want %d", tc.file, len(mine), len(theirs))
			continue
		}
		for i := range mine {
			if mine[i].Name != theirs[i].Name || !bytes.Equal(mine[i].Bytes, theirs[i].Bytes) {
				t.Errorf("%s: tensor %s differs from %s", tc.file, mine[i].Name, theirs[i].Name)
			}
		}
	}
}

func TestConvertRefuses(t *testing.T) {
	if _, err := Convert("testdata/citer.pth", Conversion{}); !errors.Is(err, ErrNoModel) {
		t.Errorf("without a model: %v", err)
	}
	if _, err := Convert("testdata/hostile.pt", Conversion{}); !errors.Is(err, pickle.ErrRefused) || !strings.Contains(err.Error(), `"posix.system"`) {
		t.Errorf("a file that runs a program: %v", err)
	}
	if _, err := Convert("testdata/absent.pt", Conversion{}); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if _, err := Convert("testdata", Conversion{}); err == nil {
		t.Error("a folder was read")
	}
	raw, err := os.ReadFile("testdata/r2r.pt")
	if err != nil {
		t.Fatal(err)
	}
	// Another class of the same length; the archive's sum is over the old one.
	other := bytes.ReplaceAll(raw, []byte(published), []byte("HiddenStatesTokenLMHeadLogitsClassifieX"))
	if _, err := convert("x", bytes.NewReader(other), int64(len(other)), Conversion{}); err == nil {
		t.Error("a damaged file was read")
	}
	s := Sidecar{}
	if err := s.recognise([]model.Tensor{{Name: "weight", Shape: []int{2, 2}}}); !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "no kind") {
		t.Error(err)
	}
}
