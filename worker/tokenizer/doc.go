// Package tokenizer turns text into token ids and back, exactly as the
// checkpoint's tokenizer.json says.
//
// It knows BPE over bytes, behind the split patterns of Qwen2 and 3, Llama 3, and
// DeepSeek V3 and R1; and BPE over characters with bytes as a fallback, which is what
// Llama 2's SentencePiece model becomes. With these go normal form C, marks for
// spaces, added tokens that stand for a whole text such as "<|im_end|>" (with the
// white space beside them where the file says so), and the id that begins a prompt.
// What a file asks for beyond that is refused at load, by name; a tokenizer that is
// almost right gives wrong answers without an error.
//
// The entry sub-service is the caller: it encodes the prompt once, for both
// models, and owns one Decoder per request that it feeds with the committed
// ids in order. A Tokenizer never changes after Load and may be shared by
// goroutines; a Decoder belongs to one.
//
// Two deviations from the reference, both in decoding: a run of byte tokens that is
// no UTF-8 gives one U+FFFD for each maximal bad part, where the reference gives up
// the whole run; and an added token always decodes to its own text.
package tokenizer
