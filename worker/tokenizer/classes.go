package tokenizer

import (
	"encoding/binary"
	"unicode/utf8"
)

// class is the part of Unicode that a rune belongs to in the split patterns.
type class uint8

// The order is that of testdata/classes.py. The classes do not overlap.
const (
	other  class = iota
	letter       // \p{L}
	number       // \p{N}
	space        // \s
	mark         // \p{M}
	punct        // \p{P}
	sign         // \p{S}
)

// blockBits is the size of a block of runes that share one row of the table.
const blockBits = 7

// classTable finds the class of a rune. It has the reference implementation's
// Unicode version, whichever one this program is built with.
type classTable struct {
	ascii [utf8.RuneSelf]class
	rows  [utf8.MaxRune>>blockBits + 1]uint16
	runes [][1 << blockBits]class
}

// newClassTable builds the table. Folded, the classes beside letter, number and
// space count as other.
func newClassTable(folded bool) *classTable {
	t := &classTable{}
	runs := []byte(classRuns)
	next, now, then := 0, other, other // the class changes from now to then at next
	step := func() {
		now = then
		v, n := binary.Uvarint(runs)
		if n <= 0 {
			next = utf8.MaxRune + 1
			return
		}
		runs = runs[n:]
		next, then = next+int(v>>3), class(v&7)
		if folded && then > space {
			then = other
		}
	}
	step()
	rows := map[[1 << blockBits]class]uint16{}
	var row [1 << blockBits]class
	for r := 0; r <= utf8.MaxRune; r++ {
		for r == next {
			step()
		}
		row[r&(1<<blockBits-1)] = now
		if r&(1<<blockBits-1) != 1<<blockBits-1 {
			continue
		}
		at, ok := rows[row]
		if !ok {
			at = uint16(len(t.runes))
			rows[row] = at
			t.runes = append(t.runes, row)
		}
		t.rows[r>>blockBits] = at
	}
	copy(t.ascii[:], t.runes[t.rows[0]][:])
	return t
}

// of returns the class of a rune.
func (t *classTable) of(r rune) class {
	return t.runes[t.rows[r>>blockBits]][r&(1<<blockBits-1)]
}

// at returns the class and the width of the first rune of s; s may be empty,
// which is class other and width 0.
func (t *classTable) at(s string) (class, int) {
	if s == "" {
		return other, 0
	}
	if b := s[0]; b < utf8.RuneSelf {
		return t.ascii[b], 1
	}
	r, w := utf8.DecodeRuneInString(s)
	return t.of(r), w
}

// run returns the end of the run of class c in s that starts at i.
func (t *classTable) run(s string, i int, c class) int {
	for i < len(s) {
		k, w := t.at(s[i:])
		if k != c {
			return i
		}
		i += w
	}
	return i
}
