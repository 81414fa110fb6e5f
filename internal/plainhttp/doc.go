// Package plainhttp serves HTTP/1.1 without TLS where nobody but the machine's own
// people and its monitoring ask: metrics, probes, the sockets of operators. The public
// API has a server of its own (package gateway), and so have the calls between the
// roles of a cluster (package h2).
package plainhttp
