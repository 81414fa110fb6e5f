// Package identity says who a node is, and proves it: names, certificates, join
// tokens, the files that keep them, and the TLS configurations made from them.
//
// # Names
//
// A certificate has one URI, tr://CLUSTER/ROLE/NODE, and no other name that counts.
// It is matched exactly: a certificate of another cluster, with another role, or of
// a node that was removed, is refused, whoever signed it. Addresses are no part of
// it, so a node may move.
//
// # Protocols of the cluster port
//
// One TLS 1.3 port carries three protocols, told apart by ALPN:
//
//	h2    every role: calls, watches, Generate, hand-offs; the handler checks the role of each path
//	raft  control nodes among themselves
//	join  nodes without a certificate yet; one small request, then it is closed
//
// # Joining
//
// A join token carries a hash of the CA's public key. The joiner holds it against
// the certificate that the server shows, and sends the token's secret only after
// that, inside the connection. Its key never leaves the node: a signing request does.
package identity
