// Package choice says which routing policies the requests to a deployment may choose,
// for those who serve it in one process (package engine) and for gateways of a cluster
// (internal/cluster/gatewaynode). It is pure; it never decides whether a deployment
// allows a choice at all.
package choice
