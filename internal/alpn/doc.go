// Package alpn lets several protocols share one TLS port. A Mux accepts
// connections, makes the handshake with bounds of time and number, and gives each
// to the listener of the protocol that both sides have agreed on. What happens
// before the handshake has ended costs a peer's address at most MaxPending
// connections and no memory that a peer can choose.
package alpn
