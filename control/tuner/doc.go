// Package tuner is how the leader of a cluster finds the batching thresholds of
// deployments that leave them to it.
//
// Workers tell what their replicas measure (cluster.Measures), every two seconds, and the
// leader remembers the last word of each. Due pools the replicas of each model and
// compares with what the deployment's table in the state was solved from. If a probability
// has moved by a factor of 1.3 or a time by 15 %, twice in a row, there is a Job. Solve
// takes seconds; it returns a table if that promises more than the present one.
//
// The memory is not replicated: another leader has the table with its inputs from the
// state, and the rest from the workers within seconds.
//
// The package has no clock, no goroutine and no I/O; it never changes the state.
package tuner
