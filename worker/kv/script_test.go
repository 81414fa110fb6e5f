package kv

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestScripts runs testdata/*.txt. Commands: new pages= size=; reserve, grow,
// truncate, release with t= (a table's name) and n=; launch and complete n=;
// claim, publish and retire with text= (its letters are the ids) and n=; drop.
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
				if kept := tables[name].Truncate(n); kept != n {
					fmt.Fprintf(&out, "kept %d\n", kept)
				}
			case "release":
				tables[name].Release()
			case "claim":
				found, err := tables[name].Claim(keysOf(t, pool, d), n)
				if err != nil {
					fmt.Fprintln(&out, err)
				}
				fmt.Fprintf(&out, "found %v\n", tables[name].Pages()[:found])
			case "publish":
				tables[name].Publish(keysOf(t, pool, d))
			case "retire":
				tables[name].Retire(keysOf(t, pool, d))
			case "drop":
				pool.DropCache()
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
			if c.Cached+c.Indexed > 0 || c.Queries > 0 {
				fmt.Fprintf(&out, "cached %d indexed %d queries %d hits %d evictions %d\n",
					c.Cached, c.Indexed, c.Queries, c.Hits, c.Evictions)
			}
			return out.String()
		})
	}
}

// keysOf returns the keys of the full pages of text=, for the tenant salt=.
func keysOf(t *testing.T, pool *Pool, d *datadriven.TestData) []Key {
	var text string
	var salt int
	d.MaybeScanArgs(t, "text", &text)
	d.MaybeScanArgs(t, "salt", &salt)
	ids := make([]int32, 0, len(text))
	for _, r := range text {
		ids = append(ids, r)
	}
	return pool.AppendKeys(nil, &[32]byte{byte(salt)}, ids)
}
