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
	if len(word) <= shortWord {
		dst = t.mergeShort(dst, word)
	} else {
		dst = t.mergeLong(dst, word)
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
// A symbol that was joined to its left neighbour has id -1.
type symbol struct {
	id         int32
	prev, next int32
}

// candidate is a possible merge at symbol at. It is stale when the two symbols
// there are no longer the pair (left, right).
type candidate struct {
	rank        uint32
	at          int32
	left, right int32
	id          int32
}

// mergeLong takes n log n steps, so that a very long word cannot stall the
// entry. Words are shorter than 2 GiB because requests are.
func (t *Tokenizer) mergeLong(dst []int32, word string) []int32 {
	first := t.symbols(make([]int32, 0, len(word)), word)
	syms := make([]symbol, len(first))
	for i, id := range first {
		syms[i] = symbol{id: id, prev: int32(i - 1), next: int32(i + 1)}
	}
	syms[len(syms)-1].next = -1
	h := make(candidateHeap, 0, len(syms))
	push := func(at int32) {
		if at < 0 || syms[at].next < 0 {
			return
		}
		left, right := syms[at].id, syms[syms[at].next].id
		if m := t.merges.get(left, right); m.rank != noMerge {
			h.push(candidate{rank: m.rank, at: at, left: left, right: right, id: m.id})
		}
	}
	for i := range len(syms) - 1 {
		push(int32(i))
	}
	for len(h) > 0 {
		c := h.pop()
		s := &syms[c.at]
		if s.id != c.left || s.next < 0 || syms[s.next].id != c.right {
			continue
		}
		gone := &syms[s.next]
		s.id, s.next, gone.id = c.id, gone.next, -1
		if s.next >= 0 {
			syms[s.next].prev = c.at
		}
		push(s.prev)
		push(c.at)
	}
	for i := int32(0); i >= 0; i = syms[i].next {
		dst = append(dst, syms[i].id)
	}
	return dst
}

// candidateHeap is a binary heap, lowest (rank, at) first.
type candidateHeap []candidate

func (c candidate) before(o candidate) bool {
	return c.rank < o.rank || c.rank == o.rank && c.at < o.at
}

func (h *candidateHeap) push(c candidate) {
	s := append(*h, c)
	i := len(s) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !c.before(s[up]) {
			break
		}
		s[i] = s[up]
		i = up
	}
	s[i] = c
	*h = s
}

func (h *candidateHeap) pop() candidate {
	s := *h
	top, c := s[0], s[len(s)-1]
	s = s[:len(s)-1]
	*h = s
	if len(s) == 0 {
		return top
	}
	i := 0
	for {
		down := 2*i + 1
		if down >= len(s) {
			break
		}
		if down+1 < len(s) && s[down+1].before(s[down]) {
			down++
		}
		if !s[down].before(c) {
			break
		}
		s[i] = s[down]
		i = down
	}
	s[i] = c
	return top
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
