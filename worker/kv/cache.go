package kv

import (
	"crypto/sha256"
	"encoding/binary"
)

// Key names the contents of one full page: all ids up to its end, and the
// tenant that may reuse them.
type Key [sha256.Size]byte

// AppendKeys extends keys, which has the keys of the first len(keys) full pages
// of ids, to all full pages of ids. Key i is SHA-256(salt, key i-1, ids of page
// i), with a key of zeros before the first. The salt separates tenants.
func (p *Pool) AppendKeys(keys []Key, salt *[32]byte, ids []int32) []Key {
	full := len(ids) / p.pageSize
	if len(keys) >= full {
		return keys
	}
	if p.scratch == nil {
		p.scratch = make([]byte, 2*sha256.Size+4*p.pageSize)
	}
	copy(p.scratch, salt[:])
	for i := len(keys); i < full; i++ {
		var previous Key
		if i > 0 {
			previous = keys[i-1]
		}
		copy(p.scratch[sha256.Size:], previous[:])
		for k, id := range ids[i*p.pageSize : (i+1)*p.pageSize] {
			binary.LittleEndian.PutUint32(p.scratch[2*sha256.Size+4*k:], uint32(id))
		}
		keys = append(keys, sha256.Sum256(p.scratch))
	}
	return keys
}

// cache finds pages by key. Indexed pages never change: no table writes into
// them. Those that no table has are in a list by last use, and are evicted from
// its front when pages are needed.
type cache struct {
	index map[Key]int32
	pages []cachePage // by page; made when the first page is indexed
	// front is the page used longest ago, back the one used last; -1 if none.
	front, back int32
	n           int // pages in the list
	// pinned is the number of pages in the list whose tag has not completed: a
	// step in flight may read them, so they cannot be evicted yet. As launched
	// only grows, they are the last ones of the list.
	pinned                   int
	queries, hits, evictions uint64
}

// cachePage is what the cache knows of a page.
type cachePage struct {
	key        Key
	indexed    bool
	prev, next int32  // in the list; -1 at its ends
	tag        uint64 // newest step launched when the page entered the list
}

func newCache() cache { return cache{index: map[Key]int32{}, front: -1, back: -1} }

func (c *cache) indexed(page int32) bool { return c.pages != nil && c.pages[page].indexed }

func (c *cache) evictable() int { return c.n - c.pinned }

// push puts a page at the back of the list.
func (c *cache) push(page int32, tag, completed uint64) {
	e := &c.pages[page]
	e.prev, e.next, e.tag = c.back, -1, tag
	if c.back >= 0 {
		c.pages[c.back].next = page
	} else {
		c.front = page
	}
	c.back = page
	c.n++
	if tag > completed {
		c.pinned++
	}
}

// unlink takes a page out of the list.
func (c *cache) unlink(page int32, completed uint64) {
	e := &c.pages[page]
	if e.prev >= 0 {
		c.pages[e.prev].next = e.next
	} else {
		c.front = e.next
	}
	if e.next >= 0 {
		c.pages[e.next].prev = e.prev
	} else {
		c.back = e.prev
	}
	c.n--
	if e.tag > completed {
		c.pinned--
	}
}

// unpin counts the pinned pages again after a step has completed.
func (c *cache) unpin(completed uint64) {
	if c.pinned == 0 {
		return
	}
	c.pinned = 0
	for page := c.back; page >= 0 && c.pages[page].tag > completed; page = c.pages[page].prev {
		c.pinned++
	}
}

// forget takes a page out of the index.
func (c *cache) forget(page int32) {
	delete(c.index, c.pages[page].key)
	c.pages[page].indexed = false
	c.evictions++
}

// evict makes the cached page that was used longest ago free, if one is evictable.
func (p *Pool) evict() bool {
	c := &p.cache
	if c.evictable() == 0 {
		return false
	}
	page := c.front
	c.unlink(page, p.completed)
	c.forget(page)
	p.discard(page, c.pages[page].tag)
	return true
}

// publish makes the page of a table findable by key. A page that is findable
// already, or whose contents another page has, stays as it is; the other page
// counts as used now.
func (p *Pool) publish(page int32, key Key) {
	c := &p.cache
	if c.indexed(page) {
		return
	}
	if other, ok := c.index[key]; ok {
		if p.state[other] == pageCached {
			c.unlink(other, p.completed)
			c.push(other, p.launched, p.completed)
		}
		return
	}
	if c.pages == nil {
		c.pages = make([]cachePage, len(p.state))
	}
	c.pages[page].key, c.pages[page].indexed = key, true
	c.index[key] = page
}

// match returns how many leading keys are in the index, and how many of those
// pages are held by a table already.
func (p *Pool) match(keys []Key) (found, held int) {
	for _, key := range keys {
		page, ok := p.cache.index[key]
		if !ok {
			break
		}
		found++
		if p.state[page] == pageHeld {
			held++
		}
	}
	return found, held
}

// Need returns how many available pages Table.Claim would take.
func (p *Pool) Need(keys []Key, positions int) int {
	total := p.PagesFor(positions)
	_, held := p.match(keys[:min(len(keys), total)])
	return total - held
}

// DropCache empties the prefix cache. Cached pages become free, through
// quarantine if a step in flight may read them; held pages stay with their
// tables, and shared ones are still never written.
func (p *Pool) DropCache() {
	c := &p.cache
	for c.front >= 0 {
		page := c.front
		tag := c.pages[page].tag
		c.unlink(page, p.completed)
		c.forget(page)
		if tag > p.completed {
			tag = p.launched // the quarantine is in order of step
		}
		p.discard(page, tag)
	}
	for _, page := range c.index {
		c.forget(page)
	}
}
