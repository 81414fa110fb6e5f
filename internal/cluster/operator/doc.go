// Package operator is how operators talk to a cluster: the same calls that nodes make
// (package control), in the role of an admin, and a few more that need a secret which
// control nodes alone have.
//
// A Client reaches a control node in one of two ways. On the node's Unix socket it
// needs nothing: whoever may open the socket is the operator. Everywhere else it shows
// an admin's certificate, on the admin port of loopback or on the cluster port.
package operator
