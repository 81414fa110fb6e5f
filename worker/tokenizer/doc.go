// Package tokenizer turns text into token ids and back, exactly as the
// checkpoint's tokenizer.json says.
//
// It knows byte-level BPE: a Unicode normal form, a split pattern, merges over
// bytes, and added tokens that stand for a whole text such as "<|im_end|>".
// What a file asks for beyond that is refused at load, by name; a tokenizer
// that is almost right gives wrong answers without an error.
//
// The entry sub-service is the caller: it encodes the prompt once, for both
// models, and owns one Decoder per request that it feeds with the committed
// ids in order. A Tokenizer never changes after Load and may be shared by
// goroutines; a Decoder belongs to one.
package tokenizer
