package session

// Limits on stop strings.
const (
	// MaxStops bounds the stop strings of a request.
	MaxStops = 4
	// MaxStopBytes bounds the length of one.
	MaxStopBytes = 256
)

// stopMatcher looks for stop strings in a text that arrives in pieces. It holds
// back the longest end of the text that is the beginning of a stop, and nothing
// else, so that no part of a stop gets out and no other text waits.
//
// It is the automaton of Knuth, Morris and Pratt for every stop, run side by
// side: with at most MaxStops of them that is as quick as a joint one and takes
// 1 KiB a stop. The state depends on the text alone, not on how it was cut.
//
// The match that ends first counts; of several that end at one byte, the longest.
type stopMatcher struct {
	stops []stopString
	// held is the end of the text that was not given out. Invariant: it is the
	// longest beginning of a stop that the text ends with.
	held []byte
}

// stopString is one stop and how much of it the text ends with.
type stopString struct {
	text string
	// border[i] is the length of the longest proper beginning of text[:i+1] that
	// is also its end.
	border []uint8
	// state is the length of the longest beginning that the text ends with, less
	// than len(text).
	state int
}

// newStopMatcher returns nil if there are no stops. Each must have 1 to
// MaxStopBytes bytes.
func newStopMatcher(stops []string) *stopMatcher {
	if len(stops) == 0 {
		return nil
	}
	m := &stopMatcher{stops: make([]stopString, len(stops))}
	for i, text := range stops {
		s := stopString{text: text, border: make([]uint8, len(text))}
		for j, k := 1, 0; j < len(text); j++ {
			for k > 0 && text[j] != text[k] {
				k = int(s.border[k-1])
			}
			if text[j] == text[k] {
				k++
			}
			s.border[j] = uint8(k)
		}
		m.stops[i] = s
	}
	return m
}

// next takes the next piece of the text and returns what may be shown after
// it. If a stop is complete, stopped is true and show ends where it begins; the
// matcher is then finished. With ignore a complete stop is passed over.
func (m *stopMatcher) next(piece string, ignore bool) (show string, stopped bool) {
	for i := range len(piece) {
		longest := 0
		for k := range m.stops {
			if s := &m.stops[k]; s.advance(piece[i]) {
				longest = max(longest, len(s.text))
			}
		}
		if longest > 0 && !ignore {
			all := append(m.held, piece[:i+1]...)
			m.held = nil
			return string(all[:len(all)-longest]), true
		}
	}
	keep := 0
	for k := range m.stops {
		keep = max(keep, m.stops[k].state)
	}
	all := append(m.held, piece...)
	show = string(all[:len(all)-keep])
	m.held = append(m.held[:0], all[len(all)-keep:]...)
	return show, false
}

// advance takes one byte and reports whether the stop is complete. It then
// goes on as if it were not.
func (s *stopString) advance(c byte) bool {
	for s.state > 0 && s.text[s.state] != c {
		s.state = int(s.border[s.state-1])
	}
	if s.text[s.state] == c {
		s.state++
	}
	if s.state < len(s.text) {
		return false
	}
	s.state = int(s.border[s.state-1])
	return true
}

// rest ends the text: it returns what was held back.
func (m *stopMatcher) rest() string {
	show := string(m.held)
	m.held = nil
	return show
}
