// Package cluster has the facts and wishes that a cluster's nodes share, and the
// commands that change them. It is data and its checks: no clock, no I/O.
//
// # Who writes what
//
// The replicated state (package control/state) is a set of objects: nodes,
// models, replicas, deployments, threshold tables, API keys and join tokens. Only
// commands change it. A command is made by whoever wants the change (an operator,
// a node that joins or reports, the leader's reconcile loop), is committed by the
// control nodes, and is applied by all of them in the same order.
//
// Operators write wishes (deployments, keys, tokens, drains). Workers report facts
// (what they have, how their replicas are). The leader alone writes what follows
// from both: which replica runs where, which node is lost, which thresholds hold.
//
// # Versions
//
// A command carries the version of its encoding. A control node refuses a version
// that it does not know, before the command reaches the log; the leader writes a
// newer version only when all voters know it (Node.Protocol).
//
// # What is secret
//
// API keys and join tokens are here as hashes alone. Workers get neither; gateways
// get the keys' hashes (View).
package cluster
