// Package cpuexec runs a model on the CPU: the truth that other executors are
// compared with, and what serves when there is no GPU.
//
// The decode loop of a sub-service calls it through executor.Executor. It owns
// the weights (bfloat16 or float32; all arithmetic is float32), the pages of keys
// and values, and its goroutines: one that runs steps, and Config.Workers-1 that
// lend a hand with large ones. All of them end in Shutdown.
//
// Invariant: the result of a row never depends on its neighbours, on the batch,
// on the page size, on how the tokens were cut into steps, or on Workers, to the
// last bit. Every output element is summed by one kernel in one order, which
// depends on the length of the sum alone; work is split between elements, never
// inside one. The AVX2 kernels and the plain Go kernels round differently, so the
// last bits do differ between machines with and without AVX2. AVX-512, which helps
// from eight tokens a step on, changes no bits.
//
// Pages may be shared by several slots. Whether one of them writes to a shared
// page, or adopts a page with other ids, is not checked here (package fakeexec does).
//
// Layout: keys and values are [N, L, 2, Hk, P, D] float32, so that a page is one
// run of memory, touched only when it is first written.
package cpuexec
