package kernels

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"strings"
)

//go:embed src/*.cu src/*.cuh
var sources embed.FS

// Source returns the text of a kernel's file.
func Source(kernel string) (string, error) {
	b, err := sources.ReadFile("src/" + kernel + ".cu")
	if err != nil {
		return "", fmt.Errorf("source of kernel %q: %w", kernel, err)
	}
	return string(b), nil
}

// Headers returns all headers by the name that sources include them with.
func Headers() map[string]string {
	out := map[string]string{}
	names, err := fs.Glob(sources, "src/*.cuh")
	if err != nil {
		panic(err) // the pattern is constant
	}
	for _, name := range names {
		b, err := sources.ReadFile(name)
		if err != nil {
			panic(err) // embedded files can be read
		}
		out[path.Base(name)] = string(b)
	}
	return out
}

// Names lists the kernels.
func Names() []string {
	files, err := fs.Glob(sources, "src/*.cu")
	if err != nil {
		panic(err) // the pattern is constant
	}
	for i, f := range files {
		files[i] = strings.TrimSuffix(path.Base(f), ".cu")
	}
	return files
}
