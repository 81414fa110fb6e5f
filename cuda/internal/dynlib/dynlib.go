package dynlib

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// ErrNotFound is returned by Open when no candidate could be opened, and always in a build without cgo.
var ErrNotFound = errors.New("library not found")

// Library is an open shared library. It stays open until the process ends.
type Library struct {
	// Handle is what dlopen returned, for dlsym in the C code of the caller.
	Handle uintptr
	// Path is the name that was opened: a file, or a bare soname found by the system's loader.
	Path string
}

// Open opens the first of the candidates that loads, in order. The error wraps ErrNotFound and quotes the loader's
// message for each file that exists but did not load, and for the first candidate.
func Open(candidates []string) (Library, error) {
	var reasons []string
	for i, name := range candidates {
		handle, reason := open(name)
		if handle != 0 {
			return Library{Handle: handle, Path: name}, nil
		}
		if i == 0 || strings.Contains(name, "/") {
			reasons = append(reasons, reason)
		}
	}
	if len(reasons) == 0 {
		return Library{}, fmt.Errorf("%w: no candidates", ErrNotFound)
	}
	return Library{}, fmt.Errorf("%w: %s", ErrNotFound, strings.Join(reasons, "; "))
}

// Candidates lists what to try for a library: an explicit path alone when it is given, else each soname by the
// system's loader, then the files of that name in the well-known folders of the CUDA toolkit and of its Python
// wheels. Sonames come in order of preference. A file is only listed when it exists.
func Candidates(explicit string, sonames ...string) []string {
	if explicit != "" {
		return []string{explicit}
	}
	out := slices.Clone(sonames)
	for _, soname := range sonames {
		for _, folder := range wellKnown() {
			matches, err := filepath.Glob(filepath.Join(folder, soname))
			if err != nil {
				continue // only a malformed pattern fails, and the patterns are constants
			}
			slices.Sort(matches)
			slices.Reverse(matches) // newest version first
			out = append(out, matches...)
		}
	}
	return out
}

// wellKnown returns the glob patterns of the folders that hold CUDA libraries when the loader's cache does not.
func wellKnown() []string {
	return []string{
		"/usr/local/cuda/lib64",
		"/usr/local/cuda/targets/*/lib",
		"/usr/local/cuda-1*/lib64",
		"/usr/local/cuda-1*/targets/*/lib",
		"/opt/cuda/lib64",
		"/usr/lib/x86_64-linux-gnu",
		"/usr/lib/aarch64-linux-gnu",
		"/usr/lib/python3*/*-packages/nvidia/*/lib",
		"/usr/lib/python3/dist-packages/nvidia/*/lib",
		"/usr/local/lib/python3*/*-packages/nvidia/*/lib",
		"/opt/*/lib/python3*/site-packages/nvidia/*/lib",
	}
}
