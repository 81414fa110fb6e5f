// Package cluster has the facts and wishes that a cluster's nodes share, and the
// commands that change them. It is data and its checks: no clock, no I/O.
//
// # Who writes what
//
// The replicated state (package control/state) is a set of objects: the cluster,
// nodes (with the models that they have), nodes that were removed, replicas,
// deployments, threshold tables, API keys, join tokens and operators' identities. Only
// commands change it. A command is made by whoever wants the change (an operator, a
// node that joins or reports, the leader's reconcile loop), is committed by the control
// nodes, and is applied by all of them in the same order.
//
// Operators write wishes (deployments, keys, tokens, drains). Workers report facts
// (what they have, how their replicas are). The leader alone writes what follows
// from both: which replica runs where, which node is lost, which thresholds hold.
//
// # Versions
//
// A command carries the oldest version of the protocol that can read it (package
// api/protocol): that of its kind, or of the fields that are set in its body (Later). It
// reaches the log only when all control nodes speak that version (Node.Speaks). So a
// build of a newer version is taken in beside older ones, and can be taken back as long
// as nothing was written that only it can read.
//
// A new kind, or a new field of a body, is a new version. Kinds are read strictly: an
// older build must not take a command for another one.
//
// # What is secret
//
// API keys and join tokens are here as hashes alone. Workers get neither; gateways
// get the keys' hashes (View).
package cluster
