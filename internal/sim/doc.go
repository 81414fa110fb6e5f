// Package sim runs a routing group in virtual time: the real sub-services,
// scheduler, policies, hand-offs and schedules on fake executors whose steps take
// a given time. Nothing waits, so a second of a real system takes milliseconds.
//
// It answers what a schedule, a threshold or a policy does to throughput, waits
// and batches (`trctl sweep --simulate`, `trctl timeline`), and it is where tests
// drive the whole life of requests with every arrival and cancel at a chosen time.
//
// Time is an int64 of nanoseconds that jumps from event to event: the end of a
// step, the end of a wait, an arrival, a cancel. All steps that end at one instant
// are completed before any starts. Hand-offs take no time unless Config.Transit
// says so. One goroutine does everything; equal configurations give equal runs.
//
// Package internal/floor is another thing: the least time that a recorded run could
// have taken on the same models. It shares no code with the scheduler.
package sim
