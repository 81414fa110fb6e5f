//go:build !amd64 || noasm

package cpuexec

// bestKernels returns the fastest kernels that this machine runs.
func bestKernels() kernels { return goKernels() }
