// Package scheduler decides, for one model, which sequences take part in the
// next step and with which tokens. Events go in, a step.Batch comes out.
//
// The package is pure: no clock, no I/O, no goroutine. Time is an argument, a
// time.Duration since any fixed start that does not run backwards. A Scheduler
// belongs to one goroutine, the decode loop of a sub-service.
//
// # States
//
//	        Submit           Admit              Park
//	(gone) -------> queued --------> running -----------> parked
//	                  ^    <--------         <-----------   |
//	                  |    preempted            Append      | preempted
//	                  |                                     v
//	                  +----------------------------------- away
//	                                  Append
//
//	  SubmitParked leads from gone to parked, SubmitAway from gone to away.
//	  Finish leads from every state to gone.
//
//	  inside running:
//
//	      Bind,          Next                Complete
//	      Commit  ready ------> in flight ----------------> idle
//	        |       ^               |                        |
//	        |       |               | more chunks            |
//	        |       +---------------+                        |
//	        +--------------------- Commit -------------------+
//
// Queued sequences and those away hold nothing but their ids. (Away is a part of
// the state Parked.) Running and parked sequences hold one of Config.MaxSlots slots
// and a page table. Pages are allocated when a step needs them.
//
// Parked means that the turn is elsewhere: with a collaborator (entry) or back
// at the entry (collaborator, where the sequence is resident). A parked sequence
// keeps slot and pages, is in no batch, and returns by Append with the tokens
// that it has not seen: no prefix match and no allocation for its old context.
//
// # Pages, and who gives them back
//
// On admission a sequence adopts the pages of its longest cached prefix (Spec.Cache)
// and is promised more: with ReserveLazy those of its known ids and a few ahead,
// with ReserveFull those of Spec.MaxLen positions. Promises are kept. What goes
// beyond them is taken when a step needs it. When there is none, in this order:
//
//  1. pages of the prefix cache that no sequence has, the one used longest ago first;
//  2. all pages of parked sequences, the one parked longest ago first;
//  3. all pages of running sequences, the youngest first.
//
// A sequence that gives its pages back is preempted. It gives its slot back too,
// keeps its ids, and is rebuilt from them on this model alone: it is queued (2:
// once its turn returns) and admitted like a new one, with what is left in the
// cache of its own full pages. Its peers notice nothing.
//
// Who may take from whom is decided by age (Spec.Age), the same on every model:
//
//   - The oldest sequence here is never preempted, nor is one in flight, nor one
//     whose last step the caller has not decided about.
//   - A running sequence takes from all parked ones and from younger running ones.
//   - A queued one takes from younger parked ones, and from younger running ones
//     only if it is the oldest. A slot is taken by the same rule.
//   - If all that it may take is not enough, it takes nothing and waits where it
//     is. While a sequence waits for pages, younger ones are neither admitted nor
//     given pages beyond their promises.
//
// Hence the oldest request of a routing group always progresses: wherever its turn
// is, it is the oldest there, it gets a slot and as many pages as it needs once the
// steps in flight have completed, and a request that does not fit alone is refused
// by Submit (ErrNeverFits). When it ends another one is the oldest, so all finish,
// in whatever way requests of several models hold pages and wait for each other.
//
// # Known and cached
//
// A sequence has two lengths. Known is the number of committed ids held here;
// cached is the number of positions whose keys and values are valid.
// Invariants: 0 <= cached <= known <= MaxLen; a row feeds ids[cached:known] or
// the first chunk of it, so Row.Start == cached; the page table covers exactly
// [0, cached) between steps. Right after admission cached is what the prefix cache
// had, at most known - 1; the first row adopts those pages (step.Row.Start). A sequence is ready when it is running, bound, not
// in flight, and cached < known. The id that a model has sampled itself is never
// cached when it is committed, so a return always has something to feed. The one
// exception is a return with an empty suffix after nothing was committed here:
// then the last id is fed again, with all of its page if others can read that page.
//
// # Prefix cache
//
// The full pages of a sequence with Spec.Cache can be found by others of the same
// salt once its first pass is complete, and stay when it ends or is preempted. They
// are then never written, so Truncate drops all of a page that it would cut. Only
// positions of completed steps count.
//
// # Batches
//
// A step takes decodes (one token), then extends (several), then prefill chunks,
// within Config.MaxRows and MaxTokens, in the order of becoming ready inside each
// class. A sequence that was passed over maxPassed times goes before all
// classes, so nothing starves. A step starts when Threshold sequences are ready.
// The threshold is clamped to the number of live requests, and overridden once
// the oldest ready sequence has waited for the longest wait (delayed batching).
//
// Ahead plans the step after the one in flight before its results are known. Its
// sequences are in both; each stays in the second if just its one token is committed,
// and is taken out of it by anything else.
//
// A caller with a rule of its own for when steps start (package schedule) asks
// Waiting what waits, and calls Start instead of Next. Defer keeps a sequence out
// of steps until Undefer, for rules that go round by round.
package scheduler
