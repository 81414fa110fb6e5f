package kv

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// slowKeys is the definition of the keys: each page's ids are hashed with the
// salt and the key before.
func slowKeys(salt [32]byte, size int, ids []int32) []Key {
	var out []Key
	var previous Key
	for page := range slices.Chunk(ids, size) {
		if len(page) < size {
			break
		}
		in := append(append([]byte{}, salt[:]...), previous[:]...)
		for _, id := range page {
			in = binary.LittleEndian.AppendUint32(in, uint32(id))
		}
		previous = sha256.Sum256(in)
		out = append(out, previous)
	}
	return out
}

func TestAppendKeys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 5).Draw(t, "size")
		pool, _ := NewPool(1, size)
		ids := rapid.SliceOfN(rapid.Int32(), 0, 23).Draw(t, "ids")
		salt := [32]byte{rapid.Byte().Draw(t, "salt")}
		first := rapid.IntRange(0, len(ids)).Draw(t, "first")
		keys := pool.AppendKeys(nil, &salt, ids[:first])
		keys = pool.AppendKeys(keys, &salt, ids)
		if !slices.Equal(keys, slowKeys(salt, size, ids)) {
			t.Fatalf("keys of %v differ", ids)
		}
		if again := pool.AppendKeys(keys, &salt, ids[:first]); !slices.Equal(again, keys) {
			t.Fatal("keys of fewer ids changed them")
		}
	})
}

func TestKeysTellTenantsAndPrefixesApart(t *testing.T) {
	pool, _ := NewPool(1, 2)
	seen := map[Key]string{}
	for _, c := range []struct {
		name string
		salt [32]byte
		ids  []int32
	}{
		{"plain", [32]byte{}, []int32{1, 2, 3, 4}},
		{"other tenant", [32]byte{31: 1}, []int32{1, 2, 3, 4}},
		{"other first page", [32]byte{}, []int32{1, 3, 3, 4}},
		{"swapped pages", [32]byte{}, []int32{3, 4, 1, 2}},
		{"negative", [32]byte{}, []int32{1, 2, 3, -4}},
	} {
		keys := pool.AppendKeys(nil, &c.salt, c.ids)
		if other, twice := seen[keys[1]]; twice {
			t.Errorf("%s and %s share a key", c.name, other)
		}
		seen[keys[1]] = c.name
	}
}

func TestClaimOfFullTablePanics(t *testing.T) {
	pool, _ := NewPool(2, 4)
	table := NewTable(pool)
	if err := table.Reserve(1); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	_, _ = table.Claim(nil, 4)
}

// slowTable is a table as it should be: the ids of its pages.
type slowTable struct {
	ids      []int32 // written, all of the pages up to the last
	promised int
}

// slowCache is the second opinion about a pool with a prefix cache: contents of
// pages in plain form, and lists.
type slowCache struct {
	t      *rapid.T
	size   int
	pool   *Pool
	salt   [32]byte
	tables []*Table
	want   []slowTable
	// holds are the ids up to the end of each page that was written.
	holds map[int32][]int32
	// findable says which pages are indexed; unused are those of them that no table
	// has, the one used longest ago first; tags are their steps.
	findable            map[int32]bool
	unused              []int32
	tags                map[int32]uint64
	launched, completed uint64
}

func (m *slowCache) owners(page int32) (n int) {
	for _, table := range m.tables {
		if slices.Contains(table.Pages(), page) {
			n++
		}
	}
	return n
}

// find returns the findable page with these ids.
func (m *slowCache) find(ids []int32) (int32, bool) {
	for page := range m.findable {
		if slices.Equal(m.holds[page], ids) {
			return page, true
		}
	}
	return 0, false
}

// retired notes that page was dropped by its last table.
func (m *slowCache) retired(page int32) {
	if m.findable[page] && m.owners(page) == 0 {
		m.unused = append(m.unused, page)
		m.tags[page] = m.launched
	}
}

func (m *slowCache) claim(i int) {
	if len(m.tables[i].Pages()) > 0 || m.tables[i].Promised() > 0 {
		return
	}
	ids := rapid.SliceOfN(rapid.Int32Range(0, 1), 0, 12).Draw(m.t, "ids")
	keys := m.pool.AppendKeys(nil, &m.salt, ids)
	n := len(ids) + rapid.IntRange(0, 4).Draw(m.t, "more")
	before := m.pool.Counts()
	need, coming, available := m.pool.Need(keys, n), m.pool.Coming(), m.pool.Available()
	found, err := m.tables[i].Claim(keys, n)
	if err != nil {
		if after := m.pool.Counts(); after != before || available >= need {
			m.t.Fatalf("claim failed: %v, before %+v, after %+v", err, before, after)
		}
		return
	}
	if m.pool.Coming() != coming-need {
		m.t.Fatalf("need %d, coming %d became %d", need, coming, m.pool.Coming())
	}
	for k := range found {
		page := m.tables[i].Pages()[k]
		if !m.findable[page] || !slices.Equal(m.holds[page], ids[:(k+1)*m.size]) {
			m.t.Fatalf("page %d holds %v, want %v", page, m.holds[page], ids[:(k+1)*m.size])
		}
		m.unused = slices.DeleteFunc(m.unused, func(p int32) bool { return p == page })
	}
	if next := (found + 1) * m.size; next <= len(ids) {
		if page, ok := m.find(ids[:next]); ok {
			m.t.Fatalf("page %d with %v was not found", page, ids[:next])
		}
	}
	if c := m.pool.Counts(); c.Queries-before.Queries != uint64(len(keys)) || c.Hits-before.Hits != uint64(found) {
		m.t.Fatalf("counts before %+v, after %+v", before, c)
	}
	m.want[i] = slowTable{slices.Clone(ids[:found*m.size]), m.pool.PagesFor(n) - found}
}

// grow writes ids at the end of a table: never into a page that others can read.
func (m *slowCache) grow(i int) {
	w, table := &m.want[i], m.tables[i]
	add := rapid.SliceOfN(rapid.Int32Range(0, 1), 1, 5).Draw(m.t, "add")
	n := len(w.ids) + len(add)
	if table.Reserve(n) != nil {
		return
	}
	w.promised = table.Promised()
	free := m.pool.Counts().Free
	entries, err := table.Grow(n, nil)
	if err != nil {
		return
	}
	for _, e := range entries {
		if m.findable[e.Page] {
			if free > 0 || len(m.unused) == 0 || m.unused[0] != e.Page || m.tags[e.Page] > m.completed {
				m.t.Fatalf("page %d was evicted with %d free; by last use: %v", e.Page, free, m.unused)
			}
			m.unused = m.unused[1:]
			delete(m.findable, e.Page)
		} else {
			free--
		}
		w.promised--
	}
	for k := range add {
		page := table.Pages()[(len(w.ids)+k)/m.size]
		if m.findable[page] || m.owners(page) != 1 {
			m.t.Fatalf("write into page %d, which %d tables have", page, m.owners(page))
		}
		m.holds[page] = append(slices.Clone(w.ids), add[:k+1]...)
	}
	w.ids = append(w.ids, add...)
}

// publish does what Publish and Retire should do to the index, last page first.
func (m *slowCache) publish(i, full int) []Key {
	w := m.want[i]
	for k := full - 1; k >= 0; k-- {
		page := m.tables[i].Pages()[k]
		if m.findable[page] {
			continue
		}
		if other, ok := m.find(w.ids[:(k+1)*m.size]); !ok {
			m.findable[page] = true
		} else if at := slices.Index(m.unused, other); at >= 0 {
			m.unused = append(slices.Delete(m.unused, at, at+1), other)
			m.tags[other] = m.launched
		}
	}
	return m.pool.AppendKeys(nil, &m.salt, w.ids[:full*m.size])
}

func (m *slowCache) retire(i int) {
	full := len(m.want[i].ids) / m.size
	if rapid.IntRange(0, 3).Draw(m.t, "forget") == 0 {
		full = 0
	}
	// Page by page, because a page that is touched counts as used before the next.
	pages := slices.Clone(m.tables[i].Pages())
	var order []int32
	for k := len(pages) - 1; k >= 0; k-- {
		page := pages[k]
		if k < full && !m.findable[page] {
			if other, ok := m.find(m.want[i].ids[:(k+1)*m.size]); !ok {
				m.findable[page] = true
			} else if slices.Contains(m.unused, other) {
				m.unused = slices.DeleteFunc(m.unused, func(p int32) bool { return p == other })
				order = append(order, other)
			}
		}
		if m.findable[page] && m.owners(page) == 1 {
			order = append(order, page)
		}
	}
	m.tables[i].Retire(m.pool.AppendKeys(nil, &m.salt, m.want[i].ids[:full*m.size]))
	for _, page := range order {
		m.unused = append(m.unused, page)
		m.tags[page] = m.launched
	}
	m.want[i] = slowTable{}
}

func (m *slowCache) truncate(i int) {
	w := &m.want[i]
	n := rapid.IntRange(0, len(w.ids)).Draw(m.t, "length")
	pages := slices.Clone(m.tables[i].Pages())
	kept := m.tables[i].Truncate(n)
	want := n
	if last := n / m.size; n%m.size != 0 && last < len(pages) {
		shared := m.findable[pages[last]] || m.owners(pages[last]) > 1 ||
			m.owners(pages[last]) == 1 && !slices.Contains(m.tables[i].Pages(), pages[last])
		if shared {
			want = last * m.size
		}
	}
	if kept != want || len(m.tables[i].Pages()) != m.pool.PagesFor(kept) {
		m.t.Fatalf("truncate to %d kept %d, want %d, pages %v of %v", n, kept, want, m.tables[i].Pages(), pages)
	}
	for k := len(pages) - 1; k >= len(m.tables[i].Pages()); k-- {
		if m.owners(pages[k]) == 0 {
			w.promised++
		}
		m.retired(pages[k])
	}
	w.ids = w.ids[:kept]
}

func (m *slowCache) check() {
	if err := m.pool.Check(); err != nil {
		m.t.Fatal(err)
	}
	for i, table := range m.tables {
		if len(table.Pages()) != m.pool.PagesFor(len(m.want[i].ids)) || table.Promised() != m.want[i].promised {
			m.t.Fatalf("table %d has pages %v and %d promised, want %+v", i, table.Pages(), table.Promised(), m.want[i])
		}
	}
	c := m.pool.Counts()
	pinned := 0
	for _, page := range m.unused {
		if m.tags[page] > m.completed {
			pinned++
		}
	}
	if c.Cached != len(m.unused) || c.Indexed != len(m.findable) || m.pool.Available() != c.Free+len(m.unused)-pinned-c.Reserved {
		m.t.Fatalf("counts %+v, available %d, want %v unused of %v, %d pinned", c, m.pool.Available(), m.unused, m.findable, pinned)
	}
	var order []int32
	for page := m.pool.cache.front; page >= 0; page = m.pool.cache.pages[page].next {
		order = append(order, page)
	}
	if !slices.Equal(order, m.unused) {
		m.t.Fatalf("by last use %v, want %v", order, m.unused)
	}
}

// TestCacheAgainstModel drives a pool with a prefix cache with random events.
func TestCacheAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 3).Draw(t, "size")
		pool, err := NewPool(rapid.IntRange(1, 16).Draw(t, "pages"), size)
		if err != nil {
			t.Fatal(err)
		}
		m := &slowCache{
			t: t, size: size, pool: pool, want: make([]slowTable, 4),
			holds: map[int32][]int32{}, findable: map[int32]bool{}, tags: map[int32]uint64{},
		}
		for range m.want {
			m.tables = append(m.tables, NewTable(pool))
		}
		for range 80 - rapid.IntRange(0, 79).Draw(t, "fewer events") {
			i := rapid.IntRange(0, len(m.tables)-1).Draw(t, "table")
			switch rapid.IntRange(0, 7).Draw(t, "event") {
			case 0:
				m.grow(i)
			case 1:
				m.claim(i)
			case 2:
				m.launched++
				pool.Launched(m.launched)
			case 3:
				m.retire(i)
			case 4:
				m.completed = min(m.completed+1, m.launched)
				pool.Completed(m.completed)
			case 5:
				full := len(m.want[i].ids) / m.size
				m.tables[i].Publish(m.publish(i, full))
			case 6:
				m.truncate(i)
			case 7:
				if rapid.IntRange(0, 7).Draw(t, "drop") == 0 {
					pool.DropCache()
					m.unused = nil
					clear(m.findable)
				}
			}
			m.check()
		}
	})
}
