// Package gateway serves the public OpenAI-compatible API in front of entry
// sub-services. It is the only package that knows echo.
//
// A gateway is stateless apart from the requests in flight and holds no model
// files. For each request it validates, picks an entry replica, opens a Generate
// stream to it, and sends the committed tokens on to the client.
//
// It is also the fence of every request (see ledger.go): it mints the epochs,
// accepts a token only for the current epoch and at the next position, and
// nothing else reaches the client. When an entry is lost it re-submits the
// request, with what was committed, to another replica; the client sees a pause.
//
//	client      gateway                 entry 1          entry 2
//	  | POST      |                        |                |
//	  |---------->| validate, epoch 1      |                |
//	  |           |--- request ----------->| prefill        |
//	  |           |<-- admitted (ids) -----|                |
//	  |<- 200 ----|<-- tokens 0..2 --------|                |
//	  |<- 0 1 2 --|                        x (dies)         |
//	  |           | epoch 2                                 |
//	  |           |--- request, resume (ids, 0..2, state) ->| prefill all
//	  |<- 3 4 ----|<-- tokens 3..4 -------------------------|
//	  |<- [DONE] -|<-- finish ------------------------------|
//
// The status line leaves only after the entry has admitted the request, so
// every earlier error is a JSON body with its own status.
package gateway
