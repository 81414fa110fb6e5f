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

// modelTable is what one table should hold.
type modelTable struct{ pages, promised int }

// model is the slow second opinion: counts, and for each page in quarantine the
// step that it waits for.
type model struct {
	t                   *rapid.T
	total, size         int
	pool                *Pool
	tables              []*Table
	want                []modelTable
	waits               map[int32]uint64 // page → step
	launched, completed uint64
}

func (m *model) pages(positions int) int { return (positions + m.size - 1) / m.size }

func (m *model) sums() (held, promised int) {
	for _, w := range m.want {
		held += w.pages
		promised += w.promised
	}
	return held, promised
}

func (m *model) free() int {
	held, _ := m.sums()
	return m.total - held - len(m.waits)
}

func (m *model) reserve(i, n int) {
	w := &m.want[i]
	_, promised := m.sums()
	more := max(0, m.pages(n)-w.pages-w.promised)
	ok := more == 0 || more <= m.free()-promised
	if err := m.tables[i].Reserve(n); (err == nil) != ok {
		m.t.Fatalf("reserve %d: %v", n, err)
	}
	if ok {
		w.promised += more
	}
}

func (m *model) grow(i, n int) {
	w := &m.want[i]
	more := max(0, m.pages(n)-w.pages)
	ok := more <= w.promised && more <= m.free()
	entries, err := m.tables[i].Grow(n, nil)
	if (err == nil) != ok || ok && len(entries) != more {
		m.t.Fatalf("grow %d: %v, %v", n, entries, err)
	}
	if !ok {
		return
	}
	for k, e := range entries {
		if int(e.Index) != w.pages+k || m.tables[i].Pages()[e.Index] != e.Page {
			m.t.Fatalf("grow gave %v, table %v", entries, m.tables[i].Pages())
		}
		if _, waiting := m.waits[e.Page]; waiting {
			m.t.Fatalf("page %d left quarantine early", e.Page)
		}
	}
	w.pages, w.promised = w.pages+more, w.promised-more
}

// retire notes which pages of table i from index keep on must wait.
func (m *model) retire(i, keep int) {
	for _, p := range m.tables[i].Pages()[keep:] {
		if m.launched > m.completed {
			m.waits[p] = m.launched
		}
	}
}

func (m *model) truncate(i, n int) {
	w := &m.want[i]
	keep := min(m.pages(n), w.pages)
	m.retire(i, keep)
	m.tables[i].Truncate(n)
	w.pages, w.promised = keep, w.promised+w.pages-keep
}

func (m *model) release(i int) {
	m.retire(i, 0)
	m.tables[i].Release()
	m.want[i] = modelTable{}
}

func (m *model) complete() {
	if m.completed == m.launched {
		return
	}
	m.completed++
	m.pool.Completed(m.completed)
	for p, step := range m.waits {
		if step <= m.completed {
			delete(m.waits, p)
		}
	}
}

func (m *model) check() {
	if err := m.pool.Check(); err != nil {
		m.t.Fatal(err)
	}
	owner := map[int32]int{}
	for k, tab := range m.tables {
		if len(tab.Pages()) != m.want[k].pages || tab.Promised() != m.want[k].promised {
			m.t.Fatalf("table %d has %v and %d promised, want %+v", k, tab.Pages(), tab.Promised(), m.want[k])
		}
		for _, p := range tab.Pages() {
			if other, twice := owner[p]; twice {
				m.t.Fatalf("page %d in tables %d and %d", p, other, k)
			}
			owner[p] = k
		}
	}
	held, promised := m.sums()
	c := m.pool.Counts()
	if c.Held != held || c.Quarantined != len(m.waits) || c.Reserved != promised || int(c.Allocs-c.Frees) != c.Held {
		m.t.Fatalf("counts %+v, want %d held, %d quarantined, %d reserved", c, held, len(m.waits), promised)
	}
}

// TestAgainstModel drives a pool with random events.
func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.IntRange(1, 12).Draw(t, "pages")
		size := rapid.IntRange(1, 4).Draw(t, "size")
		pool, err := NewPool(total, size)
		if err != nil {
			t.Fatal(err)
		}
		m := &model{t: t, total: total, size: size, pool: pool, want: make([]modelTable, 4), waits: map[int32]uint64{}}
		for range m.want {
			m.tables = append(m.tables, NewTable(pool))
		}
		// Long runs are the rule, as the generator prefers small numbers.
		for range 80 - rapid.IntRange(0, 79).Draw(t, "fewer events") {
			i := rapid.IntRange(0, len(m.tables)-1).Draw(t, "table")
			n := rapid.IntRange(0, (total+1)*size).Draw(t, "n")
			switch rapid.IntRange(0, 5).Draw(t, "event") {
			case 0:
				m.grow(i, n)
			case 1:
				m.reserve(i, n)
			case 2:
				m.launched++
				pool.Launched(m.launched)
			case 3:
				m.truncate(i, n)
			case 4:
				m.complete()
			case 5:
				m.release(i)
			}
			m.check()
		}
	})
}
