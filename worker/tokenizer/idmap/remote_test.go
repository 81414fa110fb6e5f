package idmap

import (
	"bytes"
	"errors"
	"reflect"
	"testing"
)

// A vocabulary put together elsewhere is the same, and so are the maps that it gives.
func TestRemote(t *testing.T) {
	small, large := reasoners(t)
	for name, c := range map[string]struct{ here, there Model }{"large at small": {small, large}, "small at large": {large, small}, "the same": {small, small}} {
		s := Summarize(c.there.Words)
		got, err := Remote(c.here.Words, &s)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		want := c.there.Words
		if got.Size() != want.Size() {
			t.Errorf("%s: %d ids, want %d", name, got.Size(), want.Size())
		}
		for id := int32(-1); id <= int32(want.Size()+20); id++ {
			if a, b := got.TokenBytes(id), want.TokenBytes(id); !bytes.Equal(a, b) || (a == nil) != (b == nil) {
				t.Errorf("%s: id %d is %q, want %q", name, id, a, b)
			}
		}
		for _, a := range want.AddedTokens() {
			if id, ok := got.AddedID(a.Text); !ok || id != a.ID {
				t.Errorf("%s: %q is %d, %t; want %d", name, a.Text, id, ok, a.ID)
			}
		}
		if len(got.AddedTokens()) != len(want.AddedTokens()) {
			t.Errorf("%s: %v", name, got.AddedTokens())
		}
	}
	want := reasonerMap(t)
	atSmall, atLarge := Summarize(large.Words), Summarize(small.Words)
	far, err := Remote(small.Words, &atSmall)
	near, err2 := Remote(large.Words, &atLarge)
	if err = errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	for name, sides := range map[string][2]Model{"at the entry": {small, {far, large.Ends}}, "at the collaborator": {{near, small.Ends}, large}} {
		pairs, err := Parse(sides[0].Words, sides[1].Words, []string{"<think>=<think>", "</think>=</think>", "520=<im_end>", "<user>=521", "<begin>=<endoftext>"})
		if err != nil {
			t.Fatal(err)
		}
		got, err := New(sides[0], sides[1], pairs)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, want)
		}
	}
}

func TestRemoteRefuses(t *testing.T) {
	small, large := reasoners(t)
	foreign := Summarize(other(t).Words)
	far, taken, outside := Summarize(large.Words), Summarize(large.Words), Summarize(large.Words)
	far.Plain = "nonsense"
	taken.Added = append([]Added{{100, "<x>", "<x>"}}, taken.Added...)
	outside.Size = 522
	for name, s := range map[string]*Summary{"another model": &foreign, "other words": &far, "a word that is added there": &taken, "an id out of range": &outside} {
		if w, err := Remote(small.Words, s); !errors.Is(err, ErrVocabulary) || w != nil {
			t.Errorf("%s: error %v", name, err)
		}
	}
}
