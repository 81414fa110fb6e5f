package idmap

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"github.com/tokenrouter/tokenrouter/worker/tokenizer"
)

// Summary is what a process tells others of a vocabulary, so that they can make maps
// without its files.
type Summary struct {
	// Plain is a SHA-256 in hex over all ids and texts but those of added tokens.
	Plain string
	Size  int
	// Added are the added tokens in order of id, with what they are decoded to.
	Added []Added
}

// Added is an added token: its text, and what it is decoded to.
type Added struct {
	ID          int32
	Text, Shown string
}

// Summarize tells of a vocabulary.
func Summarize(w Words) Summary {
	s := Summary{Plain: plain(w), Size: w.Size()}
	for _, a := range w.AddedTokens() {
		s.Added = append(s.Added, Added{a.ID, a.Text, string(w.TokenBytes(a.ID))})
	}
	return s
}

// plain is Summary.Plain. It has ids and texts alone, as merges and splits matter only
// where prompts are made.
func plain(w Words) string {
	is := added(w)
	h := sha256.New()
	for id := range int32(w.Size()) {
		text := w.TokenBytes(id)
		if text == nil || is[id] {
			continue
		}
		var head [12]byte
		binary.LittleEndian.PutUint32(head[:], uint32(id))
		binary.LittleEndian.PutUint64(head[4:], uint64(len(text)))
		h.Write(head[:])
		h.Write(text)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Remote is the vocabulary of another process, put together from its Summary and from a
// vocabulary here that must be the same but for added tokens. Errors wrap ErrVocabulary.
func Remote(own Words, s *Summary) (Words, error) {
	if plain(own) != s.Plain {
		return nil, fmt.Errorf("%w: the ids of words are not the same", ErrVocabulary)
	}
	r := &remote{own: own, size: s.Size, ownAdded: added(own), shown: map[int32]string{}, ids: map[string]int32{}}
	for _, a := range s.Added {
		if a.ID < 0 || int(a.ID) >= s.Size {
			return nil, fmt.Errorf("%w: the added token %d of %d ids", ErrVocabulary, a.ID, s.Size)
		}
		if !r.ownAdded[a.ID] && own.TokenBytes(a.ID) != nil {
			return nil, fmt.Errorf("%w: id %d is an added token of one and %.40q of the other", ErrVocabulary, a.ID, own.TokenBytes(a.ID))
		}
		r.list = append(r.list, tokenizer.AddedToken{ID: a.ID, Text: a.Text})
		r.shown[a.ID], r.ids[a.Text] = a.Shown, a.ID
	}
	return r, nil
}

// remote is another process's vocabulary.
type remote struct {
	own      Words
	size     int
	ownAdded map[int32]bool
	list     []tokenizer.AddedToken
	shown    map[int32]string
	ids      map[string]int32
}

// Size implements Words.
func (r *remote) Size() int { return r.size }

// TokenBytes implements Words.
func (r *remote) TokenBytes(id int32) []byte {
	if text, ok := r.shown[id]; ok {
		return []byte(text)
	}
	if r.ownAdded[id] || int(id) >= r.size {
		return nil
	}
	return r.own.TokenBytes(id)
}

// AddedTokens implements Words.
func (r *remote) AddedTokens() []tokenizer.AddedToken {
	return append([]tokenizer.AddedToken(nil), r.list...)
}

// AddedID implements Words.
func (r *remote) AddedID(text string) (int32, bool) {
	id, ok := r.ids[text]
	return id, ok
}
