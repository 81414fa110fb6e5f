package near

import (
	"math/rand/v2"
	"testing"
)

// Edits must agree with the recursive definition.
func TestEdits(t *testing.T) {
	var slow func(a, b string) int
	slow = func(a, b string) int {
		if a == "" || b == "" {
			return len(a) + len(b)
		}
		if a[0] == b[0] {
			return slow(a[1:], b[1:])
		}
		return 1 + min(slow(a[1:], b), slow(a, b[1:]), slow(a[1:], b[1:]))
	}
	random := rand.New(rand.NewPCG(1, 2))
	word := func() string {
		b := make([]byte, random.IntN(6))
		for i := range b {
			b[i] = "abc"[random.IntN(3)]
		}
		return string(b)
	}
	for range 500 {
		a, b := word(), word()
		if got, want := Edits(a, b), slow(a, b); got != want {
			t.Fatalf("Edits(%q, %q) = %d, want %d", a, b, got, want)
		}
	}
}

func TestWord(t *testing.T) {
	known := []string{"entropy", "margin", "score"}
	for word, want := range map[string]string{
		"entropi": "entropy", "Entropy": "entropy", "marg": "margin", "scor": "score", "position": "", "": "",
		"entropyentropyentropyentropyentropyentropyentropyentropyentropyentropy": "",
	} {
		if got := Word(word, known); got != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
	}
}
