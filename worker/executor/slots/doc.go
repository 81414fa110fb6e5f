// Package slots keeps what an executor knows on the host of its open sequences:
// which slots are open, how many of their positions are valid, and their page
// tables. Set.Admit checks a whole step.Batch against that before anything runs.
//
// The executors that compute have one Set each, and keep what is theirs alone beside
// it, by slot: counts, histories, what the device has. Not so fakeexec: it checks the
// scheduler by rules of its own, and knows more than an executor can.
package slots
