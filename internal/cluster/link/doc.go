// Package link ties a process to its cluster, whatever it does there.
//
// Enter gives the process its identity: the one that it saved when it joined, or a
// new one for a join token. A Link then keeps the process in touch with the control
// nodes while Run runs: it watches the state, announces the node (again, should the
// state forget it), sends heartbeats, renews the certificate before it ends, and
// writes down where the control nodes are, so that a restart finds them wherever
// they have moved meanwhile.
//
// None of that is needed to serve: without control nodes the View stays as it is,
// and the loops try on. A node that starts without them takes up what it has seen last
// (package lastseen), after a moment in which they may answer.
package link
