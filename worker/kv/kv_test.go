package kv

import (
	"errors"
	"testing"

	"pgregory.net/rapid"
)

func TestNewPoolRefusesSizes(t *testing.T) {
	for _, c := range []struct {
		name        string
		pages, size int
		ok          bool
	}{
		{"smallest", 1, 1, true},
		{"no pages", 0, 16, false},
		{"negative", -1, 16, false},
		{"too many pages", MaxPages + 1, 16, false},
		{"no slots", 1, 0, false},
		{"page too large", 1, MaxPageSize + 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := NewPool(c.pages, c.size); (err == nil) != c.ok || err != nil && !errors.Is(err, ErrBadPool) {
				t.Fatalf("error %v", err)
			}
		})
	}
}

func TestPagesFor(t *testing.T) {
	p, _ := NewPool(1, 4)
	for positions, want := range map[int]int{-1: 0, 0: 0, 1: 1, 4: 1, 5: 2, 8: 2, 9: 3} {
		if got := p.PagesFor(positions); got != want {
			t.Errorf("PagesFor(%d) = %d, want %d", positions, got, want)
		}
	}
}

func TestMisusePanics(t *testing.T) {
	mustPanic := func(name string, f func()) {
		t.Helper()
		defer func() {
			if recover() == nil {
				t.Errorf("%s did not panic", name)
			}
		}()
		f()
	}
	p, _ := NewPool(2, 4)
	_ = p.Reserve(1)
	page, _ := p.Alloc()
	p.Free(page)
	mustPanic("double free", func() { p.Free(page) })
	mustPanic("free out of range", func() { p.Free(2) })
	mustPanic("unreserve", func() { p.Unreserve(1) })
	if _, err := p.Alloc(); !errors.Is(err, ErrNotReserved) {
		t.Errorf("alloc without a promise: %v", err)
	}
}

// modelTable is the slow second opinion: what one table should hold.
type modelTable struct{ pages, promised int }

// TestAgainstModel drives a pool with random events. The model knows only
// counts and, for each page, the step that it waits for.
func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.IntRange(1, 12).Draw(t, "pages")
		size := rapid.IntRange(1, 4).Draw(t, "size")
		pool, err := NewPool(total, size)
		if err != nil {
			t.Fatal(err)
		}
		tables := make([]*Table, 4)
		for i := range tables {
			tables[i] = NewTable(pool)
		}
		model := make([]modelTable, len(tables))
		waits := map[int32]uint64{} // page → step
		var launched, completed uint64
		promised := func() (n int) {
			for _, m := range model {
				n += m.promised
			}
			return n
		}
		held := func() (n int) {
			for _, m := range model {
				n += m.pages
			}
			return n
		}
		retire := func(pages []int32) {
			for _, p := range pages {
				if launched > completed {
					waits[p] = launched
				}
			}
		}
		ceil := func(n int) int { return (n + size - 1) / size }
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			i := rapid.IntRange(0, len(tables)-1).Draw(t, "table")
			n := rapid.IntRange(0, (total+1)*size).Draw(t, "n")
			tab, m := tables[i], &model[i]
			free := total - held() - len(waits)
			switch rapid.IntRange(0, 6).Draw(t, "event") {
			case 0:
				more := max(0, ceil(n)-m.pages-m.promised)
				ok := more == 0 || more <= free-promised()
				if err := tab.Reserve(n); (err == nil) != ok {
					t.Fatalf("reserve %d: %v", n, err)
				}
				if ok {
					m.promised += more
				}
			case 1, 2:
				more := max(0, ceil(n)-m.pages)
				ok := more <= m.promised && more <= free
				entries, err := tab.Grow(n, nil)
				if (err == nil) != ok {
					t.Fatalf("grow %d: %v", n, err)
				}
				if !ok {
					break
				}
				for k, e := range entries {
					if int(e.Index) != m.pages+k || tab.Pages()[e.Index] != e.Page {
						t.Fatalf("grow gave %v, table %v", entries, tab.Pages())
					}
					if _, waiting := waits[e.Page]; waiting {
						t.Fatalf("page %d left quarantine early", e.Page)
					}
				}
				m.pages, m.promised = m.pages+more, m.promised-more
			case 3:
				keep := min(ceil(n), m.pages)
				retire(tab.Pages()[keep:])
				tab.Truncate(n)
				m.pages, m.promised = keep, m.promised+m.pages-keep
			case 4:
				retire(tab.Pages())
				tab.Release()
				*m = modelTable{}
			case 5:
				launched++
				pool.Launched(launched)
			case 6:
				if completed < launched {
					completed++
					pool.Completed(completed)
					for p, step := range waits {
						if step <= completed {
							delete(waits, p)
						}
					}
				}
			}
			if err := pool.Check(); err != nil {
				t.Fatal(err)
			}
			owner := map[int32]int{}
			for k, tab := range tables {
				if len(tab.Pages()) != model[k].pages || tab.Promised() != model[k].promised {
					t.Fatalf("table %d has %v and %d promised, want %+v", k, tab.Pages(), tab.Promised(), model[k])
				}
				for _, p := range tab.Pages() {
					if other, twice := owner[p]; twice {
						t.Fatalf("page %d in tables %d and %d", p, other, k)
					}
					owner[p] = k
				}
			}
			c := pool.Counts()
			if c.Held != held() || c.Quarantined != len(waits) || c.Reserved != promised() || int(c.Allocs-c.Frees) != c.Held {
				t.Fatalf("counts %+v, want %d held, %d quarantined, %d reserved", c, held(), len(waits), promised())
			}
		}
	})
}
