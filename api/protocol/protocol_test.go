package protocol

import (
	"errors"
	"strings"
	"testing"
)

func TestAgree(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ours, theirs Range
		want         int
		says         string // of the error; empty for none
	}{
		"same":               {Range{1, 1}, Range{1, 1}, 1, ""},
		"newer that reads":   {Range{1, 1}, Range{1, 2}, 1, ""},
		"older that is read": {Range{1, 2}, Range{1, 1}, 1, ""},
		"newest of several":  {Range{2, 5}, Range{1, 4}, 4, ""},
		"too old":            {Range{2, 3}, Range{1, 1}, 0, "speaks 2 to 3, the other 1: the other is too old; upgrade it to a build that speaks 2"},
		"too new":            {Range{1, 1}, Range{2, 4}, 0, "speaks 1, the other 2 to 4: the other is too new; upgrade this side first, or give the other a build that speaks 1"},
		"nothing":            {Range{1, 1}, Range{}, 0, "no range of versions"},
		"negative":           {Range{1, 1}, Range{-1, 1}, 0, "no range of versions"},
		"backwards":          {Range{1, 4}, Range{3, 2}, 0, "no range of versions"},
		"absurd":             {Range{1, 1}, Range{1, Max + 1}, 0, "no range of versions"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Agree("test protocol", c.ours, c.theirs)
			if got != c.want || (err != nil) != (c.says != "") {
				t.Fatalf("%d, %v", got, err)
			}
			if err != nil && (!errors.Is(err, ErrMismatch) || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("error %v, want %q", err, c.says)
			}
			if err == nil {
				return
			}
			if _, back := Agree("test protocol", c.theirs, c.ours); back == nil {
				t.Error("the other side agrees")
			}
		})
	}
}

func TestOwn(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]Range{NameCluster: Cluster(), NameHandoff: Handoff(), NameGenerate: Generate()} {
		if !r.Valid() || r.Newest-r.Oldest < raised {
			t.Errorf("%s: %s", name, r)
		}
	}
}
