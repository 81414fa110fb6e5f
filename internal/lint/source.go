package lint

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// File is one parsed Go file of the module.
type File struct {
	// Path is slash-separated and relative to the module's root.
	Path string
	// Test says that the file is no part of a product build: a _test.go file,
	// or any file of a package whose name ends in "test".
	Test  bool
	Lines int
	AST   *ast.File
	set   *token.FileSet
}

// Dir is the file's package directory, "." for the root.
func (f *File) Dir() string { return path.Dir(f.Path) }

// at names a place in the file.
func (f *File) at(pos token.Pos) string {
	return fmt.Sprintf("%s:%d", f.Path, f.set.Position(pos).Line)
}

// Parse reads one file's text.
func Parse(name, text string) (*File, error) {
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("parse: %w", err)
	}
	return &File{
		Path:  name,
		Test:  strings.HasSuffix(name, "_test.go") || strings.HasSuffix(path.Base(path.Dir(name)), "test"),
		Lines: strings.Count(text, "\n"),
		AST:   tree,
		set:   set,
	}, nil
}

// Load parses every Go file of the module at root. Hidden folders, testdata and
// nested modules are left out.
func Load(root string) ([]*File, error) {
	var files []*File
	err := filepath.WalkDir(root, func(full string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, full)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if rel != "." && skipped(full, d.Name()) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(d.Name(), ".go") {
			return nil
		}
		text, err := os.ReadFile(full)
		if err != nil {
			return err
		}
		f, err := Parse(filepath.ToSlash(rel), string(text))
		if err != nil {
			return err
		}
		files = append(files, f)
		return nil
	})
	return files, err
}

func skipped(full, name string) bool {
	if strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "testdata" || name == "node_modules" || name == "build" {
		return true
	}
	_, err := os.Stat(filepath.Join(full, "go.mod"))
	return err == nil
}
