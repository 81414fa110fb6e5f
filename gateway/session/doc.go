// Package session serves requests by entry sub-services, whatever happens to
// one of them. A gateway uses it for clients on the network, package engine for
// callers in the same process.
//
// A Session is the fence of one answer (see ledger.go): it mints the epochs,
// accepts a token only for the current epoch and at the next position, and
// nothing else gets out. When an entry is lost, falls silent or breaks the
// protocol, the session submits the request, with what was committed, to another
// replica; who reads the session sees a pause.
//
// It also enforces what must hold whichever model writes and however often the
// request moves: stop strings (stop.go), stop ids and the token limit. An answer
// ends with the token that completes a stop; what a collaborator has committed
// after it is dropped, and the entry's stream is closed.
//
// A Feed runs the sessions of one call, such as the n choices of a prompt, and
// merges what they bring into a bounded queue. A caller that does not take from
// it holds the entries' streams back, and thereby pauses the sequences.
//
// The package knows neither HTTP clients nor models' files.
package session
