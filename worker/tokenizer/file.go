package tokenizer

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// tokenizerFile is what counts of tokenizer.json.
type tokenizerFile struct {
	AddedTokens   []addedEntry
	Normalizer    *stage
	PreTokenizer  *stage
	PostProcessor *stage
	Decoder       *stage
	Model         modelSection
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
	Type                    string
	Dropout                 *float64
	UnkToken                *string
	ContinuingSubwordPrefix *string
	EndOfWordSuffix         *string
	FuseUnk                 bool
	ByteFallback            bool
	IgnoreMerges            bool
	Vocab                   map[string]int32
	Merges                  []mergeRule
}

// stage is any normalizer, pre-tokenizer, post-processor or decoder: the union
// of the fields of the kinds that are known here.
type stage struct {
	Type           string                 `json:"type"`
	Normalizers    []stage                `json:"normalizers"`
	PreTokenizers  []stage                `json:"pretokenizers"`
	Processors     []stage                `json:"processors"`
	Decoders       []stage                `json:"decoders"`
	Pattern        map[string]string      `json:"pattern"`
	Behavior       string                 `json:"behavior"`
	Invert         bool                   `json:"invert"`
	AddPrefixSpace *bool                  `json:"add_prefix_space"`
	TrimOffsets    bool                   `json:"trim_offsets"`
	UseRegex       *bool                  `json:"use_regex"`
	Prepend        string                 `json:"prepend"`
	Content        string                 `json:"content"`
	Start          int                    `json:"start"`
	Stop           int                    `json:"stop"`
	Replacement    string                 `json:"replacement"`
	StrRep         string                 `json:"str_rep"`
	PrependScheme  string                 `json:"prepend_scheme"`
	Split          *bool                  `json:"split"`
	Single         []templateItem         `json:"single"`
	Pair           []templateItem         `json:"pair"`
	SpecialTokens  map[string]templateIDs `json:"special_tokens"`
}

// templateItem is one part of what TemplateProcessing puts together.
type templateItem struct {
	SpecialToken *templatePart `json:"SpecialToken"`
	Sequence     *templatePart `json:"Sequence"`
}

type templatePart struct {
	ID   string `json:"id"`
	Type int    `json:"type_id"`
}

type templateIDs struct {
	ID     string   `json:"id"`
	IDs    []int32  `json:"ids"`
	Tokens []string `json:"tokens"`
}

// mergeRule is one merge, written as ["a","b"] or as "a b".
type mergeRule struct{ left, right string }

// plan is what the stages of a file ask for.
type plan struct {
	normal *normalizer
	meta   *metaspace
	// pattern has the split patterns, one a line, for a byte-level vocabulary;
	// bytes is false for one of characters with bytes as a fallback.
	pattern string
	bytes   bool
	// space stands for a space in the vocabulary of characters. splitMarks has
	// words begin at every one of them.
	space      string
	splitMarks bool
	// strip takes one space off the beginning of a decoded text.
	strip bool
	// prefix are ids that a prompt begins with.
	prefix []int32
}

// describe is the part of the plan that decides ids, for the fingerprint.
func (p *plan) describe() string {
	s := fmt.Sprintf("bytes=%t marks=%t", p.bytes, p.splitMarks)
	if n := p.normal; n != nil {
		s += fmt.Sprintf(" nfc=%t prepend=%q replace=%q", n.marks != nil, n.prepend, n.replace)
	}
	if m := p.meta; m != nil {
		s += fmt.Sprintf(" metaspace=%q %t %t", m.mark, m.always, m.first)
	}
	return s
}

// check refuses, by name, every stage that is not done here.
func (f *tokenizerFile) check() (*plan, error) {
	if err := f.Model.check(); err != nil {
		return nil, err
	}
	p := &plan{bytes: !f.Model.ByteFallback}
	var err error
	if p.normal, err = f.Normalizer.normalizer(); err != nil {
		return nil, err
	}
	if p.bytes {
		if p.pattern, err = f.PreTokenizer.splitPattern(); err != nil {
			return nil, err
		}
		if f.Decoder == nil || f.Decoder.Type != "ByteLevel" {
			return nil, unsupported("decoder is not ByteLevel")
		}
	} else {
		if err := f.PreTokenizer.metaspace(p); err != nil {
			return nil, err
		}
		if err := f.Decoder.fallbackDecoder(p); err != nil {
			return nil, err
		}
	}
	p.prefix, err = f.PostProcessor.prefixIDs()
	return p, err
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
	}
	// unk_token and fuse_unk never matter, as every byte must have a token.
	return nil
}

// normalizer reads NFC, Prepend and Replace of single characters, in this order.
func (s *stage) normalizer() (*normalizer, error) {
	if s == nil {
		return nil, nil
	}
	n := &normalizer{}
	if err := n.add(s, 0); err != nil {
		return nil, err
	}
	if n.marks == nil && n.prepend == "" && len(n.replace) == 0 {
		return nil, nil
	}
	return n, nil
}

func (n *normalizer) add(s *stage, depth int) error {
	local := n.prepend != "" || len(n.replace) > 0
	switch s.Type {
	case "NFC":
		if local {
			return unsupported("normalizer: NFC behind Prepend or Replace")
		}
		n.marks = newMarkRules()
	case "Prepend":
		if local || !oneRune(s.Prepend) {
			return unsupported("normalizer: Prepend of %q", s.Prepend)
		}
		n.prepend = s.Prepend
	case "Replace":
		from, ok := s.Pattern["String"]
		if !ok || !oneRune(from) || !oneRune(s.Content) || len(n.replace) == 4 {
			return unsupported("normalizer: Replace of %q by %q", s.Pattern, s.Content)
		}
		n.replace = append(n.replace, [2]string{from, s.Content})
	case "Sequence":
		if depth > 2 || len(s.Normalizers) > 8 {
			return unsupported("normalizer: Sequence of %d", len(s.Normalizers))
		}
		for i := range s.Normalizers {
			if err := n.add(&s.Normalizers[i], depth+1); err != nil {
				return err
			}
		}
	default:
		return unsupported("normalizer %q", s.Type)
	}
	return nil
}

func oneRune(s string) bool { return utf8.RuneCountInString(s) == 1 && utf8.ValidString(s) }

// splitPattern wants a Sequence of Splits and one ByteLevel that only maps bytes.
func (s *stage) splitPattern() (string, error) {
	if s == nil || s.Type != "Sequence" || len(s.PreTokenizers) < 2 || len(s.PreTokenizers) > 8 {
		return "", unsupported("pre_tokenizer is not a Sequence of Split and ByteLevel")
	}
	last := len(s.PreTokenizers) - 1
	var patterns []string
	for _, split := range s.PreTokenizers[:last] {
		switch {
		case split.Type != "Split":
			return "", unsupported("pre_tokenizer: %q in place of Split", split.Type)
		case split.Behavior != "Isolated":
			return "", unsupported("pre_tokenizer: behavior %q of Split", split.Behavior)
		case split.Invert:
			return "", unsupported("pre_tokenizer: invert of Split")
		}
		pattern, ok := split.Pattern["Regex"]
		if !ok {
			return "", unsupported("pre_tokenizer: Split without a Regex pattern")
		}
		patterns = append(patterns, pattern)
	}
	level := s.PreTokenizers[last]
	switch {
	case level.Type != "ByteLevel":
		return "", unsupported("pre_tokenizer: %q in place of ByteLevel", level.Type)
	case level.AddPrefixSpace == nil || *level.AddPrefixSpace:
		return "", unsupported("pre_tokenizer: add_prefix_space")
	case level.UseRegex == nil || *level.UseRegex:
		return "", unsupported("pre_tokenizer: use_regex")
	}
	return strings.Join(patterns, "\n"), nil
}

// metaspace reads the pre-tokenizer of a vocabulary of characters: nothing, when the
// normalizer writes the marks for spaces, or Metaspace.
func (s *stage) metaspace(p *plan) error {
	if s == nil {
		return nil
	}
	prefix := s.AddPrefixSpace == nil || *s.AddPrefixSpace
	switch {
	case s.Type != "Metaspace":
		return unsupported("pre_tokenizer %q", s.Type)
	case !oneRune(s.Replacement):
		return unsupported("pre_tokenizer: replacement %q", s.Replacement)
	}
	p.meta = &metaspace{mark: s.Replacement}
	p.splitMarks = s.Split == nil || *s.Split
	switch {
	case s.PrependScheme == "always" && prefix, s.PrependScheme == "" && prefix:
		p.meta.always = true
	case s.PrependScheme == "first" && prefix:
		p.meta.first = true
	case s.PrependScheme == "never", s.PrependScheme == "" && !prefix:
	default:
		return unsupported("pre_tokenizer: prepend_scheme %q", s.PrependScheme)
	}
	return nil
}

// fallbackDecoder wants marks back to spaces, bytes back to characters, and perhaps
// one space off the front.
func (s *stage) fallbackDecoder(p *plan) error {
	if s == nil || s.Type != "Sequence" || len(s.Decoders) < 3 || len(s.Decoders) > 4 {
		return unsupported("decoder is not a Sequence of Replace, ByteFallback, Fuse and Strip")
	}
	mark := s.Decoders[0].Pattern["String"]
	switch {
	case s.Decoders[0].Type != "Replace" || !oneRune(mark) || s.Decoders[0].Content != " ":
		return unsupported("decoder: %q in place of Replace by a space", s.Decoders[0].Type)
	case s.Decoders[1].Type != "ByteFallback":
		return unsupported("decoder: %q in place of ByteFallback", s.Decoders[1].Type)
	case s.Decoders[2].Type != "Fuse":
		return unsupported("decoder: %q in place of Fuse", s.Decoders[2].Type)
	}
	p.space = mark
	if len(s.Decoders) == 3 {
		return nil
	}
	strip := s.Decoders[3]
	if strip.Type != "Strip" || strip.Content != " " || strip.Start != 1 || strip.Stop != 0 {
		return unsupported("decoder: %q in place of Strip of one space at the start", strip.Type)
	}
	p.strip = true
	return nil
}

// prefixIDs allows what puts ids in front of a prompt, such as the id that begins a text.
func (s *stage) prefixIDs() ([]int32, error) {
	switch {
	case s == nil, s.Type == "ByteLevel":
		return nil, nil
	case s.Type == "Sequence" && len(s.Processors) <= 8:
		var ids []int32
		for i := range s.Processors {
			more, err := s.Processors[i].prefixIDs()
			if err != nil {
				return nil, err
			}
			ids = append(more, ids...)
		}
		return ids, nil
	case s.Type != "TemplateProcessing":
		return nil, unsupported("post_processor %q", s.Type)
	}
	var ids []int32
	for i, item := range s.Single {
		switch {
		case item.Sequence != nil && i == len(s.Single)-1:
			return ids, nil
		case item.SpecialToken == nil || i >= 4:
			return nil, unsupported("post_processor: TemplateProcessing with more than ids in front of its Sequence")
		}
		known, ok := s.SpecialTokens[item.SpecialToken.ID]
		if !ok || len(known.IDs) == 0 || len(known.IDs) > 4 {
			return nil, corrupt("post_processor: special token %q has no ids", item.SpecialToken.ID)
		}
		ids = append(ids, known.IDs...)
	}
	return nil, unsupported("post_processor: TemplateProcessing that does not end with its Sequence")
}
