package threshold

import "slices"

// stateIndex finds the number of a state. It is an open hash table over the flat
// array that holds the states, so a look-up allocates nothing.
type stateIndex struct {
	width int
	slots []int32 // number+1, 0 free; a power of two of them, at most half full
	count int
}

// find returns key's number. An unknown key is appended to states.
func (t *stateIndex) find(states *[]int32, key []int32) (number int, isNew bool) {
	if 2*(t.count+1) > len(t.slots) {
		t.grow(*states)
	}
	at := t.probe(*states, key)
	if n := t.slots[at]; n > 0 {
		return int(n - 1), false
	}
	t.count++
	t.slots[at] = int32(t.count)
	*states = append(*states, key...)
	return t.count - 1, true
}

func (t *stateIndex) probe(states, key []int32) int {
	last := len(t.slots) - 1
	at := int(hash(key)) & last
	for {
		n := int(t.slots[at])
		if n == 0 || slices.Equal(states[(n-1)*t.width:n*t.width], key) {
			return at
		}
		at = (at + 1) & last
	}
}

func (t *stateIndex) grow(states []int32) {
	t.slots = make([]int32, max(64, 2*len(t.slots)))
	for n := range t.count {
		t.slots[t.probe(states, states[n*t.width:(n+1)*t.width])] = int32(n + 1)
	}
}

// hash mixes the numbers of a state; the last shift brings high bits down.
func hash(key []int32) uint64 {
	h := uint64(len(key))
	for _, v := range key {
		h = (h ^ uint64(uint32(v))) * 0x9e3779b97f4a7c15
		h ^= h >> 29
	}
	return h >> 8
}
