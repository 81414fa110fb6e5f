// Package memconn is a network inside the process: pairs of connected net.Conn
// and a net.Listener to get them from. The roles of one trctl process talk over
// it with the same protocols as over TCP, without a port.
//
// Each direction has a bounded buffer; a writer waits while it is full. It
// starts no goroutines. Deadlines work as for TCP connections, and waiting is by
// condition variables, so that a testing/synctest bubble sees it as idle.
package memconn
