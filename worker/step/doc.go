// Package step holds the input and the output of one forward pass, as plain data.
//
// A step is ragged: every row brings one or more new tokens of one sequence. A
// prefill chunk, an extend over returned tokens and a single-token decode are
// the same thing with different token counts, and may share a step.
//
// The scheduler fills a Batch, an executor runs it, and the sub-service reads
// the Result. The package depends on nothing but the standard library so that
// the pure parts of the worker can use it.
package step
