// Package listing is what operators see of a cluster: objects for JSON, rows for
// people, and why something is not ready. It is pure: the state, the loads and the time
// come in, values and text go out.
//
// Its caller is the command line, which asks a control node (package operator).
package listing
