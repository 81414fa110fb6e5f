package bench

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
)

// Endpoint is the API that requests go to.
type Endpoint string

// Endpoints.
const (
	Chat        Endpoint = "chat"
	Completions Endpoint = "completions"
)

func (e Endpoint) path() string {
	if e == Chat {
		return "/v1/chat/completions"
	}
	return "/v1/completions"
}

// Bounds on prompts.
const (
	maxPromptLine = 16 << 20
	maxPrompts    = 1 << 20
	// MaxInputTokens bounds the length of a synthetic prompt.
	MaxInputTokens = 1 << 20
)

// ErrPrompts is in every error about prompts.
var ErrPrompts = errors.New("bad prompts")

// Prompts is what requests ask. The zero value has none.
type Prompts struct {
	// field is the request's "prompt" or "messages" with its value, as JSON.
	field func(i int) []byte
	// Source says where they are from, for the report.
	Source string
}

// ParsePrompts reads prompts, one JSON object a line, each with one of the fields
// prompt (a string), messages (a list of messages, for chat) or prompt_ids (a list
// of token ids, for completions); question means prompt. Other fields are ignored.
// Requests take the lines in turn, and start over after the last.
func ParsePrompts(text []byte, endpoint Endpoint, source string) (Prompts, error) {
	var all [][]byte
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, maxPromptLine)
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		if len(all) == maxPrompts {
			return Prompts{}, fmt.Errorf("%w: more than %d", ErrPrompts, maxPrompts)
		}
		field, err := parsePrompt(line, endpoint)
		if err != nil {
			return Prompts{}, fmt.Errorf("%w: line %d: %w", ErrPrompts, n, err)
		}
		all = append(all, field)
	}
	if err := lines.Err(); err != nil {
		return Prompts{}, fmt.Errorf("%w: %w", ErrPrompts, err)
	}
	if len(all) == 0 {
		return Prompts{}, fmt.Errorf("%w: there are none", ErrPrompts)
	}
	return Prompts{field: func(i int) []byte { return all[i%len(all)] }, Source: source}, nil
}

func parsePrompt(line []byte, endpoint Endpoint) ([]byte, error) {
	var p struct {
		Prompt   *string         `json:"prompt"`
		Question *string         `json:"question"`
		Messages json.RawMessage `json:"messages"`
		IDs      []uint32        `json:"prompt_ids"`
	}
	if err := json.Unmarshal(line, &p); err != nil {
		return nil, err
	}
	if p.Prompt == nil {
		p.Prompt = p.Question
	}
	given := 0
	for _, has := range []bool{p.Prompt != nil, p.Messages != nil, p.IDs != nil} {
		if has {
			given++
		}
	}
	switch {
	case given != 1:
		return nil, errors.New("exactly one of prompt, messages and prompt_ids is wanted")
	case p.Messages != nil && endpoint != Chat:
		return nil, errors.New("messages are for the chat endpoint")
	case p.Messages != nil:
		if !bytes.HasPrefix(p.Messages, []byte{'['}) {
			return nil, errors.New("messages is not a list")
		}
		return append([]byte(`"messages":`), p.Messages...), nil
	case p.IDs != nil && endpoint != Completions:
		return nil, errors.New("prompt_ids are for the completions endpoint")
	case p.IDs != nil && len(p.IDs) == 0:
		return nil, errors.New("prompt_ids is empty")
	case p.IDs != nil:
		return appendIDs([]byte(`"prompt":`), p.IDs), nil
	}
	return textField(*p.Prompt, endpoint)
}

// textField is the field of a prompt that is one text.
func textField(text string, endpoint Endpoint) ([]byte, error) {
	quoted, err := json.Marshal(text)
	if err != nil {
		return nil, err
	}
	if endpoint == Chat {
		return append(append([]byte(`"messages":[{"role":"user","content":`), quoted...), `}]`...), nil
	}
	return append([]byte(`"prompt":`), quoted...), nil
}

func appendIDs(dst []byte, ids []uint32) []byte {
	for i, id := range ids {
		if i == 0 {
			dst = append(dst, '[')
		} else {
			dst = append(dst, ',')
		}
		dst = strconv.AppendUint(dst, uint64(id), 10)
	}
	return append(dst, ']')
}

// Synthetic describes generated prompts. Prompt i of a seed is always the same,
// and the prompts of one seed differ from their first token on, so that no prefix
// cache helps.
type Synthetic struct {
	// InputTokens is the length of a prompt: exact with IDs, else that many short
	// words, of which a tokenizer makes about one token each. The report has the
	// length that the server counted.
	InputTokens int
	// IDs sends token ids instead of text; for completions.
	IDs bool
	// Vocab bounds the ids, which are drawn from [0, Vocab).
	Vocab int
	Seed  uint64
}

// Generate returns synthetic prompts.
func Generate(s Synthetic, endpoint Endpoint) (Prompts, error) {
	switch {
	case s.InputTokens < 1 || s.InputTokens > MaxInputTokens:
		return Prompts{}, fmt.Errorf("%w: the length is %d tokens, it must be in [1, %d]", ErrPrompts, s.InputTokens, MaxInputTokens)
	case s.IDs && endpoint != Completions:
		return Prompts{}, fmt.Errorf("%w: token ids are for the completions endpoint", ErrPrompts)
	case s.IDs && s.Vocab < 1:
		return Prompts{}, fmt.Errorf("%w: token ids need a vocabulary of at least one", ErrPrompts)
	}
	p := Prompts{field: s.words(endpoint), Source: fmt.Sprintf("synthetic, %d words", s.InputTokens)}
	if s.IDs {
		p = Prompts{field: s.ids, Source: fmt.Sprintf("synthetic, %d token ids below %d", s.InputTokens, s.Vocab)}
	}
	return p, nil
}

func (s Synthetic) rng(i int) *rand.Rand { return rand.New(rand.NewPCG(s.Seed, uint64(i))) }

func (s Synthetic) ids(i int) []byte {
	rng := s.rng(i)
	ids := make([]uint32, s.InputTokens)
	for k := range ids {
		ids[k] = rng.Uint32N(uint32(s.Vocab))
	}
	return appendIDs([]byte(`"prompt":`), ids)
}

func (s Synthetic) words(endpoint Endpoint) func(i int) []byte {
	// Words that common vocabularies hold whole, with the space before them.
	words := [...]string{
		"the", "of", "and", "to", "in", "is", "it", "for", "on", "as", "with", "by", "at", "from", "or", "an",
		"be", "this", "that", "are", "was", "not", "have", "has", "had", "one", "two", "all", "can", "more", "when", "there",
		"time", "people", "way", "water", "day", "part", "number", "sound", "work", "place", "year", "back", "thing", "name", "good", "man",
		"think", "say", "great", "where", "help", "through", "much", "before", "line", "right", "too", "mean", "old", "any", "same", "tell",
	}
	return func(i int) []byte {
		rng := s.rng(i)
		text := make([]byte, 0, 6*s.InputTokens)
		for k := range s.InputTokens {
			if k > 0 {
				text = append(text, ' ')
			}
			text = append(text, words[rng.IntN(len(words))]...)
		}
		field, err := textField(string(text), endpoint)
		if err != nil {
			panic("bench: plain words cannot be encoded: " + err.Error())
		}
		return field
	}
}
