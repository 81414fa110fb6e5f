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
//	                          session lost, not back in time, hostile, closed: down
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
