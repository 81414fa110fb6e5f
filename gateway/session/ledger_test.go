package session

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tokenrouter/tokenrouter/api/generate"
)

func tokenEvents(ids ...int32) []generate.TokenEvent {
	out := make([]generate.TokenEvent, len(ids))
	for i, id := range ids {
		out[i] = generate.TokenEvent{ID: id}
	}
	return out
}

// admitted is a ledger in epoch 1 with the given committed ids.
func admitted(t *testing.T, ids ...int32) *ledger {
	t.Helper()
	l := &ledger{limit: 8, models: 2, vocab: 100}
	l.begin()
	if err := l.admit(&generate.Event{Kind: generate.EventAdmitted, Epoch: 1, PromptIDs: []int32{1, 2}, Version: 9}); err != nil {
		t.Fatal(err)
	}
	if v := l.resume().Version; v != 9 {
		t.Fatalf("it resumes with version %d", v)
	}
	if _, err := l.accept(&generate.Event{Kind: generate.EventTokens, Epoch: 1, Tokens: tokenEvents(ids...), Turn: true, Owner: 1, State: []byte{7}}); err != nil {
		t.Fatal(err)
	}
	return l
}

func TestLedgerAccept(t *testing.T) {
	for _, tc := range []struct {
		name  string
		event generate.Event
		fresh int
		err   error
		owner uint8
	}{
		{"next", generate.Event{Epoch: 1, Base: 3, Tokens: tokenEvents(8)}, 1, nil, 1},
		{"next with a turn", generate.Event{Epoch: 1, Base: 3, Tokens: tokenEvents(8), Turn: true}, 1, nil, 0},
		{"turn alone", generate.Event{Epoch: 1, Base: 3, Turn: true}, 0, nil, 0},
		{"duplicate", generate.Event{Epoch: 1, Base: 0, Tokens: tokenEvents(5, 6, 7)}, 0, nil, 1},
		{"duplicate in the middle", generate.Event{Epoch: 1, Base: 1, Tokens: tokenEvents(6), Turn: true}, 0, nil, 1},
		{"overlap", generate.Event{Epoch: 1, Base: 2, Tokens: tokenEvents(7, 8, 9)}, 2, nil, 1},
		{"empty at the start", generate.Event{Epoch: 1, Base: 0}, 0, nil, 1},
		{"conflict", generate.Event{Epoch: 1, Base: 2, Tokens: tokenEvents(6, 8)}, 0, errConflict, 1},
		{"conflict of models", generate.Event{Epoch: 1, Base: 2, Tokens: []generate.TokenEvent{{ID: 7, Model: 1}}}, 0, errConflict, 1},
		{"gap", generate.Event{Epoch: 1, Base: 4, Tokens: tokenEvents(9)}, 0, errGap, 1},
		{"negative", generate.Event{Epoch: 1, Base: -1, Tokens: tokenEvents(9)}, 0, errGap, 1},
		{"older epoch", generate.Event{Epoch: 0, Base: 3, Tokens: tokenEvents(8)}, 0, errStale, 1},
		{"newer epoch", generate.Event{Epoch: 2, Base: 3, Tokens: tokenEvents(8)}, 0, errStale, 1},
		{"over the limit", generate.Event{Epoch: 1, Base: 3, Tokens: tokenEvents(1, 2, 3, 4, 5, 6)}, 0, errEvent, 1},
		{"id over the vocabulary", generate.Event{Epoch: 1, Base: 3, Tokens: tokenEvents(8, 100)}, 0, errEvent, 1},
		{"negative id", generate.Event{Epoch: 1, Base: 3, Tokens: tokenEvents(-1)}, 0, errEvent, 1},
		{"unknown model", generate.Event{Epoch: 1, Base: 3, Tokens: []generate.TokenEvent{{ID: 8, Model: 2}}}, 0, errEvent, 1},
		{"unknown owner", generate.Event{Epoch: 1, Base: 3, Tokens: tokenEvents(8), Turn: true, Owner: 2}, 0, errEvent, 1},
		{"long state", generate.Event{Epoch: 1, Base: 3, Turn: true, State: make([]byte, 65)}, 0, errEvent, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := admitted(t, 5, 6, 7)
			tc.event.Kind = generate.EventTokens
			fresh, err := l.accept(&tc.event)
			if !errors.Is(err, tc.err) || len(fresh) != tc.fresh {
				t.Errorf("fresh %v, error %v; want %d, %v", fresh, err, tc.fresh, tc.err)
			}
			if len(l.tokens) != 3+tc.fresh || l.owner != tc.owner {
				t.Errorf("%d tokens, owner %d", len(l.tokens), l.owner)
			}
		})
	}
}

func TestLedgerEpochs(t *testing.T) {
	l := &ledger{limit: 8, models: 2, vocab: 100}
	if l.resume() != nil {
		t.Error("something to resume before admission")
	}
	l.begin()
	if _, err := l.accept(&generate.Event{Kind: generate.EventTokens, Epoch: 1}); !errors.Is(err, errEvent) {
		t.Errorf("tokens before admission: %v", err)
	}
	if err := l.admit(&generate.Event{Kind: generate.EventAdmitted, Epoch: 1}); !errors.Is(err, errEvent) {
		t.Errorf("admitted without a prompt: %v", err)
	}
	l = admitted(t, 5)
	if err := l.admit(&generate.Event{Kind: generate.EventAdmitted, Epoch: 1, PromptIDs: []int32{1, 2}}); !errors.Is(err, errEvent) {
		t.Errorf("admitted twice: %v", err)
	}
	r := l.resume()
	if !slices.Equal(r.PromptIDs, []int32{1, 2}) || !slices.Equal(r.Tokens, []generate.Token{{ID: 5}}) || r.Owner != 1 || !slices.Equal(r.State, []byte{7}) {
		t.Errorf("resume %+v", r)
	}
	if l.begin() != 2 {
		t.Error("epochs do not grow by one")
	}
	if err := l.admit(&generate.Event{Kind: generate.EventAdmitted, Epoch: 1, PromptIDs: []int32{1, 2}}); !errors.Is(err, errStale) {
		t.Errorf("late admission of the first epoch: %v", err)
	}
	if err := l.admit(&generate.Event{Kind: generate.EventAdmitted, Epoch: 2, PromptIDs: []int32{1, 3}}); !errors.Is(err, errConflict) {
		t.Errorf("another prompt: %v", err)
	}
	if err := l.admit(&generate.Event{Kind: generate.EventAdmitted, Epoch: 2}); err != nil {
		t.Errorf("admitted again without the ids: %v", err)
	}
	if err := l.end(&generate.Event{Kind: generate.EventFinish, Epoch: 1, Finish: generate.FinishStop}); !errors.Is(err, errStale) {
		t.Errorf("late finish: %v", err)
	}
	if err := l.end(&generate.Event{Kind: generate.EventFinish, Epoch: 2}); !errors.Is(err, errEvent) {
		t.Errorf("finish without a reason: %v", err)
	}
	if err := l.end(&generate.Event{Kind: generate.EventFinish, Epoch: 2, Finish: generate.FinishLength}); err != nil {
		t.Error(err)
	}
}

// TestLedgerModel sends arbitrary events to a ledger and checks the rule on
// everything that comes out: positions 0, 1, 2, … once each, from the current
// epoch alone, and never another content for a committed position.
func TestLedgerModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := &ledger{limit: 12, models: 2, vocab: 4}
		var committed []generate.Token // the second, simple ledger
		epoch := uint32(0)
		open := false
		for range rapid.IntRange(0, 60).Draw(t, "events") {
			e := &generate.Event{
				Kind:   generate.EventKind(rapid.IntRange(1, 2).Draw(t, "kind")),
				Epoch:  uint32(rapid.IntRange(0, 4).Draw(t, "epoch")),
				Base:   int32(rapid.IntRange(-1, 13).Draw(t, "base")),
				Turn:   rapid.Bool().Draw(t, "turn"),
				Tokens: make([]generate.TokenEvent, rapid.IntRange(0, 3).Draw(t, "tokens")),
			}
			for i := range e.Tokens {
				e.Tokens[i].ID = int32(rapid.IntRange(-1, 4).Draw(t, "id"))
				e.Tokens[i].Model = uint8(rapid.IntRange(0, 2).Draw(t, "model"))
			}
			switch {
			case rapid.IntRange(0, 9).Draw(t, "move") == 0:
				epoch, open = l.begin(), false
				continue
			case e.Kind == generate.EventAdmitted:
				e.PromptIDs = []int32{1}
				want := epoch > 0 && e.Epoch == epoch && !open
				if got := l.admit(e) == nil; got != want && epoch > 0 {
					t.Fatalf("admitted %t, want %t", got, want)
				}
				open = l.admitted
				continue
			}
			fresh, err := l.accept(e)
			if err != nil && len(fresh) > 0 {
				t.Fatal("both tokens and an error")
			}
			if err == nil && (e.Epoch != epoch || !open) {
				t.Fatal("accepted out of turn")
			}
			for i, f := range fresh {
				if int(e.Base)+len(e.Tokens)-len(fresh)+i != len(committed) {
					t.Fatal("a token at the wrong position")
				}
				committed = append(committed, generate.Token{ID: f.ID, Model: f.Model})
			}
			if !slices.Equal(committed, l.tokens) {
				t.Fatalf("ledger %v, handed out %v", l.tokens, committed)
			}
			if err == nil {
				for i, tok := range e.Tokens {
					if committed[int(e.Base)+i] != (generate.Token{ID: tok.ID, Model: tok.Model}) {
						t.Fatal("a contradiction was accepted")
					}
				}
			}
		}
	})
}
