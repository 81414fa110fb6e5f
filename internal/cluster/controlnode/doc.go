// Package controlnode is a control node as a process: a node of package control with
// its identity, its ports and its files.
//
//	cluster port  TLS 1.3, told apart by ALPN: h2 for calls of nodes and operators,
//	              raft for the consensus, join for who has a token
//	admin         a Unix socket for whoever may open it, or a port of loopback for
//	              admins' certificates
//	metrics       Prometheus text, whether the process answers, and whether it is ready:
//	              the cluster has it, it has a leader and is not refused; where that was
//	              asked for
//
// Found makes the first node of a new cluster: the cluster's name and CA, the secrets
// that its nodes share, and the node's own certificate. Every other control node gets
// its identity by joining (package link).
//
// # Order of the end
//
// The node hands leadership over while its ports still accept, since that takes calls
// of other nodes; then the ports close, then the files. Operators' calls end with the
// node.
package controlnode
