package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/cuda/kernels"
	"github.com/tokenrouter/tokenrouter/cuda/nvrtc"
	"github.com/tokenrouter/tokenrouter/internal/node"
)

func TestDimsOf(t *testing.T) {
	want := map[string]kernels.Dims{
		"tiny-s": {Hidden: 128, FFN: 256, Heads: 2, KVHeads: 1, HeadDim: 64, PageSize: 64, Vocab: 749},
		"tiny-l": {Hidden: 256, FFN: 768, Heads: 4, KVHeads: 2, HeadDim: 64, PageSize: 64, Vocab: 749},
	}
	for name, dims := range want {
		got, err := dimsOf(node.Model{Name: name}, 64)
		if err != nil || got != dims {
			t.Errorf("dimsOf(%s) = %+v, %v, want %+v", name, got, err, dims)
		}
		dir := filepath.Join("../../models", name)
		if got, err = dimsOf(node.Model{Name: "other", Dir: dir}, 64); err != nil || got != dims {
			t.Errorf("dimsOf(%s) = %+v, %v, want %+v", dir, got, err, dims)
		}
	}
	if _, err := dimsOf(node.Model{Name: "tiny-s"}, 63); !errors.Is(err, kernels.ErrDims) {
		t.Errorf("page size 63: %v", err)
	}
	if _, err := dimsOf(node.Model{Name: "x"}, 64); err == nil {
		t.Error("an unknown model has dimensions")
	}
	if _, err := dimsOf(node.Model{Name: "x", Dir: t.TempDir()}, 64); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an empty directory: %v", err)
	}
}

// The second build finds everything in the cache.
func TestKernelsBuild(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles for some seconds")
	}
	library := os.Getenv("TRCTL_NVRTC")
	if _, err := nvrtc.Load(nvrtc.Options{LibraryPath: library}); errors.Is(err, nvrtc.ErrNoLibrary) {
		t.Skipf("skip: %v", err)
	}
	cache := t.TempDir()
	for round := range 2 {
		var out strings.Builder
		args := []string{"kernels", "build", "--arch=sm_80", "--models=tiny-s", "--cache=" + cache, "-o", "json"}
		if code := run(context.Background(), args, process{out: &out, err: io.Discard}); code != exitDone {
			t.Fatalf("exit code %d", code)
		}
		var report kernelsReport
		if err := json.Unmarshal([]byte(out.String()), &report); err != nil {
			t.Fatal(err)
		}
		done := report.Built[0]
		if round == 0 && done.Compiled != done.Kernels || round == 1 && done.Cached != done.Kernels || done.Kernels == 0 {
			t.Errorf("round %d: %+v", round, done)
		}
	}
}
