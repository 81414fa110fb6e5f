package idmap

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tokenrouter/tokenrouter/worker/tokenizer"
)

var (
	// ErrPair says that a pair of tokens is malformed, unknown or in conflict with another.
	ErrPair = errors.New("bad pair of tokens")
	// ErrVocabulary says that two vocabularies differ in more than added tokens, so that
	// no map makes them one.
	ErrVocabulary = errors.New("vocabularies differ beyond their added tokens")
	// ErrNoCounterpart says that the other model has no token for an id.
	ErrNoCounterpart = errors.New("token has no counterpart")
)

// Map is from the entry model's ids to a collaborator's own, and back.
type Map struct {
	toOwn, toEntry       map[int32]int32 // where they differ
	onlyEntry, onlyOwn   []int32         // in order
	lacksOwn, lacksEntry map[int32]bool
	entryEnds, ownEnds   []int32
}

// Words are a vocabulary: a *tokenizer.Tokenizer, or what Remote makes of what another
// process tells of its own.
type Words interface {
	// Size is the largest id plus one, TokenBytes the text of an id, nil for none.
	Size() int
	TokenBytes(id int32) []byte
	// AddedTokens are the added tokens in order of id, AddedID finds one by its text.
	AddedTokens() []tokenizer.AddedToken
	AddedID(text string) (int32, bool)
}

// Model is one side of a map.
type Model struct {
	Words Words
	// Ends are the ids that end an answer.
	Ends []int32
}

// maxPairs bounds a map; the families in use differ in some twenty tokens.
const maxPairs = 1024

// New makes the map of an entry model and a collaborator. Pairs are from the entry's ids
// to the collaborator's. Every other id means itself if both sides have the same text for
// it; an added token that has no counterpart then is of one side alone. It is nil if
// nothing differs.
func New(entry, own Model, pairs map[int32]int32) (*Map, error) {
	if len(pairs) > maxPairs {
		return nil, fmt.Errorf("%w: %d pairs, at most %d", ErrPair, len(pairs), maxPairs)
	}
	m := &Map{toOwn: map[int32]int32{}, toEntry: map[int32]int32{}, lacksOwn: map[int32]bool{}, lacksEntry: map[int32]bool{}, entryEnds: entry.Ends, ownEnds: own.Ends}
	for from, to := range pairs {
		if entry.Words.TokenBytes(from) == nil || own.Words.TokenBytes(to) == nil {
			return nil, fmt.Errorf("%w: %d to %d, which is not in use", ErrPair, from, to)
		}
		if old, ok := m.toEntry[to]; ok {
			return nil, fmt.Errorf("%w: %d and %d both to %d", ErrPair, min(old, from), max(old, from), to)
		}
		m.toOwn[from], m.toEntry[to] = to, from
	}
	entryAdded, ownAdded := added(entry.Words), added(own.Words)
	for i := range max(entry.Words.Size(), own.Words.Size()) {
		id := int32(i)
		a, b := entry.Words.TokenBytes(id), own.Words.TokenBytes(id)
		_, moved := m.toOwn[id]
		_, taken := m.toEntry[id]
		if !moved && !taken && bytes.Equal(a, b) {
			continue
		}
		if a != nil && !moved {
			if !entryAdded[id] {
				return nil, fmt.Errorf("%w: id %d is %.40q and %.40q", ErrVocabulary, id, a, b)
			}
			m.onlyEntry = append(m.onlyEntry, id)
			m.lacksOwn[id] = true
		}
		if b != nil && !taken {
			if !ownAdded[id] {
				return nil, fmt.Errorf("%w: id %d is %.40q and %.40q", ErrVocabulary, id, a, b)
			}
			m.onlyOwn = append(m.onlyOwn, id)
			m.lacksEntry[id] = true
		}
	}
	if n := max(len(m.onlyEntry), len(m.onlyOwn)); n > maxPairs {
		return nil, fmt.Errorf("%w: %d added tokens without counterpart", ErrVocabulary, n)
	}
	if len(m.toOwn)+len(m.onlyEntry)+len(m.onlyOwn) == 0 && sameSet(entry.Ends, own.Ends) {
		return nil, nil
	}
	return m, nil
}

func sameSet(a, b []int32) bool {
	within := func(a, b []int32) bool {
		return !slices.ContainsFunc(a, func(id int32) bool { return !slices.Contains(b, id) })
	}
	return within(a, b) && within(b, a)
}

func added(t Words) map[int32]bool {
	out := map[int32]bool{}
	for _, a := range t.AddedTokens() {
		out[a.ID] = true
	}
	return out
}

// Parse reads pairs such as "<think>=<think>", "151648=151667" or
// "<｜User｜>=<|im_start|>": texts of added tokens or ids, the entry's first.
func Parse(entry, own Words, pairs []string) (map[int32]int32, error) {
	out := make(map[int32]int32, len(pairs))
	for _, p := range pairs {
		at := strings.LastIndexByte(p, '=')
		if at <= 0 || at == len(p)-1 {
			return nil, fmt.Errorf("%w: expected ENTRY=OTHER, found %.80q", ErrPair, p)
		}
		from, ok := find(entry, p[:at])
		if !ok {
			return nil, fmt.Errorf("%w: the entry model has no token %.80q", ErrPair, p[:at])
		}
		to, ok := find(own, p[at+1:])
		if !ok {
			return nil, fmt.Errorf("%w: the other model has no token %.80q", ErrPair, p[at+1:])
		}
		if old, ok := out[from]; ok && old != to {
			return nil, fmt.Errorf("%w: %d to both %d and %d", ErrPair, from, old, to)
		}
		out[from] = to
	}
	return out, nil
}

// find finds a token by the text of an added one, or by its number.
func find(t Words, name string) (int32, bool) {
	if id, ok := t.AddedID(name); ok {
		return id, true
	}
	n, err := strconv.ParseInt(name, 10, 32)
	return int32(n), err == nil && n >= 0 && t.TokenBytes(int32(n)) != nil
}

// Own is the collaborator's id for one of the entry; false if it has none.
func (m *Map) Own(id int32) (int32, bool) {
	if m == nil {
		return id, true
	}
	if to, ok := m.toOwn[id]; ok {
		return to, true
	}
	return id, !m.lacksOwn[id]
}

// Entry is the entry's id for one of the collaborator; false if it has none.
func (m *Map) Entry(id int32) (int32, bool) {
	if m == nil {
		return id, true
	}
	if from, ok := m.toEntry[id]; ok {
		return from, true
	}
	return id, !m.lacksEntry[id]
}

// OnlyEntry lists the entry's tokens that the collaborator lacks, in order.
func (m *Map) OnlyEntry() []int32 {
	if m == nil {
		return nil
	}
	return slices.Clone(m.onlyEntry)
}

// OnlyOwn lists the collaborator's tokens that the entry lacks, in order.
func (m *Map) OnlyOwn() []int32 {
	if m == nil {
		return nil
	}
	return slices.Clone(m.onlyOwn)
}
