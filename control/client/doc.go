// Package client is how nodes and operators talk to the control nodes: join, watch
// the state, propose commands, send heartbeats, renew certificates.
//
// A Client knows several control nodes and needs one of them. It keeps to the one
// that answered last and moves on when that one fails. A call that no control node
// could answer has ErrNoLeader in its chain; the caller decides whether to repeat
// it. Repeating a command with the same Command.Request is harmless.
//
// Watch keeps a View up to date: an immutable copy of what the node's role may see
// of the state. The View stays as it is while no control node can be reached, so
// that whoever reads it serves on.
package client
