package near

import "strings"

// longest bounds the words that are compared, in bytes.
const longest = 64

// Word is the known word with the fewest edits from word, whatever its case, or ""
// when none is near: at most a third of the word may differ, or two bytes.
func Word(word string, known []string) string {
	if len(word) > longest {
		return ""
	}
	best, fewest := "", Allowed(word)+1
	for _, k := range known {
		if e := Edits(strings.ToLower(word), k); e < fewest {
			best, fewest = k, e
		}
	}
	return best
}

// Allowed is how many edits a word may be away from another and still be near it.
func Allowed(word string) int { return max(2, len(word)/3) }

// Edits is the number of insertions, deletions and changes of a byte that turn a
// into b, both cut to 64 bytes.
func Edits(a, b string) int {
	a, b = a[:min(len(a), longest)], b[:min(len(b), longest)]
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
