// Package kv decides which page of a model's key and value cache belongs to
// which sequence. It deals in page numbers only; an executor owns the bytes.
//
// A Pool has the pages of one model. A page is in one of three states:
//
//	         Alloc                 Free, a step in flight
//	free ------------> held ----------------------------> quarantined
//	 ^                  |                                      |
//	 |                  | Free, no step in flight              | Completed(tag)
//	 +------------------+--------------------------------------+
//
// A step that has been launched may still write into a page that its sequence
// gives up. Such a page waits in quarantine, tagged with the newest launched
// step, and becomes free when that step has completed.
//
// Admission promises pages before they are needed: Reserve counts them, Alloc
// turns one promise into one page. Promises are made against free pages alone.
// A promise is thus kept at once, with one exception: after Table.Truncate, which
// gives pages to quarantine but keeps their promise, Alloc may fail until the
// steps in flight have completed. With no step in flight it never fails.
//
// A Table is the page table of one sequence. A sequence that is parked keeps its
// Table, so its return allocates nothing for its old context.
//
// A prefix cache would be a fourth state, entered from held and left by eviction
// in Alloc; Pool.Check and Counts are the places that sum over states.
//
// The package is pure: no clock, no I/O, no goroutine. Its values belong to one
// goroutine (the decode loop, through package scheduler).
package kv
