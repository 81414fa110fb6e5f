// Package cluster tests whole clusters: who gets in where (TestCluster, with
// all nodes in one process), and in run.sh what README's cluster section
// promises, on three machines made of network namespaces; upgrade.sh upgrades those
// to another build and back. failover.py measures
// how long streams stall when a worker ends or falls silent. hang.sh holds a worker in the
// middle of a step, for ever, and then pauses one.
package cluster
