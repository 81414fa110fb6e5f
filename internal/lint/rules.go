package lint

import (
	"fmt"
	"go/ast"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Limits on sizes, in lines. A test function may be longer by its table.
const (
	MaxFileLines     = 600
	MaxFuncLines     = 80
	MaxTestFuncLines = 120
)

// drawers are names that say nothing about what is inside.
var drawers = [...]string{"util", "utils", "helper", "helpers", "common", "base", "misc", "manager"}

// Sizes reports files and functions over the limits.
func Sizes(f *File) []string {
	var out []string
	if f.Lines > MaxFileLines {
		out = append(out, fmt.Sprintf("%s: %d lines, the limit is %d", f.Path, f.Lines, MaxFileLines))
	}
	limit := MaxFuncLines
	if f.Test {
		limit = MaxTestFuncLines
	}
	for _, decl := range f.AST.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		lines := f.set.Position(fn.End()).Line - f.set.Position(fn.Pos()).Line + 1
		if lines > limit {
			out = append(out, fmt.Sprintf("%s: %s has %d lines, the limit is %d", f.at(fn.Pos()), fn.Name.Name, lines, limit))
		}
	}
	return out
}

// Goroutines reports go statements outside tests: a goroutine belongs to a
// group that somebody waits for.
func Goroutines(f *File) []string {
	if f.Test {
		return nil
	}
	var out []string
	ast.Inspect(f.AST, func(n ast.Node) bool {
		if stmt, ok := n.(*ast.GoStmt); ok {
			out = append(out, f.at(stmt.Pos())+": bare go statement; use a pool or group that is waited for")
		}
		return true
	})
	return out
}

// Sleeps reports time.Sleep in tests, also under another import name.
func Sleeps(f *File) []string {
	if !f.Test {
		return nil
	}
	name := importName(f, "time")
	if name == "" {
		return nil
	}
	var out []string
	ast.Inspect(f.AST, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok || sel.Sel.Name != "Sleep" {
			return true
		}
		if x, ok := sel.X.(*ast.Ident); ok && x.Name == name {
			out = append(out, f.at(sel.Pos())+": time.Sleep in a test; wait for an event or use testing/synctest")
		}
		return true
	})
	return out
}

// importName is the name under which f imports a package, or "".
func importName(f *File, pkg string) string {
	for _, spec := range f.AST.Imports {
		if unquoted(spec) != pkg {
			continue
		}
		if spec.Name != nil {
			return spec.Name.Name
		}
		return path.Base(pkg)
	}
	return ""
}

func unquoted(spec *ast.ImportSpec) string {
	text, err := strconv.Unquote(spec.Path.Value)
	if err != nil {
		return spec.Path.Value
	}
	return text
}

// Names reports drawers: packages, files, types and functions called util,
// helper, manager and the like.
func Names(f *File) []string {
	var out []string
	for _, element := range strings.Split(strings.TrimSuffix(f.Path, ".go"), "/") {
		if word := drawer(element); word != "" {
			out = append(out, fmt.Sprintf("%s: path says %q", f.Path, word))
		}
	}
	if word := drawer(f.AST.Name.Name); word != "" {
		out = append(out, fmt.Sprintf("%s: package name says %q", f.Path, word))
	}
	for _, decl := range f.AST.Decls {
		switch d := decl.(type) {
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				t, ok := spec.(*ast.TypeSpec)
				if !ok {
					continue
				}
				if word := drawer(t.Name.Name); word != "" {
					out = append(out, fmt.Sprintf("%s: type %s says %q", f.at(t.Pos()), t.Name.Name, word))
				}
			}
		case *ast.FuncDecl:
			// A token's base position is a term of the protocol.
			if word := drawer(d.Name.Name); word != "" && word != "base" {
				out = append(out, fmt.Sprintf("%s: function %s says %q", f.at(d.Pos()), d.Name.Name, word))
			}
		}
	}
	return out
}

// drawer is the forbidden word in a name, or "".
func drawer(name string) string {
	for _, word := range words(name) {
		if slices.Contains(drawers[:], word) {
			return word
		}
	}
	return ""
}

// words splits a name at capitals, underscores, dots and dashes, in lower case.
func words(name string) []string {
	var out []string
	var word []rune
	end := func() {
		if len(word) > 0 {
			out = append(out, strings.ToLower(string(word)))
			word = nil
		}
	}
	runes := []rune(name)
	for i, r := range runes {
		switch {
		case r == '_' || r == '-' || r == '.':
			end()
			continue
		case unicode.IsUpper(r) && i > 0 && (unicode.IsLower(runes[i-1]) || (i+1 < len(runes) && unicode.IsLower(runes[i+1]))):
			end()
		}
		word = append(word, r)
	}
	end()
	return out
}

// Inits reports init functions outside tests: what a package needs is passed in.
func Inits(f *File) []string {
	if f.Test {
		return nil
	}
	var out []string
	for _, decl := range f.AST.Decls {
		if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
			out = append(out, f.at(fn.Pos())+": init function")
		}
	}
	return out
}

// Docs reports package directories without a doc.go that has a package comment.
func Docs(files []*File) []string {
	documented := map[string]bool{}
	for _, f := range files {
		has := path.Base(f.Path) == "doc.go" && f.AST.Doc != nil
		documented[f.Dir()] = documented[f.Dir()] || has
	}
	var out []string
	for dir, ok := range documented {
		if !ok {
			out = append(out, dir+": no doc.go with a package comment")
		}
	}
	slices.Sort(out)
	return out
}

// Unnamed reports package directories that a text never names in backquotes.
func Unnamed(files []*File, text string) []string {
	seen := map[string]bool{}
	var out []string
	for _, f := range files {
		dir := f.Dir()
		if !seen[dir] && !strings.Contains(text, "`"+dir+"`") {
			out = append(out, dir+": not named")
		}
		seen[dir] = true
	}
	slices.Sort(out)
	return out
}

// TestImports reports product files that import the testing package.
func TestImports(f *File) []string {
	if f.Test {
		return nil
	}
	for _, spec := range f.AST.Imports {
		if unquoted(spec) == "testing" {
			return []string{f.at(spec.Pos()) + ": product code imports testing"}
		}
	}
	return nil
}
