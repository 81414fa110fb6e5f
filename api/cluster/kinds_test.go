package cluster

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/protocol"
)

// Every kind of a command has a body, and came with a version that this build speaks.
func TestKinds(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") || path == "next.go" { // which is of another build
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Values) != 1 {
				return true
			}
			if typ, ok := spec.Type.(*ast.Ident); !ok || typ.Name != "Kind" {
				return true
			}
			text, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			seen++
			if k := Kind(text); k.body() == nil || !protocol.Cluster().Has(k.since()) {
				t.Errorf("%s: body %T, version %d", text, k.body(), k.since())
			}
			return true
		})
	}
	if seen < 15 {
		t.Errorf("only %d kinds were found", seen)
	}
}
