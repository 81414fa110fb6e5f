package router

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
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

// saved is an archive of torch.save that holds what a program builds.
func saved(t *testing.T, program string) *pickle.Dict {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	e, err := w.CreateHeader(&zip.FileHeader{Name: "x/data.pkl", Method: zip.Store})
	if err == nil {
		_, err = e.Write([]byte(program))
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	f, err := pickle.Open(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		t.Fatal(err)
	}
	return f.Root.(*pickle.Dict)
}

// text is a string as pickles have it.
func text(s string) string {
	return "X" + string(binary.LittleEndian.AppendUint32(nil, uint32(len(s)))) + s
}

// changed is a file of torch.save with another program.
func changed(t *testing.T, file string, change func(program string) string) *bytes.Reader {
	t.Helper()
	in, err := zip.OpenReader(file)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	var b bytes.Buffer
	out := zip.NewWriter(&b)
	for _, e := range in.File {
		r, err := e.Open()
		if err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(e.Name, "/data.pkl") {
			raw = []byte(change(string(raw)))
		}
		w, err := out.CreateHeader(&zip.FileHeader{Name: e.Name, Method: zip.Store})
		if err == nil {
			_, err = w.Write(raw)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	return bytes.NewReader(b.Bytes())
}

// TestWrappedStates: what a training script saves of a net that was wrapped is the same net.
func TestWrappedStates(t *testing.T) {
	want := read(t, "citer").Tensors()
	named := func(prefix string) func(string) string {
		return func(program string) string {
			for _, x := range want {
				program = strings.ReplaceAll(program, text(x.Name), text(prefix+x.Name))
				if layer, ok := strings.CutSuffix(x.Name, "running_mean"); ok {
					program = strings.ReplaceAll(program, text(layer+"num_batches_tracked"), text(prefix+layer+"num_batches_tracked"))
				}
			}
			return program
		}
	}
	inside := func(key string) func(string) string {
		return func(program string) string {
			body := strings.TrimSuffix(strings.TrimPrefix(program, "\x80\x02"), ".")
			return "\x80\x02}" + text("epoch") + "K\x03s" + text(key) + body + "s."
		}
	}
	for name, tc := range map[string]struct {
		change func(string) string
		says   string
	}{
		"as it is":              {named(""), ""},
		"data parallel":         {named("module."), ""},
		"compiled":              {named("_orig_mod."), ""},
		"both":                  {named("module._orig_mod."), ""},
		"part of another net":   {named("head."), "no kind of router"},
		"in a checkpoint":       {inside("model_state_dict"), ""},
		"in lightning's":        {inside("state_dict"), ""},
		"under an unknown name": {inside("net"), "expected tensors under their names"},
		"both, in a checkpoint": {func(p string) string { return inside("model")(named("_orig_mod.module.")(p)) }, ""},
	} {
		in := changed(t, "testdata/citer.pth", tc.change)
		got, err := convert("x", in, in.Size(), Conversion{Model: "random"})
		if (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, want %q", name, err, tc.says)
		}
		if err != nil {
			continue
		}
		for i, x := range got.Tensors() {
			if x.Name != want[i].Name || !bytes.Equal(x.Bytes, want[i].Bytes) {
				t.Errorf("%s: tensor %s differs from %s", name, x.Name, want[i].Name)
			}
		}
	}
}

// TestSettings reads what published files say, in the forms that Python has for it.
func TestSettings(t *testing.T) {
	all := text("logits") + text("token") + text("hidden_states")
	for _, tc := range []struct {
		name, init, common string // keys and values
		model              string
		threshold          float64 // -1 for none
		says               string
	}{
		{"nothing", "", "", "", -1, ""},
		{"a name of the hub", text("pretrained_model_name") + text("Qwen/Qwen3-0.6B"), "", "qwen3-0.6b", -1, ""},
		{"a directory", text("pretrained_model_name") + text("/data/Qwen3-0.6B/"), "", "qwen3-0.6b", -1, ""},
		{"an empty name", text("pretrained_model_name") + text(""), "", "", -1, ""},
		{"a number for a name", text("pretrained_model_name") + "K\x07", "", "", -1, ""},
		{"a whole threshold", "", text("threshold") + "K\x01", "", 1, ""},
		{"no threshold", "", text("threshold") + "N", "", -1, ""},
		{"a truth for a threshold", "", text("threshold") + "\x88", "", -1, "expected a number, found bool"},
		{"a list of inputs", "", text("input_type") + "](" + all + "e", "", -1, ""},
		{"a tuple of inputs", "", text("input_type") + "(" + all + "t", "", -1, ""},
		{"two inputs", "", text("input_type") + text("logits") + text("token") + "\x86", "", -1, "inputs other than"},
		{"one input", "", text("input_type") + text("logits"), "", -1, "inputs other than"},
		{"positions", text("use_position_embedding") + "\x88", "", "", -1, "position embeddings"},
	} {
		s := Sidecar{}
		err := s.settings(saved(t, "\x80\x02}("+text("init_args")+"}("+tc.init+"u"+text("common_args")+"}("+tc.common+"uu."))
		if (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.says)
			continue
		}
		if s.Model != tc.model || (s.Threshold == nil) != (tc.threshold < 0) || s.Threshold != nil && *s.Threshold != tc.threshold {
			t.Errorf("%s: %+v", tc.name, s)
		}
	}
}
