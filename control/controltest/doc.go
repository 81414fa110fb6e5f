// Package controltest runs the control nodes of a cluster in one process, for tests:
// over TLS on loopback, each with its own directory, and with faults on demand.
package controltest
