// Package peer carries hand-off frames between two sub-services: one
// bidirectional HTTP/2 stream for a pair of replicas, with many requests on it
// by id. A Server accepts streams, a Client dials one; both give their owner a
// Link.
//
// The package owns connections, sequence numbers, acknowledgements, credits and
// resumption. It never looks into a turn: whether a hand-off is applied is the
// owner's business (handoff.Fence).
//
// # Life of a link
//
//	        Hello both ways              connection lost
//	(dial) ────────────────▶ connected ────────────────▶ resuming
//	                             ▲                          │ │
//	                             └── Hello, same sessions ──┘ │
//	                                                          ▼
//	          session lost, other side ended, not back in time, hostile, closed: down
//
// A link outlives its connections. While it resumes, Send goes on queueing; on
// return each side says how far it has applied the other's frames, and the rest
// is sent again with the same sequence numbers. The receiver drops numbers that
// it has. So a frame that Send took is handled exactly once, in order, or the
// link goes down.
//
// A link that is down never comes back. When the same replica returns it is a
// new link, and the owner rebuilds the requests that were on the old one.
//
// # When the other side is lost
//
// How a connection ends tells how long to wait for another:
//
//   - The other side's process was killed. Its system says so at once, the connection is
//     reset. The client's next dials are refused, and so are a server's probes
//     (ServerConfig.Probe): after three in a row, within some 20 ms, the link is down.
//   - It was killed and has been started again. It knows no session, or has no server yet:
//     the link is down with the first answer.
//   - Nothing comes any more: its machine or the network is gone, or its process does not
//     run. With Limits.Silence each side sends an Ack every 100 ms, whether there is
//     something to acknowledge or not, and a connection without a byte for that long
//     (SilentAfter, 450 ms) is given up. ResumeFor (200 ms) later the link is down.
//   - The connection alone was lost: the client's next dial brings the link back.
//
// A peer that is only slow must not be taken for lost, since every request there would be
// built anew elsewhere. So both times grow with the lateness of the signs that came lately
// and with that of this process's own timers, the time in which this process did not run
// does not count (package pulse), and neither does that in which the owner was busy with
// a frame. A pause of 300 ms never costs a connection, one of 600 ms never a link.
//
// An older build sends no Ack that acknowledges nothing, and is held to the pings of
// HTTP/2 alone.
//
// # The stream
//
//	client                                      server
//	POST Path ───────────────────────────────▶
//	          ◀─────────────────────────────── 200, flushed
//	Hello{session, peer session, ack} ────────▶
//	          ◀──────── Hello{session, peer session, ack}
//	turn frames, Acks ◀──────────────────────▶ turn frames, Acks
//	Release{request 0, code} ends the stream from either side.
//
// Each side writes with one goroutine that takes all that is queued at once, so
// a busy link sends many frames with one write. An Ack goes along with every
// batch that has something to acknowledge, alone when the reader has run dry,
// and at the latest every quarter of the window. The receiver's Ack grants
// credits; the sender holds frames beyond them.
//
// # Hostile peers
//
// A frame that breaks the protocol ends its stream with a code and counts a
// strike against the session. After MaxStrikes the session is refused and its
// link goes down. Other links do not notice. Names in a Hello are claims: use
// ServerConfig.Authorize to hold them against the peer's certificate.
package peer
