// Package schedule decides when the models of one process start their steps.
//
// A Rule is one of six: four baselines that other systems and the paper use, and
// the two rules that this system is built on.
//
//	lockstep    rounds in which every request makes one token: the first model's
//	            step, then the next one's, each waits for the one before
//	step-sync   rounds in which every model with ready sequences runs one step at
//	            the same time; a round ends with its slowest step
//	model-sync  one model at a time, in turn
//	eager       a model starts as soon as it is idle and anything is ready
//	delayed     a model starts once its threshold is ready, or the longest wait is over
//	adaptive    delayed, and a model holds on while the sequences that running
//	            steps will send gain more than the ready ones lose
//
// None of them changes a token: they only say who waits for whom.
//
// # Coordinator
//
// Every decode loop of the process is a Member of one Coordinator. It asks with
// Offer before a step and tells with Ended after it. The coordinator knows who
// runs, who has what ready, and which hand-offs are on their way between two
// members, so that a round takes every sequence along that belongs to it.
//
//	           Offer: no                    woken, or own event
//	waiting ◀───────────── deciding ◀──────────────────────────── waiting
//	                          │  ▲
//	               Offer: yes │  │ Ended
//	                          ▼  │
//	                        running
//
// A member that has taken a hand-off in is deciding too, until it offers. No
// barrier is passed while somebody is deciding or a hand-off is on its way. The
// lock is held for the length of a decision and never while anyone waits: whoever
// must wait returns to its own loop, which ends with its own context, and is woken
// by a call back. A member that leaves is waited for no more, and a hand-off that
// does not arrive within TransitWait is not either.
//
// Whatever the rule: if all members are idle, nothing is on its way and something
// waits, the longest queue starts. So no setting of the thresholds can stop a
// process for good.
//
// The package has no goroutine and no clock; time is an argument, a
// time.Duration since a start that all members share.
package schedule
