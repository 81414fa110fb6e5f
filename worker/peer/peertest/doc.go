// Package peertest is for tests of worker/peer and of those who use it: a
// network with faults, a tap that reads the frames off the wire and holds them
// against the protocol, and a ledger that sees what is handled.
//
// Faults are a function of the connection's number, so a seed gives the same
// faults again. Delays use timers, so a testing/synctest bubble skips them.
package peertest

// T is the part of testing.TB that the package needs.
type T interface {
	Helper()
	Errorf(format string, args ...any)
}
