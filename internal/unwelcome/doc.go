// Package unwelcome keeps a log readable when a peer that is refused tries again and
// again: servers say once that they refuse it, and again when the reason has changed. It
// decides nothing, and starts no goroutine.
package unwelcome
