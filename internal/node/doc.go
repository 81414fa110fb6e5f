// Package node is one process that serves the public API: an engine (package
// engine) with a gateway in front, all in memory but for the public listener.
//
// It is what `trctl serve` runs. The engine starts before the gateway and ends
// after it, so that nothing is asked of a part that has ended.
package node
