// Package unwelcome keeps a log readable when a peer that is refused tries again and
// again: servers say once for each cause that they refuse it, and count from then on,
// until they let it in. It decides nothing, and starts no goroutine.
package unwelcome
