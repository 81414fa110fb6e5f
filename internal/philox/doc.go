// Package philox is the counter-based random generator Philox4x32-10 and the
// layout of its counters for TokenRouter's draws.
//
// A draw is a pure function of (seed, position, model, purpose, index): no state
// travels with a request, a replay draws the same numbers, and what one model
// draws is independent of what another model draws at the same position.
//
// The recipe, for implementations in other languages:
//
//	key     = (low 32 bits of seed, high 32 bits of seed)
//	counter = (index / 4, position, model | purpose << 8, 0)
//	word    = Philox4x32-10(counter, key)[index % 4]
//
// For the draw of a token the index is the token id. Uniform uses index 0 and 1.
package philox
