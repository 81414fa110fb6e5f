// Package gateway serves the public OpenAI-compatible API in front of entry
// sub-services. It is the only package that knows echo.
//
// A gateway is stateless apart from the requests in flight and holds no model
// files. For each request it validates, has package session compute the answers,
// and sends the committed tokens on to the client. When an entry is lost the
// session moves the request to another; the client sees a pause.
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
// The status line leaves only after the entries have admitted all choices, so
// every earlier error is a JSON body with its own status.
//
// # Changes of a deployment
//
// Gateway and entries hear of a change one after the other. An entry that does not know
// the deployment (yet, or any more) refuses; the session asks again for a moment. When the
// gateway hears that the deployment has other models, requests that no entry has admitted
// begin anew, from the look-up on. Requests that were admitted keep what they began with.
//
// # Unknown models
//
// A gateway hears late of what was deployed elsewhere. Before it says that a model does not
// exist it asks its Config.Source how far it has to be, and waits for that for a moment; so
// does the list of models. See freshness for what that costs at most.
//
// # Slow clients
//
// One goroutine writes to a client; the session's feed waits for it with at most
// 256 tokens or 64 KiB an answer. Beyond that the gateway stops reading from the
// entry, whose stream is then held back by HTTP/2 flow control, and the entry
// pauses the sequence. A client that takes nothing for Config.SlowAfter is given
// up: its entries are let go at once, and the error client_too_slow is the last
// event of its stream, should it read on within Config.WriteTimeout.
//
// # Browsers
//
// See guardOrigin: foreign pages are kept out, by Host over loopback and by
// Origin everywhere, unless Config.AllowOrigins names them.
//
// # Malformed requests
//
// What is not strictly HTTP/1.1 reaches no handler: package http1 refuses it below
// net/http, so that no request can hide in another from the check of keys or from a
// proxy in front. The answers are the API's, the requests are counted as route "other"
// and logged as refused.
//
// # The end of a request
//
// Every request leaves one log line with its cause (session.Cause), and never
// text of a prompt or an answer.
package gateway
