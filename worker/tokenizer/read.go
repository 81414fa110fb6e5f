package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"github.com/tokenrouter/tokenrouter/internal/jsonscan"
)

const (
	maxKey    = 1 << 10
	maxVocab  = 1 << 20 // the largest in use have 262,144
	maxMerges = 1 << 20
)

// readFile reads the text of a tokenizer.json. Vocabulary and merges, nearly all of
// it, are walked in place and bounded as they come; a key that is not known is an
// error everywhere.
func readFile(text []byte) (*tokenizerFile, error) {
	s, err := jsonscan.New(text)
	if err != nil {
		return nil, err
	}
	f := &tokenizerFile{}
	var unused any // truncation and padding are for batch callers of the reference
	err = s.Object(maxKey, func(key []byte) error {
		switch string(key) {
		case "version", "truncation", "padding":
			return field(s, key, &unused)
		case "added_tokens":
			return f.added(s)
		case "normalizer":
			return field(s, key, &f.Normalizer)
		case "pre_tokenizer":
			return field(s, key, &f.PreTokenizer)
		case "post_processor":
			return field(s, key, &f.PostProcessor)
		case "decoder":
			return field(s, key, &f.Decoder)
		case "model":
			if err := f.Model.read(s); err != nil {
				return fmt.Errorf("model: %w", err)
			}
			return nil
		}
		return fmt.Errorf("unknown field %q", key)
	})
	return f, err
}

// maxField is the longest text of a field besides the vocabulary, merges and added tokens.
const maxField = 1 << 20

// field decodes the value that is next.
func field(s *jsonscan.Scanner, key []byte, into any) error {
	raw := s.Raw()
	if len(raw) > maxField {
		return fmt.Errorf("%s: %d bytes, more than %d", key, len(raw), maxField)
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

func (f *tokenizerFile) added(s *jsonscan.Scanner) error {
	return s.Array(func(i int) error {
		if i == maxAdded {
			return fmt.Errorf("more than %d added_tokens", maxAdded)
		}
		var a addedEntry
		err := field(s, []byte("added_tokens"), &a)
		f.AddedTokens = append(f.AddedTokens, a)
		return err
	})
}

func (m *modelSection) read(s *jsonscan.Scanner) error {
	return s.Object(maxKey, func(key []byte) error {
		switch string(key) {
		case "type":
			return field(s, key, &m.Type)
		case "dropout":
			return field(s, key, &m.Dropout)
		case "unk_token":
			return field(s, key, &m.UnkToken)
		case "continuing_subword_prefix":
			return field(s, key, &m.ContinuingSubwordPrefix)
		case "end_of_word_suffix":
			return field(s, key, &m.EndOfWordSuffix)
		case "fuse_unk":
			return field(s, key, &m.FuseUnk)
		case "byte_fallback":
			return field(s, key, &m.ByteFallback)
		case "ignore_merges":
			return field(s, key, &m.IgnoreMerges)
		case "vocab":
			return m.readVocab(s)
		case "merges":
			return m.readMerges(s)
		}
		return fmt.Errorf("unknown field %q", key)
	})
}

func (m *modelSection) readVocab(s *jsonscan.Scanner) error {
	m.Vocab = map[string]int32{}
	return s.Object(maxTokenBytes, func(token []byte) error {
		id, err := s.Uint()
		switch {
		case err != nil:
			return fmt.Errorf("vocab: %q: %w", shown(token), err)
		case id > math.MaxInt32:
			return fmt.Errorf("vocab: id %d of %q is out of range", id, shown(token))
		case len(m.Vocab) == maxVocab:
			return fmt.Errorf("vocab: more than %d tokens", maxVocab)
		}
		m.Vocab[string(token)] = int32(id)
		return nil
	})
}

func (m *modelSection) readMerges(s *jsonscan.Scanner) error {
	m.Merges = nil
	err := s.Array(func(i int) error {
		if i == maxMerges {
			return fmt.Errorf("more than %d rules", maxMerges)
		}
		rule, err := readMerge(s)
		m.Merges = append(m.Merges, rule)
		return err
	})
	if err != nil {
		return fmt.Errorf("merges: %w", err)
	}
	return nil
}

// readMerge reads a merge in either form. Both parts lie in one text.
func readMerge(s *jsonscan.Scanner) (mergeRule, error) {
	if s.Next() == '[' {
		var both [2]string
		n := 0
		err := s.Array(func(i int) error {
			if n++; n > 2 {
				return fmt.Errorf("merge of more than two tokens")
			}
			var err error
			both[i], err = s.String(maxTokenBytes)
			return err
		})
		if err == nil && n != 2 {
			err = fmt.Errorf("merge of %d tokens", n)
		}
		return mergeRule{both[0], both[1]}, err
	}
	text, err := s.String(2*maxTokenBytes + 1)
	if err != nil {
		return mergeRule{}, err
	}
	left, right, ok := strings.Cut(text, " ")
	if !ok || strings.Contains(right, " ") {
		return mergeRule{}, fmt.Errorf("merge %q is not two tokens", shown([]byte(text)))
	}
	return mergeRule{left, right}, nil
}

// shown bounds what an error repeats of a file.
func shown(text []byte) []byte { return text[:min(len(text), 40)] }
