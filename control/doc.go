// Package control is a control node: the only writer of the cluster's state.
//
// A Node keeps the state (package control/state) by consensus with the other control
// nodes: hashicorp/raft over the cluster port, its log in a bolt file. Commands go
// in at any control node (Propose), are committed by a majority, and are applied by
// all in the same order. Handler serves the calls of workers, gateways, operators
// and other control nodes; Joins admits new nodes by token.
//
// While it leads, a Node also reconciles: it notes which nodes are heard, decides
// what runs where (package control/planner), keeps the voters in line with the
// state, gives out slices of API keys' rates, solves thresholds from what workers measure
// (package control/tuner), takes the steps of a change of the gossip's key, and forgets
// gateways that are lost for a day. What only the leader knows, who was heard when, which
// slices were given and what was measured, is in its memory and is lost with it.
//
// docs/control.md has the flows, the invariants, and the decisions with their cost.
package control
