package nvrtc

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tokenrouter/tokenrouter/cuda/internal/dynlib"
)

var (
	// ErrNoLibrary means that libnvrtc is absent or unusable, or that the build has no cgo.
	ErrNoLibrary = errors.New("no NVRTC library")
	// ErrProgram means that a Program is not valid; nothing was compiled.
	ErrProgram = errors.New("program is not valid")
)

// Options says which library to load. The zero value takes the newest one found.
type Options struct {
	// LibraryPath is a file to open instead of searching.
	LibraryPath string
	// MaxMajor is the newest major version to take, 0 for any. The cubin of a newer major version than the driver's
	// may not load, so pass the driver's.
	MaxMajor int
}

// minVersion is the oldest NVRTC that compiles sm_90a with C++17, as 1000·major + 10·minor.
const minVersion = 12000

// Compiler is a loaded NVRTC. It is safe for concurrent use and lives until the process ends.
type Compiler struct {
	table        *table
	path         string
	major, minor int
}

// Load opens NVRTC. The error wraps ErrNoLibrary and says where it was looked for.
func Load(o Options) (*Compiler, error) {
	var sonames []string
	for _, major := range []int{13, 12} {
		if o.MaxMajor == 0 || major <= o.MaxMajor {
			sonames = append(sonames, fmt.Sprintf("libnvrtc.so.%d", major))
		}
	}
	candidates := dynlib.Candidates(o.LibraryPath, sonames...)
	lib, err := dynlib.Open(candidates)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoLibrary, err)
	}
	t, err := newTable(lib)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrNoLibrary, lib.Path, err)
	}
	c := &Compiler{table: t, path: lib.Path}
	if c.major, c.minor, err = t.version(); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrNoLibrary, lib.Path, err)
	}
	if c.major*1000+c.minor*10 < minVersion {
		return nil, fmt.Errorf("%w: %s is version %s, need %d", ErrNoLibrary, lib.Path, c.Version(), minVersion/1000)
	}
	return c, nil
}

// Version is the version of the library, such as "12.9".
func (c *Compiler) Version() string { return fmt.Sprintf("%d.%d", c.major, c.minor) }

// Path is the library that was opened.
func (c *Compiler) Path() string { return c.path }

// Archs lists the virtual architectures that the library supports, ascending, such as 80 and 90.
func (c *Compiler) Archs() ([]int, error) { return c.table.archs() }

// Program is one source to compile. The kernels in it are extern "C".
type Program struct {
	// Name appears in messages, such as "rmsnorm.cu".
	Name string
	// Source is the text of the program.
	Source string
	// Headers maps the name in an include to the text of the header.
	Headers map[string]string
	// Arch is the target, such as "sm_80" or "sm_90a"; the result is code for exactly that.
	Arch string
	// Defines maps a macro to its value.
	Defines map[string]string
	// Options are further options of NVRTC, such as "-lineinfo". They come last.
	Options []string
}

// maxText bounds the text of a program with its headers.
const maxText = 16 << 20

// check refuses what C strings cannot carry or NVRTC would misread.
func (p *Program) check() error {
	if p.Name == "" || p.Source == "" {
		return fmt.Errorf("%w: no name or source", ErrProgram)
	}
	if digits := strings.TrimRight(strings.TrimPrefix(p.Arch, "sm_"), "af"); !strings.HasPrefix(p.Arch, "sm_") ||
		len(digits) < 2 || strings.Trim(digits, "0123456789") != "" {
		return fmt.Errorf("%s: %w: arch %q, want one like sm_90a", p.Name, ErrProgram, p.Arch)
	}
	size := len(p.Source)
	texts := append([]string{p.Name, p.Source}, p.Options...)
	for name, text := range p.Headers {
		size += len(text)
		texts = append(texts, name, text)
	}
	for name, value := range p.Defines {
		if name == "" || strings.ContainsAny(name, "= \t\n") {
			return fmt.Errorf("%s: %w: macro %q", p.Name, ErrProgram, name)
		}
		texts = append(texts, name, value)
	}
	if size > maxText {
		return fmt.Errorf("%s: %w: %d bytes of text, at most %d", p.Name, ErrProgram, size, maxText)
	}
	if slices.ContainsFunc(texts, func(s string) bool { return strings.IndexByte(s, 0) >= 0 }) {
		return fmt.Errorf("%s: %w: zero byte in the text", p.Name, ErrProgram)
	}
	return nil
}

// arguments lists the options as NVRTC gets them. Equal programs give equal lists.
func (p *Program) arguments() []string {
	out := []string{"--gpu-architecture=" + p.Arch, "--std=c++17", "-default-device", "--ptxas-options=-v"}
	for _, name := range slices.Sorted(maps.Keys(p.Defines)) {
		out = append(out, "-D"+name+"="+p.Defines[name])
	}
	return append(out, p.Options...)
}

// Binary is compiled code.
type Binary struct {
	// Cubin is the image for driver.Context.LoadModule.
	Cubin []byte
	// Log is what the compiler said: warnings, and the resources of each kernel.
	Log string
}

// CompileError is a refused program, with the whole log of the compiler.
type CompileError struct {
	// Program and Arch say what was compiled.
	Program, Arch string
	// Reason is the library's word for the result.
	Reason string
	// Log is the compiler's output.
	Log string
}

func (e *CompileError) Error() string {
	text := fmt.Sprintf("compile %s for %s: %s", e.Program, e.Arch, e.Reason)
	if e.Log != "" {
		text += "\n" + e.Log
	}
	return text
}

// Compile compiles one program. A program that the compiler refuses is a *CompileError. The call keeps its thread
// busy for 0.1 to 2 seconds.
func (c *Compiler) Compile(p Program) (Binary, error) {
	if err := p.check(); err != nil {
		return Binary{}, err
	}
	b, reason := c.table.compile(&p)
	if reason != "" {
		return Binary{}, &CompileError{Program: p.Name, Arch: p.Arch, Reason: reason, Log: b.Log}
	}
	return b, nil
}
