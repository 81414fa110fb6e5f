package main

import (
	"strings"
	"testing"
	"time"
)

func TestNextRestart(t *testing.T) {
	for _, c := range []struct {
		name, set string
		served    time.Duration
		next      string
		ok        bool
	}{
		{"first", "", time.Second, "1", true},
		{"third", "2", time.Second, "3", true},
		{"too often", "3", time.Second, "4", false},
		{"calm in between", "3", calmAfter, "1", true},
		{"nonsense", "-7", time.Second, "1", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if next, ok := nextRestart(c.set, c.served); next != c.next || ok != c.ok {
				t.Errorf("next %q, %t; want %q, %t", next, ok, c.next, c.ok)
			}
		})
	}
}

func TestRestartsBefore(t *testing.T) {
	for set, want := range map[string]int{"": 0, "2": 2, "-7": 0, "x": 0} {
		if got := restartsBefore(set); got != want {
			t.Errorf("%q: %d", set, got)
		}
	}
}

func TestServing(t *testing.T) {
	for line, want := range map[string]bool{
		"trctl": false, "trctl serve --device cuda": true, "trctl worker join --model x": true, "trctl worker": false, "trctl gateway join": false, "trctl eval": false,
	} {
		if got := serving(strings.Fields(line)); got != want {
			t.Errorf("%s: %v", line, got)
		}
	}
}
