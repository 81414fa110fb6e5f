// Package subservice runs one replica of one model: it takes requests from
// gateways, decodes them in batches, and hands them to other models' replicas
// when the routing policy says so.
//
// The same code is entry and collaborator. It is the entry of the requests that
// a gateway sends it: it owns them, streams their tokens and tells everyone when
// they end. It is a collaborator for the requests that another replica hands it.
//
// # Loops
//
//   - The client loop is one HTTP handler per request (ServeHTTP on
//     generate.Path). It renders the template and tokenises, submits the request,
//     then copies events to the gateway.
//   - The decode loop (Run) owns every sequence, the scheduler, the pages and the
//     executor. It is the only goroutine that touches them.
//   - The peer loops belong to package peer; frames arrive through HandleFrame.
//
// The loops meet in one inbox. Nothing is shared: the client and peer loops
// post values, the decode loop applies them between steps.
//
// # Life of a sequence
//
//	Generate                 first hand-off
//	   │                           │
//	   ▼         Admit             ▼
//	queued ─────────────────▶ running ◀───────────────┐
//	                           │   │                  │ hand-off arrives
//	      commit finishes it   │   │ Route says go    │ (append, resume)
//	                           ▼   ▼                  │
//	                      finished parked/resident ───┘
//
// At the entry a sequence whose turn is elsewhere is parked; at a collaborator
// it is resident. Both keep slot and pages, so that a returning turn costs an
// append: no prefix match and no allocation for the old context.
//
// # Commit
//
// A token is committed by the model that samples it if the policy keeps it. A
// committed token at the entry is reported to the gateway at once; one at a
// collaborator travels to the entry with the return hand-off, or in a progress
// frame when the turn stays. A commit that ends the answer (stop id, length)
// wins over the policy's decision: the entry finishes the request and releases
// it everywhere; a collaborator hands the end to the entry.
//
// # When steps start
//
// Without a Coordinator the scheduler's threshold and longest wait decide. With
// one, the decode loops of a process start steps by a common rule (package
// schedule): each offers what it has ready, tells when its step has ended, and of
// every hand-off that it sends or takes in.
//
// Thresholds depend on the number of live requests of the routing group. A replica
// counts those that it owns, and is told by other entries, in Group frames, how
// many of theirs it serves. It looks thresholds up again whenever that changes, in
// the table that was set last (SetThresholds) or as configured, and lowers them
// until they cannot deadlock. A replica of several deployments goes by the thresholds of
// the one that it has most to do for.
//
// What a table is solved from is measured here (Estimates). A Driver does what Run
// does for a caller that owns time, so that simulations run this code.
//
// # Steps launched ahead
//
// Where the executor can have two steps in flight (step.FContinue), the decode loop
// may launch the next step before it looks at the results of the present one
// (Lookahead): with the sequences of the present one, whose tokens only the executor
// knows yet, and with what is ready. A sequence that then does not stay for just one
// more token is taken out: its row is void, the position that it wrote is not valid,
// and what it sampled is never looked at. So nothing is committed that a step after
// the other would not have committed. Sequences with penalties, which need to know
// ids, keep steps from being launched ahead, as does a prompt in the middle of its
// prefill and a schedule in which models wait for each other.
//
// # What can change while it runs
//
// Set replaces the deployments that a replica takes part in. A request keeps the version
// of its deployment (models, policy, what it may override) that it began with; its first
// visits to other replicas name it (handoff.First.Version), and so does a gateway that
// moves it. A replica remembers the last versions. If it has not heard of one, it waits
// for a second and then takes the newest. Thresholds, longest waits, fallbacks and the
// lists of replicas hold at once, for all requests.
//
// Replicas that are to be left (the second argument of Set) get nothing new as long as
// there are others, and lose what they have of a request as soon as its turn is not
// there. Drain refuses new requests of this replica's own.
//
// A turn that no replica can take waits; then the request ends or, if the deployment says
// so, the entry model writes the rest alone.
//
// # Steps that hang
//
// A call of the executor that does not come back would hold the decode loop for ever, and with it all requests of the
// replica. Run looks at a step in progress twice a second. One that takes longer than 2 s and ten times as long as the
// slow ones of late (of its class of size, and made longer for the tokens and positions that it has more) has hung; on a
// CPU, which others slow down, it is 5 min and a hundred times. While fewer than 32 steps of a class were measured it is 30 s
// (5 min) and longer, by what other classes took and by what the model computes: the first step may compile, the first
// prefill be long. A step that others on the device may hold up has as long as they may at least (Config.HeldUp). If a look
// itself comes late, the process stood still, or had far too much to do, and the step gets all its time anew.
//
// A loop that is inside such a call does nothing else, so Run takes its state over, tells everyone that the replica has
// failed, as after a fault of the device, and returns ErrHung. The loop ends, touching nothing, when the executor comes
// back, if ever. The executor is not called any more: its owner lets a new process take this one's place.
//
// # What can be lost
//
// Nothing that was committed: the entry, and beyond it the gateway, can rebuild
// a request from its ids. A lost collaborator costs a new try of the turn by the
// entry; a lost entry costs a re-submission by the gateway with epoch+1.
//
// # Who may send a turn again
//
// A hop is a try and a count: hop = try << tryBits | count. Whoever has the turn
// counts one up for the hand-off that gives it away, so inside a try every hop is
// sent once, to one replica, and one replica has the turn. Only the request's
// entry begins a try: it gives the turn, as far as it knows the answer, to a
// replica anew, with count 0. A newer try has greater hops than an older one can
// ever reach, so what is newer always wins, wherever the two meet:
//
//   - The entry refuses frames of older tries, and tells their sender to forget
//     (codeStale). So it never takes an answer from two tries.
//   - A collaborator replaces what an older try left there, running or not. It goes
//     on with it only if it is parked and the hand-off confirms every id of it.
//   - A collaborator refuses hand-offs and releases of tries older than its own.
//
// A collaborator never sends a turn a second time, but for a Nack in answer to it:
// the receiver has then not applied it.
//
// The entry finds out that a turn is lost because somebody always vouches for it:
//
//   - Who takes a turn from a third model says so to the entry at once, with a
//     Progress that names itself as the one that has the turn (From = To). The
//     entry remembers that replica as the holder. If its link to the holder goes
//     down, it begins a new try.
//   - Who has sent a turn to a third model vouches for that hop from then on. If
//     its link to the receiver goes down, or the receiver declines, it tells the
//     entry (codeLost, and the hop), which begins a new try unless it has heard of
//     that hop, or a later one, from a replica that took it.
//   - Who loses its link to the entry forgets the request, and says so (codeLost)
//     to whom it had the turn from. Without a link to the entry it takes no turn.
//   - Who ends the answer in a turn that came from a third model keeps the request
//     until the entry releases it.
//
// By induction over the replicas that had the turn since the holder: while the
// entry's link to one is up, it hears from that one that it has the turn, or that the
// next did not take it. When that link breaks, that one tells the one before it,
// which tells the entry. A try that was begun without need costs work, never a token.
package subservice
