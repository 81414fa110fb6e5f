// Package fakeexec is an executor without a model: tokens and features come from
// a script, and a step takes as long as a function says. Simulations and the
// tests of the sub-service use it.
//
// By default the script is a hash of the sequence's seed, model and ids, so the
// same request gives the same tokens whatever the batch, the page size, the
// threshold or the moves between replicas. The ids are read back through the
// page table from a model of the pages' contents, where every token slot knows
// its position and all ids before it. A scheduler that feeds a wrong position,
// forgets a page or reuses one too early gets executor.ErrBadBatch, with the
// rule that it broke.
//
// Time is simulated with timers alone and works in a testing/synctest bubble.
// The package starts no goroutine.
package fakeexec
