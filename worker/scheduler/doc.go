// Package scheduler decides, for one model, which sequences take part in the
// next step and with which tokens. Events go in, a step.Batch comes out.
//
// The package is pure: no clock, no I/O, no goroutine. Time is an argument, a
// time.Duration since any fixed start that does not run backwards. A Scheduler
// belongs to one goroutine, the decode loop of a sub-service.
//
// # States
//
//	         Submit            Admit                 Park
//	(gone) ---------> queued ---------> running ---------------> parked
//	   \                                  ^   <---------------     ^
//	    \                                 |        Append          |
//	     \--------------------------------)-------------------------
//	                 SubmitParked         |
//	                                      |
//	  inside running:                     v
//
//	      Bind,          Next                Complete
//	      Commit  ready ------> in flight ----------------> idle
//	        |       ^               |                        |
//	        |       |               | more chunks            |
//	        |       +---------------+                        |
//	        +--------------------- Commit -------------------+
//
//	  Finish leads from every state to gone.
//
// Queued sequences hold nothing. Running and parked sequences hold one of
// Config.MaxSlots slots and a promise of pages for Spec.MaxLen positions, so a
// sequence that was admitted can always run to its end. Pages are allocated
// when a step needs them.
//
// Parked means that the turn is elsewhere: with a collaborator (entry) or back
// at the entry (collaborator, where the sequence is resident). A parked sequence
// keeps slot and pages, is in no batch, and returns by Append with the tokens
// that it has not seen: no prefix match and no allocation for its old context.
//
// # Known and cached
//
// A sequence has two lengths. Known is the number of committed ids held here;
// cached is the number of positions whose keys and values are valid.
// Invariants: 0 <= cached <= known <= MaxLen; a row feeds ids[cached:known] or
// the first chunk of it, so Row.Start == cached; the page table covers exactly
// [0, cached) between steps. A sequence is ready when it is running, bound, not
// in flight, and cached < known. The id that a model has sampled itself is never
// cached when it is committed, so a return always has something to feed. The one
// exception is a return with an empty suffix after nothing was committed here:
// then the last id is fed again.
//
// # Batches
//
// A step takes decodes (one token), then extends (several), then prefill chunks,
// within Config.MaxRows and MaxTokens, in the order of becoming ready inside each
// class. A sequence that was passed over maxPassed times goes before all
// classes, so nothing starves. A step starts when Threshold sequences are ready.
// The threshold is clamped to the number of live requests, and overridden once
// the oldest ready sequence has waited for the longest wait (delayed batching).
package scheduler
