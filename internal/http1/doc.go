// Package http1 judges the bytes of HTTP/1 connections before net/http reads them, and
// refuses what two parsers could take for different requests. Package gateway puts a
// Listener under its server.
//
// net/http is lenient where old clients were sloppy: it drops a Content-Length beside a
// Transfer-Encoding, joins folded lines, takes a bare LF for the end of a line and allows
// a space before a colon. A proxy in front that reads such a request in another way lets
// a second one pass inside of it, unseen. Here every such request is refused; Reason has
// the list.
//
// A connection follows each request through its head, its body by Content-Length or by
// chunks, and its trailer, to the head of the next, so that requests which arrive ahead
// of their turn are judged as well. It keeps a few dozen bytes of state, copies nothing
// and starts no goroutine.
//
//	request line -> fields -+-> body of known length -----------+-> next request line
//	                        +-> size -> chunk -> … -> trailer --+
//	                        +-> (no body) ----------------------+
//	                   any -> refused, for good
//
// # Refusing
//
// The bytes before the offending one have perhaps been read by net/http already, and an
// earlier request may still be answered. So a refusal must take its turn: from the
// offending byte on, net/http reads bytes that it refuses itself wherever they come, in a
// head, at a chunk and in a trailer. It then answers in its own time with one of its
// built-in errors, and the connection writes the answer of Config.Answer in its place.
// A chunk that is refused while a handler reads the body is that handler's error.
//
// The other built-in errors of net/http, such as 431, are replaced in the same way.
//
// # Limits
//
// How long a head may be, and how slow, stays with the http.Server. HTTP/2 is not judged:
// a TLS connection that has agreed on "h2" passes as it is. Without TLS only HTTP/1 is
// spoken.
package http1
