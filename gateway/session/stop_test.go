package session

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// slowStop is the obvious way to look for stops in a text of pieces: it tries
// every end, and does so anew for every piece. The first pieces are ignored.
func slowStop(pieces []string, ignored int, stops []string) (text string, stopped bool) {
	for i, p := range pieces {
		for range len(p) {
			text += p[:1]
			p = p[1:]
			longest := 0
			for _, s := range stops {
				if i >= ignored && strings.HasSuffix(text, s) {
					longest = max(longest, len(s))
				}
			}
			if longest > 0 {
				return text[:len(text)-longest], true
			}
		}
	}
	return text, false
}

// slowHeld is the longest end of text that begins a stop.
func slowHeld(text string, stops []string) int {
	for n := len(text); n > 0; n-- {
		for _, s := range stops {
			if n < len(s) && strings.HasPrefix(s, text[len(text)-n:]) {
				return n
			}
		}
	}
	return 0
}

// checkStop runs the matcher over the pieces and compares it, after each of
// them, with the obvious way.
func checkStop(t interface {
	Helper()
	Fatalf(string, ...any)
}, pieces []string, ignored int, stops []string) {
	t.Helper()
	m := newStopMatcher(stops)
	shown := ""
	for i := range pieces {
		show, stopped := m.next(pieces[i], i < ignored)
		shown += show
		want, wantStopped := slowStop(pieces[:i+1], ignored, stops)
		if stopped != wantStopped {
			t.Fatalf("%q in %q (%d ignored): stopped %t after %d pieces", stops, pieces, ignored, stopped, i+1)
		}
		if stopped {
			if shown != want {
				t.Fatalf("%q in %q: shown %q, want %q", stops, pieces, shown, want)
			}
			return
		}
		held := slowHeld(want, stops)
		if shown != want[:len(want)-held] || string(m.held) != want[len(want)-held:] {
			t.Fatalf("%q in %q: shown %q, held %q, want %d held of %q", stops, pieces, shown, m.held, held, want)
		}
	}
	if all := strings.Join(pieces, ""); shown+m.rest() != all {
		t.Fatalf("%q in %q: text was lost", stops, pieces)
	}
}

func TestStopMatcher(t *testing.T) {
	for _, tc := range []struct {
		name    string
		pieces  []string
		ignored int
		stops   []string
		want    string
		stopped bool
	}{
		{"one piece", []string{"abc<end>d"}, 0, []string{"<end>"}, "abc", true},
		{"over pieces", []string{"abc<", "en", "d>d"}, 0, []string{"<end>"}, "abc", true},
		{"no match", []string{"abc<", "en", "x"}, 0, []string{"<end>"}, "abc<enx", false},
		{"held at the end", []string{"abc<", "en"}, 0, []string{"<end>"}, "abc<en", false},
		{"begins again", []string{"aa", "ab"}, 0, []string{"aab"}, "a", true},
		{"overlaps itself", []string{"abab", "abac"}, 0, []string{"abac"}, "abab", true},
		{"first end counts", []string{"abcd"}, 0, []string{"abcd", "bc"}, "a", true},
		{"longest at one end", []string{"abc"}, 0, []string{"bc", "abc"}, "", true},
		{"same stop twice", []string{"ab"}, 0, []string{"b", "b"}, "a", true},
		{"character over tokens", []string{"x", "", "🦄", "y"}, 0, []string{"🦄y"}, "x", true},
		{"ignored", []string{"a", "a", "a"}, 2, []string{"a"}, "aa", true},
		{"ignored, overlapping", []string{"aa", "a"}, 1, []string{"aa"}, "a", true},
		{"whole text", []string{"stop"}, 0, []string{"stop"}, "", true},
		{"longest stop", []string{strings.Repeat("x", 300)}, 0, []string{strings.Repeat("x", MaxStopBytes)}, "", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			checkStop(t, tc.pieces, tc.ignored, tc.stops)
			text, stopped := slowStop(tc.pieces, tc.ignored, tc.stops)
			if text != tc.want || stopped != tc.stopped {
				t.Errorf("%q %t", text, stopped)
			}
		})
	}
	if newStopMatcher(nil) != nil {
		t.Error("a matcher without stops")
	}
}

func TestStopMatcherModel(t *testing.T) {
	text := rapid.StringMatching(`[abé🦄]{0,6}`)
	rapid.Check(t, func(t *rapid.T) {
		stops := rapid.SliceOfN(rapid.StringMatching(`[abé🦄]{1,5}`), 1, MaxStops).Draw(t, "stops")
		pieces := rapid.SliceOfN(text, 0, 12).Draw(t, "pieces")
		checkStop(t, pieces, rapid.IntRange(0, 4).Draw(t, "ignored"), stops)
	})
}

func FuzzStopMatcher(f *testing.F) {
	f.Add("abab abac", "abac", "a", uint8(3))
	f.Add("🦄👩‍👩‍👧‍👦漢字", "👩‍👧", "字", uint8(2))
	f.Fuzz(func(t *testing.T, text, one, two string, every uint8) {
		if !utf8.ValidString(text) || len(text) > 400 {
			return
		}
		var stops []string
		for _, s := range []string{one, two} {
			if s != "" && len(s) <= MaxStopBytes {
				stops = append(stops, s)
			}
		}
		if len(stops) == 0 {
			return
		}
		var pieces []string
		for len(text) > 0 {
			n := min(len(text), int(every%9)+1)
			pieces = append(pieces, text[:n])
			text = text[n:]
		}
		checkStop(t, pieces, 0, stops)
	})
}

func BenchmarkStopMatcher(b *testing.B) {
	m := newStopMatcher([]string{"###END###", "</think>", "\n\n\n", "Question:"})
	b.ReportAllocs()
	for b.Loop() {
		if _, stopped := m.next(" word", false); stopped {
			b.Fatal("stopped")
		}
	}
}
