// Package h2 is HTTP/2 between the roles of a cluster, and the one package that
// knows golang.org/x/net/http2. It serves an http.Handler on a listener, and
// gives a round tripper that keeps one connection to one server.
//
// Connections are TLS 1.3 with ALPN "h2", or in-memory ones (internal/memconn)
// without TLS. Anything else is refused: there is no plain HTTP/2 on a network.
//
// The tuning is for long streams of small messages that must not hold each
// other up:
//
//   - the connection's window is 64 MiB and a stream's 256 KiB, so a reader that
//     has stopped costs its own stream and no other;
//   - a silent connection is pinged after 2 s and given up 1 s later, and one
//     that takes no byte for 5 s is closed; Config.Silence finds a lost server
//     sooner, and allows for one that is only late; within a process
//     (Config.SameProcess) nothing is given up;
//   - a client never opens a second connection for want of streams, because that
//     would lose the order between two replicas;
//   - header lists are bounded to 32 KiB.
package h2
