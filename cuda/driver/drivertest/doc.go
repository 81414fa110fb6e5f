// Package drivertest is a CUDA driver that runs without a GPU, for tests of code on top of package driver.
//
// New returns a driver.Driver over a table of C functions that simulate devices: memory is host memory, so copies and
// fills are real; kernels do not run but each launch is recorded with its geometry and parameters; captures record
// into graphs, whose launches are recorded too. Tests read the order of calls, count what is still open, and make any
// call fail, once or for good as after a device fault.
//
// The driver API has no argument for a state of its own, so there is one simulated driver in a process and New holds a
// lock on it until the test ends: tests that use it run one after another even when they are parallel.
//
// Without cgo, New skips the test.
package drivertest
