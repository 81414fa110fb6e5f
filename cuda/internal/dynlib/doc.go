// Package dynlib opens the CUDA libraries at run time and says where they were looked for.
//
// The CUDA packages (driver, nvrtc, cublaslt) call it once when they load. A binary built this way starts on a machine
// without any CUDA library: a missing library is an error value, never a link failure.
//
// It never closes a library: CUDA libraries keep threads and exit handlers, so unloading them is not safe.
package dynlib
