// Package gatewaynode is a gateway as a process: package gateway in front of the
// replicas that the cluster's state names.
//
// The state is the only source of what is served. Every change of it becomes a new
// table of deployments at once: the entries of a deployment are the replicas of its
// entry model that serve, reached at their workers' cluster ports over HTTP/2 with the
// workers' certificates checked by name. The keys are the state's too, so that a
// revoked one is refused with the next request.
//
//	control ──watch──> View ──> deployments ──> gateway.Apply
//	                        ──> apikey.Ring ──> gateway.Keys ──> quota.Book ──slices──> leader
//	gossip ──load of workers──> which entry is picked, as a hint
//
// Without control nodes, or without a majority of them, the last state holds: requests
// are served as before, entries that fail are left out by the gateway's own
// experience, and rates are the gateway's own part.
//
// A model that the state does not have is looked for once more when the state is known to
// be current: control nodes say at which index it is (gateway.Source).
//
// # The end
//
// When its context ends, the node says that it drains, refuses new requests, and lets
// those in flight end; then its connections close. Nothing of a gateway is kept but its
// identity: any other serves the same clients.
package gatewaynode
