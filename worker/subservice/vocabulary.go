package subservice

import "github.com/tokenrouter/tokenrouter/worker/tokenizer"

// Vocabulary is what a replica knows of its model's ids. It is safe for concurrent use.
type Vocabulary interface {
	// Encode returns the ids of a prompt that is text. The error is for the client.
	Encode(text string) ([]int32, error)
	// NewDecoder starts the text of an answer, or of an echoed prompt. With
	// skipSpecial the ids that only steer the model give no text.
	NewDecoder(skipSpecial bool) Decoder
	// TokenBytes is the text of one id alone, nil for none.
	TokenBytes(id int32) []byte
	// Size is the number of ids.
	Size() int
}

// Decoder turns a stream of ids into text. What it returns, joined, is the text.
type Decoder interface {
	// Next returns the text that is certain after this id, which may be empty.
	Next(id int32) string
	// Flush ends the stream and returns what was held back.
	Flush() string
}

// tokenized is the vocabulary of a tokenizer.
type tokenized struct{ *tokenizer.Tokenizer }

func (t tokenized) Encode(text string) ([]int32, error) {
	return t.Tokenizer.EncodePrompt(nil, text, tokenizer.ParseAll()), nil
}

// NewDecoder starts an answer, which goes on behind a prompt, or with all ids shown a prompt.
func (t tokenized) NewDecoder(skipSpecial bool) Decoder {
	if skipSpecial {
		return t.Tokenizer.NewContinuation(true)
	}
	return t.Tokenizer.NewDecoder(false)
}
