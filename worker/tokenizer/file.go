package tokenizer

import (
	"encoding/json"
	"fmt"
	"strings"
)

// tokenizerFile is tokenizer.json. Truncation and padding are for batch
// callers of the reference; they are read and not used.
type tokenizerFile struct {
	Version       string          `json:"version"`
	Truncation    json.RawMessage `json:"truncation"`
	Padding       json.RawMessage `json:"padding"`
	AddedTokens   []addedEntry    `json:"added_tokens"`
	Normalizer    *stage          `json:"normalizer"`
	PreTokenizer  *stage          `json:"pre_tokenizer"`
	PostProcessor *stage          `json:"post_processor"`
	Decoder       *stage          `json:"decoder"`
	Model         modelSection    `json:"model"`
}

type addedEntry struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

type modelSection struct {
	Type                    string           `json:"type"`
	Dropout                 *float64         `json:"dropout"`
	UnkToken                *string          `json:"unk_token"`
	ContinuingSubwordPrefix *string          `json:"continuing_subword_prefix"`
	EndOfWordSuffix         *string          `json:"end_of_word_suffix"`
	FuseUnk                 bool             `json:"fuse_unk"`
	ByteFallback            bool             `json:"byte_fallback"`
	IgnoreMerges            bool             `json:"ignore_merges"`
	Vocab                   map[string]int32 `json:"vocab"`
	Merges                  []mergeRule      `json:"merges"`
}

// stage is any normalizer, pre-tokenizer, post-processor or decoder: the union
// of the fields of the kinds that are known here.
type stage struct {
	Type           string                     `json:"type"`
	Normalizers    []stage                    `json:"normalizers"`
	PreTokenizers  []stage                    `json:"pretokenizers"`
	Pattern        map[string]string          `json:"pattern"`
	Behavior       string                     `json:"behavior"`
	Invert         bool                       `json:"invert"`
	AddPrefixSpace bool                       `json:"add_prefix_space"`
	TrimOffsets    bool                       `json:"trim_offsets"`
	UseRegex       *bool                      `json:"use_regex"`
	Single         []map[string]any           `json:"single"`
	Pair           []map[string]any           `json:"pair"`
	SpecialTokens  map[string]json.RawMessage `json:"special_tokens"`
}

// mergeRule is one merge, written as ["a","b"] or as "a b".
type mergeRule struct{ left, right string }

func (r *mergeRule) UnmarshalJSON(text []byte) error {
	if len(text) > 0 && text[0] == '[' {
		var pair []string
		if err := json.Unmarshal(text, &pair); err != nil {
			return err
		}
		if len(pair) != 2 {
			return fmt.Errorf("merge of %d tokens", len(pair))
		}
		r.left, r.right = pair[0], pair[1]
		return nil
	}
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	left, right, ok := strings.Cut(s, " ")
	if !ok || strings.Contains(right, " ") {
		return fmt.Errorf("merge %q is not two tokens", s)
	}
	r.left, r.right = left, right
	return nil
}

// check refuses, by name, every stage that is not done here. It returns the
// split pattern and whether the text is normalised.
func (f *tokenizerFile) check() (pattern string, nfc bool, err error) {
	if err := f.Model.check(); err != nil {
		return "", false, err
	}
	if nfc, err = f.Normalizer.nfc(); err != nil {
		return "", false, err
	}
	if pattern, err = f.PreTokenizer.splitPattern(); err != nil {
		return "", false, err
	}
	if err := f.PostProcessor.checkPost(); err != nil {
		return "", false, err
	}
	if f.Decoder == nil || f.Decoder.Type != "ByteLevel" {
		return "", false, unsupported("decoder is not ByteLevel")
	}
	return pattern, nfc, nil
}

func (m *modelSection) check() error {
	switch {
	case m.Type != "BPE":
		return unsupported("model.type %q", m.Type)
	case m.Dropout != nil && *m.Dropout != 0:
		return unsupported("model.dropout")
	case m.ContinuingSubwordPrefix != nil && *m.ContinuingSubwordPrefix != "":
		return unsupported("model.continuing_subword_prefix")
	case m.EndOfWordSuffix != nil && *m.EndOfWordSuffix != "":
		return unsupported("model.end_of_word_suffix")
	case m.ByteFallback:
		return unsupported("model.byte_fallback")
	}
	// unk_token and fuse_unk never matter, as every byte must have a token.
	return nil
}

func (s *stage) nfc() (bool, error) {
	switch {
	case s == nil:
		return false, nil
	case s.Type == "NFC":
		return true, nil
	case s.Type == "Sequence" && len(s.Normalizers) == 0:
		return false, nil
	case s.Type == "Sequence" && len(s.Normalizers) == 1:
		return s.Normalizers[0].nfc()
	}
	return false, unsupported("normalizer %q", s.Type)
}

// splitPattern wants a Sequence of one Split and one ByteLevel that only maps bytes.
func (s *stage) splitPattern() (string, error) {
	if s == nil || s.Type != "Sequence" || len(s.PreTokenizers) != 2 {
		return "", unsupported("pre_tokenizer is not a Sequence of Split and ByteLevel")
	}
	split, level := s.PreTokenizers[0], s.PreTokenizers[1]
	switch {
	case split.Type != "Split":
		return "", unsupported("pre_tokenizer: %q in place of Split", split.Type)
	case split.Behavior != "Isolated":
		return "", unsupported("pre_tokenizer: behavior %q of Split", split.Behavior)
	case split.Invert:
		return "", unsupported("pre_tokenizer: invert of Split")
	case level.Type != "ByteLevel":
		return "", unsupported("pre_tokenizer: %q in place of ByteLevel", level.Type)
	case level.AddPrefixSpace:
		return "", unsupported("pre_tokenizer: add_prefix_space")
	case level.UseRegex == nil || *level.UseRegex:
		return "", unsupported("pre_tokenizer: use_regex")
	}
	pattern, ok := split.Pattern["Regex"]
	if !ok {
		return "", unsupported("pre_tokenizer: Split without a Regex pattern")
	}
	return pattern, nil
}

// checkPost allows what adds no ids of its own.
func (s *stage) checkPost() error {
	if s == nil || s.Type == "ByteLevel" {
		return nil
	}
	if s.Type != "TemplateProcessing" {
		return unsupported("post_processor %q", s.Type)
	}
	if len(s.SpecialTokens) != 0 || len(s.Single) != 1 {
		return unsupported("post_processor: TemplateProcessing that adds tokens")
	}
	if _, ok := s.Single[0]["Sequence"]; !ok {
		return unsupported("post_processor: TemplateProcessing without its Sequence")
	}
	return nil
}
