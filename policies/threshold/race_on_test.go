//go:build race

package threshold

// raced says that the race detector is on: everything is ten times slower.
const raced = true
