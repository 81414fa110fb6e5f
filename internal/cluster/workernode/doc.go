// Package workernode is a worker as a process: an engine (package engine) that runs the
// replicas which the cluster's state places on this node, and lets them write together
// with those of other workers.
//
// The state says everything; its changes are followed as they come:
//
//	control ──watch──> View ──> Assignment ──> engine ──> replicas, links
//	        <──report── phases and facts ────────┘
//
// Every two seconds the node tells the leader what its replicas have measured; the
// thresholds that the leader makes of it come back as a table in the state.
//
// The cluster port speaks HTTP/2 with TLS 1.3. Gateways call replicas there, by the
// replica's ID as the request's host, and workers link theirs. A link is taken only from
// the worker on which the state has the replica that it claims to come from.
//
// Without control nodes the last state holds: requests go on, replicas that fail are
// started again, links that break come back. Where a worker is reached is looked up in
// the state with every connection, so that it may come back at another address.
//
// A GPU with a fault after which it must not be used is kept out of use by what this node
// knows itself (ward) until the state has the quarantine; what the cluster has not taken
// when the process ends is in a file for the next one (faultsFile).
//
// # The end
//
// When its context ends the node says that it drains. Its replicas take no new requests,
// end those that they have, and let go of those that can go on elsewhere; what is left
// after Config.DrainTimeout moves. Then the ports close, and the node leaves.
package workernode
