// Package planner decides what runs where. It is pure: a state and a time go in, the
// change that is missing comes out, nothing when the state is as it should be.
//
// # Rules
//
//   - A worker that was started with models (--model, Node.Pins) runs one replica of
//     each, and nothing else.
//   - A worker that was started without runs what deployments want beyond that. A
//     wish for a number of replicas of a model counts those that are pinned. New ones
//     go where the fewest replicas are, at most one of a model on a worker.
//   - Replicas that nothing wants any more are drained, and deleted when their worker
//     says that they have stopped.
//   - What a draining worker runs is placed elsewhere too, if there is room, and goes
//     when that is ready. A worker that was lost has LostGrace to come back first.
//   - Nothing is placed on a GPU in quarantine (state.Barred). What ran there is placed
//     elsewhere, if there is room; a pinned replica stays, and waits for its GPU.
//   - Known pairs of pinned models become a deployment without being asked for.
//
// Whether a model's weights fit into a worker's memory is not known here: the worker
// finds out, and reports a replica that has failed with its reason.
package planner
