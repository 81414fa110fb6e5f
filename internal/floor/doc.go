// Package floor computes the least time in which a recorded run could have been
// done on the same models: the same requests, tokens and hand-offs, as many in
// flight, with steps that take their bare time and nothing in between.
//
// What a system makes, divided by that, is its routed efficiency: the part of
// what the models can do that scheduling, hand-offs and hosts leave over. It
// compares runs with other policies, loads and machines on one scale.
//
// The simulation knows nothing of the scheduler: no pages, chunks, links or
// rules, only requests that wait and models that take all of them. It shares no
// code with worker/scheduler, worker/schedule or internal/sim, so that a mistake
// there does not hide here.
package floor
