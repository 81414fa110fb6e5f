// Package lastseen keeps the state that a worker or a gateway has seen last in its
// directory, so that a node which starts while no control node can be reached goes on
// with what it knew. Package link writes it as the state changes, and reads it once.
//
// The file has what the node's role may see of the state: placements, addresses,
// deployments, and on gateways the hashes of API keys. It has no secret. It says which
// node of which cluster it is of, carries a checksum, and is replaced as a whole, so that
// a crash leaves the old one or the new one. A file that is damaged, of another node, or
// of a version that this build does not know is not used; nothing is lost by that but a
// start without the control nodes.
//
// What was read is a hint of an earlier time, until a control node sends what holds now
// (client.View.Recall).
package lastseen
