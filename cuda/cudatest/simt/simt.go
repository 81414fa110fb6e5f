package simt

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/tokenrouter/tokenrouter/cuda/nvrtc"
)

// ErrUnavailable says that this machine or build cannot emulate kernels.
var ErrUnavailable = errors.New("kernels cannot be emulated here")

//go:embed shim/simt.h shim/ptx.cuh
var shim embed.FS

// Compiler makes module images that the emulated driver loads. Images are shared objects kept in a directory; an image
// is the object's path with a final zero byte. It is safe for concurrent use.
type Compiler struct {
	dir, cxx string
	mu       sync.Mutex
}

// NewCompiler uses the machine's C++ compiler and keeps its objects in dir; they are found again by the hash of their
// source. It returns ErrUnavailable when there is no compiler.
func NewCompiler(dir string) (*Compiler, error) {
	cxx, err := exec.LookPath("c++")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return &Compiler{dir: dir, cxx: cxx}, nil
}

// Build compiles programs of one kernel each, whose file is named for it. It is the emulator's kernels.Builder.
func (c *Compiler) Build(ctx context.Context, programs []nvrtc.Program) ([]nvrtc.Binary, nvrtc.BuildStats, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]nvrtc.Binary, len(programs))
	for i, p := range programs {
		if err := ctx.Err(); err != nil {
			return nil, nvrtc.BuildStats{}, err
		}
		image, err := c.compile(p)
		if err != nil {
			return nil, nvrtc.BuildStats{}, err
		}
		out[i] = nvrtc.Binary{Cubin: image}
	}
	return out, nvrtc.BuildStats{Compiled: len(out)}, nil
}

func (c *Compiler) compile(p nvrtc.Program) ([]byte, error) {
	name := strings.TrimSuffix(p.Name, ".cu")
	files := maps.Clone(p.Headers)
	if files == nil {
		files = map[string]string{}
	}
	err := fs.WalkDir(shim, "shim", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := shim.ReadFile(path)
		files[filepath.Base(path)] = string(b)
		return err
	})
	if err != nil {
		return nil, err
	}
	var unit strings.Builder
	unit.WriteString("#include \"simt.h\"\n")
	for _, n := range slices.Sorted(maps.Keys(p.Defines)) {
		fmt.Fprintf(&unit, "#define %s %s\n", n, p.Defines[n])
	}
	fmt.Fprintf(&unit, "#line 1 \"%s.cu\"\n%s\nSIMT_EXPORT(%s)\n", name, p.Source, name)
	files[name+".cc"] = unit.String()
	return c.build(name, files)
}

// build writes the files into a directory named for their hash and compiles there, unless it has been done before.
func (c *Compiler) build(name string, files map[string]string) ([]byte, error) {
	names := slices.Sorted(maps.Keys(files))
	h := sha256.New()
	for _, n := range names {
		fmt.Fprintf(h, "%s\x00%d\x00%s", n, len(files[n]), files[n])
	}
	object := filepath.Join(c.dir, name+"-"+hex.EncodeToString(h.Sum(nil)[:10])+".so")
	image := append([]byte(object), 0)
	if _, err := os.Stat(object); err == nil {
		return image, nil
	}
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return nil, err
	}
	work, err := os.MkdirTemp(c.dir, name)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	for _, n := range names {
		if err := os.WriteFile(filepath.Join(work, n), []byte(files[n]), 0o644); err != nil {
			return nil, err
		}
	}
	out := filepath.Join(work, "out.so")
	cmd := exec.Command(c.cxx, "-std=c++17", "-O2", "-ffp-contract=off", "-fno-strict-aliasing", "-fcf-protection=none",
		"-w", "-shared", "-fPIC", "-I", work, "-o", out, filepath.Join(work, name+".cc"))
	if text, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("compile %s: %w\n%s", name, err, text)
	}
	return image, os.Rename(out, object)
}
