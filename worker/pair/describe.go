package pair

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/tokenrouter/tokenrouter/worker/model"
	"github.com/tokenrouter/tokenrouter/worker/tokenizer"
	"github.com/tokenrouter/tokenrouter/worker/tokenizer/chat"
)

// Token is an id with its text.
type Token struct {
	ID   int32  `json:"id"`
	Text string `json:"text"`
}

// Description is what a checkpoint is. Its JSON names are stable.
type Description struct {
	Name         string             `json:"name"`
	Architecture model.Architecture `json:"architecture"`
	Parameters   int64              `json:"parameters"`
	Bytes        int64              `json:"bytes"` // of the weights in the files
	DType        string             `json:"dtype,omitempty"`
	Layers       int                `json:"layers"`
	Hidden       int                `json:"hidden"`
	Heads        int                `json:"heads"`
	KVHeads      int                `json:"kv_heads"`
	HeadDim      int                `json:"head_dim"`
	FFN          int                `json:"ffn"`
	Context      int                `json:"context"`
	RopeTheta    float64            `json:"rope_theta"`
	RopeScaling  *model.RopeScaling `json:"rope_scaling,omitempty"`
	Tied         bool               `json:"tied_embeddings"`
	// KVBytes are the bytes of keys and values of one token in bfloat16.
	KVBytes int64 `json:"kv_bytes_per_token"`
	// Rows is the number of rows of the output head, Tokens that of real ids.
	Rows        int     `json:"vocab_rows"`
	Tokens      int     `json:"tokens"`
	Added       int     `json:"added_tokens"`
	Begin       []Token `json:"begin,omitempty"` // ids that a prompt begins with
	End         []Token `json:"end"`             // ids that end an answer
	Template    int     `json:"template_bytes"`  // 0 if there is no chat template
	Fingerprint string  `json:"fingerprint,omitempty"`
	// Faults are why it cannot be served, in words.
	Faults []string `json:"faults,omitempty"`
}

// Side is one model of a pair, open as far as it could be opened.
type Side struct {
	Description
	tokenizer *tokenizer.Tokenizer
	template  *chat.Template
}

// OpenDir describes a directory. Faults of the model are in the description; the
// error is for a directory that cannot be read at all.
func OpenDir(dir string) (*Side, error) {
	if st, err := os.Stat(dir); err != nil {
		return nil, err
	} else if !st.IsDir() {
		return nil, fmt.Errorf("%s is not a directory", dir)
	}
	return open(dir, os.DirFS(dir), func() (*model.Checkpoint, error) { return model.OpenDir(dir) }), nil
}

// OpenFS describes the model at the root of a file system.
func OpenFS(files fs.FS, name string) *Side {
	return open(name, files, func() (*model.Checkpoint, error) { return model.OpenFS(files, name) })
}

func open(name string, files fs.FS, weights func() (*model.Checkpoint, error)) *Side {
	s := &Side{Description: Description{Name: name, End: []Token{}}}
	var eos []int32
	k, err := weights()
	if err == nil {
		s.describe(k)
		eos = k.Generation.EOS
		err = errors.Join(k.Check(), k.Close())
	}
	s.fault(err)
	if s.tokenizer, err = tokenizer.Load(files); err == nil {
		s.words(eos)
	}
	s.fault(err)
	if s.template, err = chat.Load(files); err == nil {
		s.Template = len(s.template.Source())
	} else if !errors.Is(err, chat.ErrNoTemplate) {
		s.fault(err)
	}
	return s
}

func (s *Side) fault(err error) {
	if err != nil {
		s.Faults = append(s.Faults, err.Error())
	}
}

func (s *Side) describe(k *model.Checkpoint) {
	c := &k.Config
	s.Architecture, s.DType, s.Bytes = c.Architecture, c.DType, k.Bytes()
	s.Layers, s.Hidden, s.Heads, s.KVHeads, s.HeadDim, s.FFN = c.Layers, c.Hidden, c.Heads, c.KVHeads, c.HeadDim, c.FFN
	s.Context, s.RopeTheta, s.RopeScaling, s.Tied, s.Rows = c.MaxContext, c.RopeTheta, c.RopeScaling, c.TieEmbeddings, c.VocabSize
	s.KVBytes = int64(2*c.Layers*c.KVHeads*c.HeadDim) * 2
	for _, p := range c.Params() {
		n := int64(1)
		for _, d := range p.Shape {
			n *= int64(d)
		}
		s.Parameters += n
	}
}

// words describes the tokenizer.
func (s *Side) words(eos []int32) {
	t := s.tokenizer
	s.Tokens, s.Added, s.Fingerprint = t.Size(), len(t.AddedTokens()), t.Fingerprint()
	s.Begin = s.tokens(t.Prefix())
	s.End = append(s.End, s.tokens(slices.Sorted(slices.Values(eos)))...)
	if s.Rows > 0 && s.Tokens > s.Rows {
		s.Faults = append(s.Faults, fmt.Sprintf("tokenizer.json has ids up to %d, but config.json has vocab_size %d", s.Tokens-1, s.Rows))
	}
	if s.Rows > 0 && len(eos) == 0 {
		s.Faults = append(s.Faults, "neither generation_config.json nor config.json has eos_token_id, so no answer would end")
	}
}

func (s *Side) tokens(ids []int32) []Token {
	var out []Token
	for _, id := range ids {
		out = append(out, Token{id, string(s.tokenizer.TokenBytes(id))})
	}
	return out
}
