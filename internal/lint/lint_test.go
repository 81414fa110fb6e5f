package lint

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// TestHouseRules holds the module's own source to the rules.
func TestHouseRules(t *testing.T) {
	files, err := Load("../..")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 20 {
		t.Fatalf("only %d files found", len(files))
	}
	rules := map[string]func(*File) []string{
		"sizes": Sizes, "goroutines": Goroutines, "sleeps": Sleeps, "names": Names,
		"inits": Inits, "testing": TestImports, "imports": Imports,
	}
	for name, rule := range rules {
		t.Run(name, func(t *testing.T) {
			for _, f := range files {
				for _, fault := range rule(f) {
					t.Error(fault)
				}
			}
		})
	}
	t.Run("docs", func(t *testing.T) {
		for _, fault := range Docs(files) {
			t.Error(fault)
		}
	})
	t.Run("architecture", func(t *testing.T) {
		text, err := os.ReadFile("../../docs/architecture.md")
		if err != nil {
			t.Fatal(err)
		}
		for _, fault := range Unnamed(files, string(text)) {
			t.Error("docs/architecture.md: " + fault)
		}
	})
}

func parse(t *testing.T, name, text string) *File {
	t.Helper()
	f, err := Parse(name, text)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestRules(t *testing.T) {
	long := "package p\nfunc f() {\n" + strings.Repeat("\t_ = 1\n", MaxFuncLines) + "}\n"
	tests := []struct {
		name, path, text string
		rule             func(*File) []string
		want             string // "" for no fault
	}{
		{"long function", "a/b.go", long, Sizes, "f has 82 lines"},
		{"long test function", "a/b_test.go", long, Sizes, ""},
		{"short function", "a/b.go", "package p\nfunc f() {}\n", Sizes, ""},
		{"long file", "a/b.go", "package p\n" + strings.Repeat("\n", MaxFileLines), Sizes, "601 lines"},
		{"go statement", "a/b.go", "package p\nfunc f() { go f() }\n", Goroutines, "a/b.go:2"},
		{"go statement in a test", "a/b_test.go", "package p\nfunc f() { go f() }\n", Goroutines, ""},
		{"go statement in a test package", "a/peertest/b.go", "package p\nfunc f() { go f() }\n", Goroutines, ""},
		{"sleep in a test", "a/b_test.go", "package p\nimport \"time\"\nfunc f() { time.Sleep(1) }\n", Sleeps, "time.Sleep"},
		{"sleep under another name", "a/b_test.go", "package p\nimport x \"time\"\nvar _ = x.Sleep\n", Sleeps, "time.Sleep"},
		{"other sleep", "a/b_test.go", "package p\nimport \"time\"\nvar _ time.Time\nfunc f(x t) { x.Sleep() }\n", Sleeps, ""},
		{"sleep in the product", "a/b.go", "package p\nimport \"time\"\nfunc f() { time.Sleep(1) }\n", Sleeps, ""},
		{"drawer file", "a/utils.go", "package p\n", Names, `path says "utils"`},
		{"drawer folder", "common/b.go", "package p\n", Names, `path says "common"`},
		{"drawer type", "a/b.go", "package p\ntype cacheManager struct{}\n", Names, "type cacheManager"},
		{"drawer function", "a/b.go", "package p\nfunc parseHelper() {}\n", Names, "function parseHelper"},
		{"base function", "a/b.go", "package p\nfunc baseURL() {}\n", Names, ""},
		{"part of a word", "a/database.go", "package p\ntype Utility struct{}\n", Names, ""},
		{"init", "a/b.go", "package p\nfunc init() {}\n", Inits, "init function"},
		{"init method", "a/b.go", "package p\nfunc (t) init() {}\n", Inits, ""},
		{"testing in the product", "a/b.go", "package p\nimport _ \"testing\"\n", TestImports, "imports testing"},
		{"testing in a test package", "a/xtest/b.go", "package p\nimport _ \"testing\"\n", TestImports, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) { check(t, test.rule(parse(t, test.path, test.text)), test.want) })
	}
}

func check(t *testing.T, faults []string, want string) {
	t.Helper()
	all := strings.Join(faults, "\n")
	if (want == "") != (all == "") || !strings.Contains(all, want) {
		t.Errorf("faults %q, want one with %q", all, want)
	}
}

func TestImportRules(t *testing.T) {
	own := func(s string) string { return Module + "/" + s }
	tests := []struct{ path, target, want string }{
		{"api/openai/a.go", "strings", ""},
		{"api/openai/a.go", own("api/sampling"), ""},
		{"api/openai/a.go", own("gateway"), "may import only"},
		{"api/openai/a.go", "github.com/goccy/go-yaml", "standard library"},
		{"policies/a.go", own("api/sampling"), ""},
		{"policies/a.go", own("worker/step"), "may import only"},
		{"worker/step/a.go", own("worker/kv"), "may import only"},
		{"worker/scheduler/a.go", own("worker/step"), ""},
		{"worker/scheduler/a.go", own("worker/executor"), "may import only"},
		{"worker/subservice/a.go", own("worker/scheduler"), ""},
		{"worker/subservice/a.go", own("gateway"), "may import only"},
		{"worker/subservice/a.go", own("cuda/driver"), "may import only"},
		{"worker/executor/cudaexec/a.go", own("cuda/driver"), ""},
		{"worker/executor/cudaexec/a.go", own("worker/scheduler"), "may import only"},
		{"gateway/a.go", own("worker/step"), "may import only"},
		{"gateway/a.go", own("policies"), "may import only"},
		{"gateway/a.go", "github.com/labstack/echo/v4", ""},
		{"internal/node/a.go", "github.com/labstack/echo/v4/middleware", "only gateway may"},
		{"internal/node/a.go", own("gateway"), ""},
		{"internal/h2/a.go", "golang.org/x/net/http2", ""},
		{"worker/peer/a.go", "golang.org/x/net/http2", "only internal/h2 may"},
		{"worker/peer/a_test.go", "golang.org/x/net/http2", ""},
		{"cmd/trctl/a.go", own("internal/node"), ""},
		{"models/a.go", "github.com/goccy/go-yaml", "standard library"},
	}
	for _, test := range tests {
		t.Run(test.path+" "+test.target, func(t *testing.T) {
			f := parse(t, test.path, "package p\nimport _ \""+test.target+"\"\n")
			check(t, Imports(f), test.want)
		})
	}
}

func TestDocs(t *testing.T) {
	files := []*File{
		parse(t, "a/doc.go", "// Package a is documented.\npackage a\n"),
		parse(t, "a/b.go", "package a\n"),
		parse(t, "b/b.go", "// Package b is documented in the wrong file.\npackage b\n"),
		parse(t, "c/doc.go", "package c\n"),
	}
	want := []string{"b: no doc.go with a package comment", "c: no doc.go with a package comment"}
	if got := Docs(files); !slices.Equal(got, want) {
		t.Errorf("Docs = %q, want %q", got, want)
	}
}

func TestUnnamed(t *testing.T) {
	files := []*File{
		parse(t, "a/b/doc.go", "package b\n"), parse(t, "a/b/c.go", "package b\n"),
		parse(t, "a/b/c/doc.go", "package c\n"), parse(t, "a/doc.go", "package a\n"),
	}
	want := []string{"a/b/c: not named", "a: not named"}
	if got := Unnamed(files, "| `a/b` | has `c` |"); !slices.Equal(got, want) {
		t.Errorf("Unnamed = %q, want %q", got, want)
	}
}

func TestWords(t *testing.T) {
	tests := map[string]string{
		"fileUtil": "file util", "HTTPHelper": "http helper", "base_model.go": "base model go",
		"database": "database", "KVPool": "kv pool", "": "", "x": "x", "ABC": "abc",
	}
	for name, want := range tests {
		if got := strings.Join(words(name), " "); got != want {
			t.Errorf("words(%q) = %q, want %q", name, got, want)
		}
	}
}
