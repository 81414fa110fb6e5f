// Package simt runs the kernels without a GPU, for tests: it compiles them as C++ and plays every thread of a block as
// a fiber, so that barriers, shuffles, votes, shared memory, atomics and the tensor-core product behave as the kernels
// expect. It gives a driver.Driver, so launch code and executor above it are the product's own.
//
// What it finds: wrong indices (each allocation ends at a page that cannot be touched, fresh memory is NaN), wrong
// arithmetic, missing barriers (two orders of threads must give the same bits), barriers that not all threads reach, and asynchronous
// copies that are used before they were waited for (until then NaN is in their place).
// What it cannot find: anything of the memory model, alignment faults, resource limits and speed.
//
// One process has one simulated device, as the CUDA API has no place for a state; Open holds a lock on it until the
// test ends. Without cgo, without a C++ compiler, and on machines other than linux/amd64, tests skip.
package simt
