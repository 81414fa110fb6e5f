// Package jsonscan walks over a JSON text without copying it.
//
// The readers of checkpoints are the callers: a header or an index comes from
// anyone, may have a hundred megabytes, and must not cost more memory than what is
// kept of it. encoding/json copies every value at least once, reads a whole string
// before a caller can bound it, and hides duplicate keys. Here the caller is shown
// one key or element after the other, says how long a string may be, and ends the
// walk with an error of its own.
//
// The package checks the syntax once, in New, with encoding/json; it keeps no state
// besides its place in the text.
package jsonscan
