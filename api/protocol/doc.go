// Package protocol says which versions of each protocol this build speaks, and how
// two sides agree on one. It owns nothing and does no I/O.
//
// # Versions
//
// A build speaks a range of versions of each protocol: the oldest that it still reads
// and writes, and the newest that it knows. Both sides tell theirs; the newest version
// that both ranges have counts. Sides without one refuse each other with an error that
// names both ranges and what to do (Mismatch).
//
//	protocol   between                   told in                          agreed
//	cluster    all nodes, control nodes  join request, announcement       over all control nodes
//	hand-off   worker and worker         first frame of a stream (Hello)  a link
//	generate   gateway and worker        Accept, Content-Type             a request
//
// What stands in the log of the control nodes is read long after it was written, by
// whoever joins later. So a command carries the oldest version that can read it, and is
// taken only when all control nodes speak that.
//
// # A new version
//
// Whoever changes what travels so that older builds would misread it raises the newest
// version here by one, and writes the new form only where the version agreed on has
// it. The oldest version is raised when no release that lacks the one after it is to
// be upgraded from without a stop.
//
// The build tag nextprotocol makes a build whose newest versions are one higher, and
// which has one command that other builds cannot read. It is for tests of upgrades.
package protocol
