// Package clustertest has what tests of nodes need besides control nodes (package
// control/controltest): identities, and workers whose replicas answer with a script.
package clustertest
