// Package decimal is the vocabulary of a model without a tokenizer: the text of an id is the id in decimal with a space
// before it. So " 12 7 305" is three ids, a stream of ids is joined without thought, and reading the text again gives
// the same ids.
package decimal
