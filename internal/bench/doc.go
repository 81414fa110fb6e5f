// Package bench is the load generator behind trctl bench: it sends requests to
// any OpenAI-compatible server, in a closed loop (a fixed number of workers, each
// sends its next request when the last one ends) or an open loop (arrivals at a
// given rate), and reports what a client sees.
//
// How things are measured. All times are of the monotonic clock, in the client:
//
//   - A request's time starts just before it is sent. A piece of a stream has the
//     time at which the read that completed it returned; pieces of one read have
//     the same time.
//   - TTFT ends at the first piece that carries text, a tool call, or our
//     extension's note that a model wrote a token. A piece that only names the
//     role does not count.
//   - Inter-token latencies are the gaps between such pieces, of all requests
//     together. A server that puts several tokens into one piece shows gaps of
//     several tokens; the report says how many tokens a piece has.
//   - Time per output token of a request is (last piece − first piece) / (tokens −
//     1), where the last piece may be the one that only ends the answer; its per-user speed is the inverse. Without streaming the per-user speed
//     is tokens / latency, and the other two are absent.
//   - Output tokens are the server's usage count, else the number of pieces.
//   - Latency is from sending to the end mark of the stream, or to the body's end.
//   - Start delay, of the open loop, is how much later than planned a request was
//     sent, because too many were in flight or this machine was busy. It is not
//     part of the other times.
//
// Only whole answers count as successes: status 200, no error object, a finish
// reason, and the end mark of the stream. All else is a failure of one kind (see
// Kind), which adds nothing to tokens and times. Warm-up requests are sent and
// finished before the measured ones start, and are counted nowhere. Requests are
// never repeated. After a failed connection a worker of the closed loop pauses
// for a moment, so that a server that is down does not cost a core.
//
// The wall time is from the first measured request's start to the last one's end,
// the tail in which workers run out of requests included.
//
// Mean and maximum are exact. Percentiles interpolate between the two nearest
// samples, over all of them, up to MaxSamples of a series; beyond that over a
// uniform sample of that size (a reservoir), and the report says so.
//
// The package starts nothing by itself and prints nothing.
package bench
