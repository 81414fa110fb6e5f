// Package state is the replicated state of a cluster as a value, and the pure
// function that a command changes it by.
//
//	next, err := state.Apply(now, index, command)
//
// The same states and commands give the same result on every control node: no
// clock, no randomness, no I/O, no order of a map. An error is part of the
// result: all nodes refuse the same command with the same error, and the state
// stays as it was but for its index.
//
// A State is immutable. Apply shares what it does not change, so that readers
// keep a consistent view for as long as they like without a lock.
//
// # Watching
//
// Every object carries the index of the command that changed it last. Changes
// lists what has changed since an index, deletions too, and says when so much has
// been forgotten that only a whole Snapshot will do. Follow applies such a list to
// a copy elsewhere. What a role may see is decided by Visible.
//
// # Invariants
//
// Check lists them and finds the violations; Apply keeps them.
package state
