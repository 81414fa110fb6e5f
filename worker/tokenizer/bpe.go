package tokenizer

import (
	"math"
	"unicode/utf8"
)

// Merging follows the definition: of all adjacent pairs the one of the lowest
// rank is joined first, the leftmost of equals, until no pair has a rank.
// Short words use a plain scan, long ones a heap, which gives the same ids.

// shortWord is the longest word in bytes that the plain scan takes.
const shortWord = 64

// noMerge is the rank of a pair that has no merge.
const noMerge = math.MaxUint32

// Values of Tokenizer.whole.
const (
	wholeUnknown = iota
	wholeYes
	wholeNo
)

// encodeWord appends the ids of one word of the split, which is not empty.
func (t *Tokenizer) encodeWord(dst []int32, word string) []int32 {
	if len(word) == 1 && t.byteLevel {
		return append(dst, t.bytes[word[0]])
	}
	id, known := t.words[word]
	if known {
		if t.ignoreMerges {
			return append(dst, id)
		}
		switch t.whole[id].Load() {
		case wholeYes:
			return append(dst, id)
		case wholeNo:
			known = false
		}
	}
	start := len(dst)
	for from := 0; from < len(word); {
		to := len(word)
		if to > shortWord {
			to = t.cut(word, from)
		}
		if to-from <= shortWord {
			dst = t.mergeShort(dst, word[from:to])
		} else {
			dst = t.mergeLong(dst, word[from:to])
		}
		from = to
	}
	if known {
		if len(dst) == start+1 && dst[start] == id {
			t.whole[id].Store(wholeYes)
		} else {
			t.whole[id].Store(wholeNo)
		}
	}
	return dst
}

// cut returns the end of the part of a word that begins at from: the first place
// between two bytes that no merge brings together. Parts can be merged apart.
func (t *Tokenizer) cut(word string, from int) int {
	if !t.byteLevel {
		return len(word) // its splitter has done that
	}
	i := from + 1
	for i < len(word) && t.joined[word[i-1]][word[i]>>6]>>(word[i]&63)&1 != 0 {
		i++
	}
	return i
}

// symbols appends what a word is merged from, at most one id a byte.
func (t *Tokenizer) symbols(dst []int32, word string) []int32 {
	if t.byteLevel {
		for i := range len(word) {
			dst = append(dst, t.bytes[word[i]])
		}
		return dst
	}
	for i := 0; i < len(word); {
		if b := word[i]; b < utf8.RuneSelf {
			dst = append(dst, t.ascii[b])
			i++
			continue
		}
		_, w := utf8.DecodeRuneInString(word[i:])
		if id, ok := t.words[word[i:i+w]]; ok {
			dst = append(dst, id)
			i += w
			continue
		}
		for end := i + w; i < end; i++ {
			dst = append(dst, t.bytes[word[i]])
		}
	}
	return dst
}

// mergeShort scans all pairs for each merge. Word has at most shortWord bytes.
func (t *Tokenizer) mergeShort(dst []int32, word string) []int32 {
	var ids [shortWord]int32
	// pair[i] is the merge of ids[i] and ids[i+1].
	var pair [shortWord]merge
	n := len(t.symbols(ids[:0], word))
	for i := range n - 1 {
		pair[i] = t.merges.get(ids[i], ids[i+1])
	}
	for n > 1 {
		best, at := uint32(noMerge), 0
		for i := range n - 1 {
			if pair[i].rank < best {
				best, at = pair[i].rank, i
			}
		}
		if best == noMerge {
			break
		}
		ids[at] = pair[at].id
		copy(ids[at+1:n-1], ids[at+2:n])
		copy(pair[at:n-2], pair[at+1:n-1])
		n--
		if at > 0 {
			pair[at-1] = t.merges.get(ids[at-1], ids[at])
		}
		if at < n-1 {
			pair[at] = t.merges.get(ids[at], ids[at+1])
		}
	}
	return append(dst, ids[:n]...)
}

// symbol is one element of a word that is being merged, in a linked list.
type symbol struct {
	id         int32
	prev, next int32
	// merge is what the symbol and the next one become; of rank noMerge if they do not,
	// or if the symbol was joined to the one before it.
	merge
}

// mergeLong takes n log n steps, so that a very long word cannot stall the
// entry. Words are shorter than 2 GiB because requests are.
func (t *Tokenizer) mergeLong(dst []int32, word string) []int32 {
	first := t.symbols(make([]int32, 0, len(word)), word)
	syms := make([]symbol, len(first))
	h := make(mergeHeap, 0, len(syms))
	last := int32(len(syms) - 1)
	for i := range last {
		m := t.merges.get(first[i], first[i+1])
		syms[i] = symbol{id: first[i], prev: i - 1, next: i + 1, merge: m}
		if m.rank != noMerge {
			h = append(h, heapKey(m.rank, i))
		}
	}
	syms[last] = symbol{id: first[last], prev: last - 1, next: -1, merge: merge{rank: noMerge}}
	h.order()
	// again finds the merge at a symbol that has a new neighbour on its right.
	again := func(at int32) {
		s := &syms[at]
		if s.next < 0 {
			s.rank = noMerge
			return
		}
		s.merge = t.merges.get(s.id, syms[s.next].id)
		if s.rank != noMerge {
			h.push(heapKey(s.rank, at))
		}
	}
	for len(h) > 0 {
		rank, at := h.pop()
		s := &syms[at]
		if s.rank != rank { // another merge came before
			continue
		}
		gone := &syms[s.next]
		s.id, s.next, gone.rank = s.merge.id, gone.next, noMerge
		if s.next >= 0 {
			syms[s.next].prev = at
		}
		if s.prev >= 0 {
			again(s.prev)
		}
		again(at)
	}
	for i := int32(0); i >= 0; i = syms[i].next {
		dst = append(dst, syms[i].id)
	}
	return dst
}

// mergeHeap is a heap of possible merges with four children a node, lowest first:
// rank in the upper half, place in the lower. An entry is stale when the symbol
// at that place has another rank by now.
type mergeHeap []uint64

func heapKey(rank uint32, at int32) uint64 { return uint64(rank)<<32 | uint64(uint32(at)) }

// order makes a heap of any list.
func (h mergeHeap) order() {
	for i := (len(h) + 2) / 4; i > 0; i-- { // nodes below have no children
		h.down(i-1, h[i-1])
	}
}

func (h *mergeHeap) push(key uint64) {
	s := append(*h, key)
	i := len(s) - 1
	for i > 0 {
		up := (i - 1) / 4
		if key >= s[up] {
			break
		}
		s[i] = s[up]
		i = up
	}
	s[i] = key
	*h = s
}

func (h *mergeHeap) pop() (rank uint32, at int32) {
	s := *h
	top, key := s[0], s[len(s)-1]
	*h = s[:len(s)-1]
	if len(*h) > 0 {
		h.down(0, key)
	}
	return uint32(top >> 32), int32(uint32(top))
}

// down puts key where it belongs at i or below.
func (h mergeHeap) down(i int, key uint64) {
	for {
		child := 4*i + 1
		if child >= len(h) {
			break
		}
		least, end := child, min(child+4, len(h))
		for k := child + 1; k < end; k++ {
			if h[k] < h[least] {
				least = k
			}
		}
		if key <= h[least] {
			break
		}
		h[i] = h[least]
		i = least
	}
	h[i] = key
}

// merge says what a pair becomes and how early.
type merge struct {
	rank uint32
	id   int32
}

// mergeTable maps a pair of ids to its merge, by open addressing at a load of
// at most one half. It is read-only once built.
type mergeTable struct {
	slots []mergeSlot
	shift uint
}

type mergeSlot struct {
	key uint64
	merge
}

// emptySlot is no pair, as ids are not negative.
const emptySlot = math.MaxUint64

func newMergeTable(n int) mergeTable {
	bits := uint(4)
	for 1<<bits < 2*n {
		bits++
	}
	slots := make([]mergeSlot, 1<<bits)
	for i := range slots {
		slots[i].key = emptySlot
	}
	return mergeTable{slots: slots, shift: 64 - bits}
}

// slot finds the place of key: its own, or the free one where it belongs.
func (t *mergeTable) slot(key uint64) *mergeSlot {
	mask := uint64(len(t.slots) - 1)
	for i := key * 0x9e3779b97f4a7c15 >> t.shift; ; i = (i + 1) & mask {
		if s := &t.slots[i]; s.key == key || s.key == emptySlot {
			return s
		}
	}
}

func pairKey(left, right int32) uint64 { return uint64(uint32(left))<<32 | uint64(uint32(right)) }

// set adds a merge; of equal pairs the last one counts.
func (t *mergeTable) set(left, right int32, m merge) {
	key := pairKey(left, right)
	*t.slot(key) = mergeSlot{key: key, merge: m}
}

func (t *mergeTable) get(left, right int32) merge {
	key := pairKey(left, right)
	if s := t.slot(key); s.key == key {
		return s.merge
	}
	return merge{rank: noMerge}
}
