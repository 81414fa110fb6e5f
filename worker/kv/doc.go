// Package kv decides which page of a model's key and value cache belongs to
// which sequence. It deals in page numbers only; an executor owns the bytes.
//
// A Pool has the pages of one model. A page is in one of four states:
//
//	         Alloc                  drop, a step in flight
//	free ------------> held -----------------------------> quarantined
//	 ^                 ^  |                                      |
//	 |           Claim |  | drop, indexed                        |
//	 |                 |  v                                      |
//	 | evicted       cached                                      |
//	 +-----------------+                                         |
//	 |                    drop, no step in flight                | Completed(tag)
//	 +-----------------------------------------------------------+
//
// A page is dropped when the last table that has it lets go of it. A step that has
// been launched may still write into such a page. It waits in quarantine, tagged
// with the newest launched step, and becomes free when that step has completed.
//
// Admission promises pages before they are needed: Reserve counts them, Alloc
// turns one promise into one page. Promises are made against pages that are free or
// can be evicted. A promise is thus kept at once, with one exception: after
// Table.Truncate, which drops pages but keeps their promise, Alloc may fail until
// the steps in flight have completed. With no step in flight it never fails.
//
// A Table is the page table of one sequence. A sequence that is parked keeps its
// Table, so its return allocates nothing for its old context.
//
// # Prefix cache
//
// A full page whose contents a completed step has written can be published under a
// key. The key is SHA-256 over a tenant's salt, the key of the page before, and the
// page's ids, so equal keys mean equal contents from position 0 on, and tenants do
// not see each other's. Claim finds the longest prefix and shares its pages: they
// count references, and are held while there are any. After that they are cached:
// still to be found, in a list by last use, and evicted from its front when Alloc
// finds no free page. A prefix is evicted from its end.
//
// A published page is never written, and neither is one that several tables have.
// Only full pages are shared, so appending never comes into question; Truncate drops
// all of such a page if it would cut it. While a step in flight may read a cached
// page, it can be shared but not evicted.
//
// Two pages with equal contents can exist, when two sequences compute them at the
// same time. Only the first is published; the other is freed by its owner.
//
// The package is pure: no clock, no I/O, no goroutine. Its values belong to one
// goroutine (the decode loop, through package scheduler).
package kv
