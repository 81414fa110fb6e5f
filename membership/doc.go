// Package membership observes who is there and how busy, by gossip between all nodes
// of a cluster (hashicorp/memberlist, encrypted with the cluster's gossip key and
// labelled with the cluster's ID).
//
// It decides nothing. Whoever holds the gossip key can forge what is seen here, so
// addresses, placements and keys come from the replicated state alone, and a node
// that the gossip takes for dead is only less preferred until the leader or a
// connection says so too (package control: SuspectAfter).
package membership
