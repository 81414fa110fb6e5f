// Package measured turns what replicas have measured into an input of the threshold
// solver, and says when it differs enough from an earlier one to solve again.
//
// It is called by whoever solves while requests run: one process for itself (package
// engine), the leader of a cluster for its deployments (package control/tuner). It is
// pure: no clock, no I/O, no goroutine.
package measured
