package kv

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestScripts runs testdata/*.txt. Commands: new pages= size=; reserve, grow,
// truncate, release with t= (a table's name) and n=; launch and complete step=.
// Every answer ends with the pool's counts, after its invariants were checked.
func TestScripts(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatalf("scripts %v: %v", paths, err)
	}
	for _, path := range paths {
		var pool *Pool
		tables := map[string]*Table{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var name string
			var n int
			d.MaybeScanArgs(t, "t", &name)
			d.MaybeScanArgs(t, "n", &n)
			if tables[name] == nil && pool != nil {
				tables[name] = NewTable(pool)
			}
			var out strings.Builder
			switch d.Cmd {
			case "new":
				var pages, size int
				d.ScanArgs(t, "pages", &pages)
				d.ScanArgs(t, "size", &size)
				var err error
				if pool, err = NewPool(pages, size); err != nil {
					return err.Error() + "\n"
				}
			case "reserve":
				if err := tables[name].Reserve(n); err != nil {
					fmt.Fprintln(&out, err)
				}
			case "grow":
				entries, err := tables[name].Grow(n, nil)
				if err != nil {
					fmt.Fprintln(&out, err)
				}
				for _, e := range entries {
					fmt.Fprintf(&out, "[%d]=%d\n", e.Index, e.Page)
				}
			case "truncate":
				tables[name].Truncate(n)
			case "release":
				tables[name].Release()
			case "launch":
				pool.Launched(uint64(n))
			case "complete":
				pool.Completed(uint64(n))
			default:
				d.Fatalf(t, "unknown command %q", d.Cmd)
			}
			if err := pool.Check(); err != nil {
				fmt.Fprintln(&out, err)
			}
			c := pool.Counts()
			fmt.Fprintf(&out, "free %d held %d quarantined %d reserved %d allocs %d frees %d\n",
				c.Free, c.Held, c.Quarantined, c.Reserved, c.Allocs, c.Frees)
			return out.String()
		})
	}
}
