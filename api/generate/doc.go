// Package generate is the call from a gateway to an entry sub-service: one
// HTTP/2 POST per request, whose response body is a stream of events.
//
// The gateway sends text or ids and gets tokens back, each with its id, the
// model that wrote it and the text it adds; the gateway needs no model files.
// The entry answers with a JSON error and a 4xx or 5xx status until it has
// admitted the request, and with status 200 and framed events afterwards.
//
// The gateway's Accept header has the versions of the event stream that it reads, and
// the entry answers in the newest that both speak (Content-Type), or with CodeVersion.
// Fields of a Request that an entry does not know are passed over; one that must not
// be is a new version, which the gateway then accepts alone.
//
// The gateway is the fence of a request: it mints epochs, accepts a token only
// for the current epoch and at the next position, and can re-submit the
// request with a higher epoch, Resume holding what was committed.
package generate
