// Package policies decides, after every token, which model computes the next one.
//
// A policy is three functions and a static declaration (Policy). Route runs
// after each forward pass and says, for every row, who goes on and whether the
// token just sampled is kept. Send may add to a hand-off that leaves; Receive
// looks at one that arrives. The runtime owns everything else: batching, keys
// and values, anchors, end of sequence, length, streaming and randomness.
//
// Policies are pure: what they know about a request comes in with it (Req), and
// what they must remember fits PolicyState and travels with every hand-off. One
// instance serves one model of one deployment and is called from one goroutine.
//
// Source: TokenRouter paper (arXiv:2610.12242) section 4, generalised so that
// keeping or dropping the last token is explicit. docs/policies.md shows how
// each known policy maps onto this interface.
package policies
