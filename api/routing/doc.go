// Package routing holds what a request says about its own routing, as it travels
// from the gateway to the entry sub-service and, once per collaborator, in the
// first hand-off. A request that is rebuilt anywhere is routed as before.
package routing
