// Package node puts one process of TokenRouter together: models, sub-services,
// the HTTP/2 links between them and a gateway in front, all in memory but for
// the public listener.
//
// It is what `trctl serve` runs. The start order is models, sub-services,
// peer links, gateway; the stop order is the reverse, so that nothing is asked
// of a part that has ended.
package node
