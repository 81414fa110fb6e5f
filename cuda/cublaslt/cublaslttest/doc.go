// Package cublaslttest is a cuBLASLt that computes on the CPU, over the memory of the simulated driver of package
// drivertest. It reads layouts and transposes as the real one does, column-major, so a wrong leading dimension or a
// forgotten transpose shows as a wrong number.
//
// The simulated library is one per process, as that driver is: use both in the same test, the driver first.
package cublaslttest
