// Package router has the networks that judge a model's sampled tokens: whether a
// larger model should write the next one.
//
// Three kinds are known, each by the names that its authors publish: r2r (a
// residual net over the hidden vector, the candidate's embedding and the largest raw
// logits), citer (a small net over the hidden vector) and co-llm (one linear row). A
// net is a pair of files, NAME.safetensors with the tensors as published and
// NAME.json that says what they are (Sidecar). Nothing is taken from the file that
// the model has itself: the token embeddings are the model's.
//
// Executors are the callers. Read gives a Checkpoint; Net is its folded form, in
// which everything before the first non-linear step is one matrix; Scorer computes it
// on a CPU, with the executor's own matrix products, and is what GPU kernels are
// compared with. Reference is the unfolded network in float64, for tests.
//
// The embedding's part of the folded front is computed for the rows at hand: a table
// of all tokens would take V·D·4 bytes (622 MB for 151936 tokens and a width of
// 1024) to save 2 percent of the arithmetic.
//
// Invariant: the score of a row depends on that row alone, to the last bit, not on
// the rows beside it.
package router
