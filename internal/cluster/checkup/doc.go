// Package checkup finds out whether this machine can take part in a cluster: are its
// ports free, do the control nodes answer, are they those of the cluster, are the clocks
// alike, does the gossip come through.
//
// Its caller is trctl doctor. It changes nothing, and sends no secret.
package checkup
