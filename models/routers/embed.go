package routers

import (
	"embed"
	"io/fs"
	"slices"
	"strings"
)

//go:embed *.[mjs]*
var files embed.FS

// FS has the files of all shipped nets at its root.
func FS() fs.FS { return files }

// Names lists the shipped nets.
func Names() []string {
	var list []string
	weights, err := fs.Glob(files, "*.safetensors")
	if err != nil {
		panic(err) // the pattern is constant
	}
	for _, file := range weights {
		name := strings.TrimSuffix(file, ".safetensors")
		if _, err := fs.Stat(files, name+".json"); err == nil {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list
}
