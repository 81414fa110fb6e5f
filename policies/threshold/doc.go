// Package threshold computes the thresholds of delayed batching: the fewest
// ready requests that start a step of each model, so that together the models
// make the most tokens.
//
// A Case is the system as measured: N requests that never leave, M models, the
// time of a step, and the probability that a request goes from one model to
// another. Evaluate gives throughput, mean batches, busy shares and waits of one
// setting of the thresholds, exactly on the case's grid of ticks. Solve looks for
// the best setting, Table for the best one at every number of live requests.
// LookAhead is the rule that needs no solving.
//
// Two evaluators give the same numbers. The chain (chain.go) follows the system
// from event to event and knows every extension. The compressed one
// (compressed.go) knows two models with constant times and watches only the
// starts of the slow one, which makes it tens of times faster. Simulate is the
// slow and obvious second opinion that shares no code with either.
//
// Feasible settings. A setting deadlocks when every model is idle with fewer
// requests than its threshold. Feasible settings are those that cannot:
//
//	Σ (B_i − 1) < N.
//
// Enough: in a deadlock model i queues at most B_i − 1 requests, and nothing
// runs, so all N requests are queued and N ≤ Σ (B_i − 1). If the sum is smaller,
// there is no room for N requests below the thresholds, so some queue has
// reached its threshold and its model runs.
//
// Needed: let Σ (B_i − 1) ≥ N and let a request reach any model from any other
// with positive probability. Let the running batches end one by one, and send
// every request of them to a place below some threshold. There are enough such
// places: queued and returning requests are N together, the places at least N. A
// model whose queue already stands at or above its threshold runs once more, and
// its batch is spread the same way. After finitely many steps nothing runs. The
// path has positive probability from every state, and there are finitely many
// states, so the deadlock comes with probability 1. For two models it is enough
// that the first both keeps and passes requests on and that the second returns
// some. Only routing without any chance in it can escape, by luck of its order;
// the condition is kept all the same.
//
// A model with a hold timer starts whatever waits once the timer runs out. It
// cannot take part in a deadlock, so the sum is over the models without one.
//
// The condition depends on the number of live requests: when one ends, the
// thresholds of the smaller number apply (Table), and Clamp brings any setting
// within the bound.
//
// Source: TokenRouter paper (arXiv:2610.12242) sections 3.1 to 3.4; throughput is
// the model's, not a measurement. docs/scheduling.md explains it for users.
// Everything here is pure: no clock, no I/O, no goroutine.
package threshold
