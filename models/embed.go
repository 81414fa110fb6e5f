package models

import (
	"embed"
	"io/fs"
	"slices"
)

//go:embed all:tiny-s all:tiny-m all:tiny-l
var files embed.FS

// problems is one JSON object a line: {"question": string, "answer": number}.
//
//go:embed eval/problems.jsonl
var problems string

// Names lists the embedded models from small to large.
func Names() []string { return []string{"tiny-s", "tiny-m", "tiny-l"} }

// FS returns the directory of one embedded model (config.json,
// model.safetensors, tokenizer.json and so on at its root). It reports false for
// a name that Names does not list.
func FS(name string) (fs.FS, bool) {
	if !slices.Contains(Names(), name) {
		return nil, false
	}
	sub, err := fs.Sub(files, name)
	return sub, err == nil
}

// Problems returns the evaluation set, one JSON object a line. The caller owns the bytes.
func Problems() []byte { return []byte(problems) }
